// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/dataplane/memory"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
)

// hiding is a data plane whose endpoints never see a client's address.
type hiding struct{ fronts }

func (h hiding) Port(host *model.Host, p *model.Port, emit func(string, string)) []model.Gap {
	h.fronts.Port(host, p, emit)
	return []model.Gap{{Detail: "no client addresses", Source: true}}
}

func TestAGapOfTheModeIsSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []model.Problem
		b := start(t, func(o *engine.Options) {
			o.Backend = dataplane.New(hiding{}, memory.New[string](fronts{}.Equal, dataplane.Limits{}))
			o.Hooks.Problem = func(p model.Problem) { said = append(said, p) }
		})
		b.SetService(service("a", "10.96.0.1"))
		b.SetService(service("b", "10.96.0.2"))
		b.SetService(service("c", "10.96.0.3"))
		b.Synced(true)
		synctest.Wait()
		b.SetService(service("c", "10.96.0.4"))
		synctest.Wait()
		if len(said) != 1 || said[0].Object != "data plane" {
			t.Errorf("said: %v", said)
		}
		if n := b.Status().Services[model.Programmed]; n != 3 {
			t.Errorf("%d of 3 Services are Programmed", n)
		}
	})
}

// lacking is a data plane that can do no port whole.
type lacking struct{ fronts }

func (l lacking) Port(host *model.Host, p *model.Port, emit func(string, string)) []model.Gap {
	l.fronts.Port(host, p, emit)
	return []model.Gap{{Detail: "half of it"}}
}

func TestTheGapsOfALargeServiceAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []model.Problem
		b := start(t, func(o *engine.Options) {
			o.Backend = dataplane.New(lacking{}, memory.New[string](fronts{}.Equal, dataplane.Limits{}))
			o.Hooks.Problem = func(p model.Problem) { said = append(said, p) }
		})
		s := service("a", "10.96.0.1")
		s.Ports = nil
		for i := range 1000 {
			s.Ports = append(s.Ports, model.ServicePort{Name: fmt.Sprint("p", i), Proto: model.TCP, Port: uint16(i + 1)})
		}
		b.SetService(s)
		b.Synced(true)
		synctest.Wait()
		if n := len(said); n != model.MaxProblems+1 || said[n-1].Detail != "980 more problems of its ports" {
			t.Errorf("%d problems were said, the last is %v", n, said[n-1])
		}
	})
}

// retrying is a backend that cannot do a port at first, and does it later without a change.
type retrying struct {
	dataplane.Backend
	gaps    []model.Gap
	changed []model.PortID
	next    time.Time
}

func (r *retrying) Unwrap() dataplane.Backend         { return r.Backend }
func (r *retrying) Gaps(model.PortID) []model.Gap     { return r.gaps }
func (r *retrying) Next() time.Time                   { return r.next }
func (r *retrying) GapsChanged() (ids []model.PortID) { ids, r.changed = r.changed, nil; return ids }

func (r *retrying) Sync(ctx context.Context) (dataplane.Work, error) {
	if !r.next.IsZero() && !time.Now().Before(r.next) {
		r.next, r.gaps = time.Time{}, nil
		r.changed = []model.PortID{{Service: model.ServiceName{Namespace: "ns", Name: "a"}, Proto: model.TCP}}
	}
	return r.Backend.Sync(ctx)
}

// A Service whose gap is repaired by a retry is programmed, though it has not changed.
func TestAGapGoesWithoutAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &retrying{gaps: []model.Gap{{Detail: "port in use"}}, next: time.Now().Add(time.Minute)}
		b := start(t, func(o *engine.Options) {
			r.Backend = o.Backend
			o.Backend = r
		})
		b.SetService(service("a", "10.96.0.1"))
		b.SetService(service("b", "10.96.0.2"))
		b.Synced(true)
		sleep(30 * time.Second)
		if s := b.Status().Services; s[model.Partial] != 2 {
			t.Errorf("with gaps: %v", s)
		}
		sleep(time.Minute)
		if s := b.Status().Services; s[model.Partial] != 1 || s[model.Programmed] != 1 { // of b nothing was said
			t.Errorf("without: %v", s)
		}
	})
}
