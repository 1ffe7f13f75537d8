// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/test/memory"
)

// plodding is a data plane that needs ten seconds for an op, and does two at a
// time.
type plodding struct {
	*memory.Driver[string, string]
}

func (p plodding) Commit(ctx context.Context, ops []ledger.Op[string, string]) []error {
	n := min(2, len(ops))
	time.Sleep(time.Duration(n) * 10 * time.Second)
	errs := p.Driver.Commit(ctx, ops[:n])
	for range ops[n:] {
		errs = append(errs, ledger.ErrDeferred)
	}
	return errs
}

// A start that takes minutes is alive all the time, reports its progress, has what
// is programmed in effect, and takes changes in between; it is not ready before
// its end.
func TestASlowStartMakesProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := newKernel()
		b := startOn(t, kernel, func(o *engine.Options) {
			o.Backend = dataplane.New(fronts{}, plodding{kernel})
			o.MinGap = 15 * time.Second
		})
		const services = 40
		for i := range services {
			b.Set(service(fmt.Sprint("s", i), fmt.Sprintf("10.96.0.%d", 1+i)))
		}
		b.Synced(true)
		begun, last := time.Now(), services+1
		for {
			sleep(5 * time.Second)
			s := b.Status()
			h := question.HealthOf(s, 50*time.Second, nil)
			if !h.Alive() {
				t.Fatalf("dead after %s: %v", time.Since(begun), h.Reasons)
			}
			if s.Synced {
				break
			}
			if s.Deferred > last || s.Services[model.Failing] > 0 {
				t.Fatalf("%d objects to go after %d, %v", s.Deferred, last, s.Services)
			}
			if s.Deferred > 0 {
				last = s.Deferred
			}
		}
		if took := time.Since(begun); took > (services+4)*10*time.Second {
			t.Errorf("took %s", took)
		}
		if len(b.syncs) < services/2 || len(b.syncs[3].Applied) == 0 {
			t.Errorf("%d syncs, of which the fourth had no change in effect", len(b.syncs))
		}
		settled := 0
		for _, s := range b.syncs {
			settled += len(s.Applied)
		}
		if settled != services {
			t.Errorf("%d changes in effect, want %d", settled, services)
		}
	})
}

// A change that comes meanwhile does not wait for the rest.
func TestAChangeDuringASlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := newKernel()
		b := startOn(t, kernel, func(o *engine.Options) { o.Backend = dataplane.New(fronts{}, plodding{kernel}) })
		for i := range 40 {
			b.Set(service(fmt.Sprint("s", i), fmt.Sprintf("10.96.0.%d", 1+i)))
		}
		b.Synced(true)
		sleep(65 * time.Second)
		b.Set(service("new", "10.96.1.1"))
		sleep(40 * time.Second)
		kernel.Do(func() {
			if kernel.Objects["10.96.1.1:80"] == "" {
				t.Error("the new Service waits")
			}
		})
	})
}
