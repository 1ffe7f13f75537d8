// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/memory"
)

func second() (*memory.Driver[string, string], dataplane.Backend) {
	d := newKernel()
	return d, dataplane.New(fronts{}, d)
}

func TestSwitchMovesEverythingWhileBothWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		b.Set(service("a", "10.96.0.1"))
		b.Synced(true)
		synctest.Wait()
		kernel, next := second()
		kernel.Objects["10.96.9.9:80"] = "left by a switch that was cut short"
		// A change arrives while the next one is being programmed.
		kernel.Fail = func(op ledger.Op[string, string]) error {
			if op.Key == "base" {
				b.Set(service("b", "10.96.0.2"))
				sleep(time.Second)
			}
			return nil
		}
		old, err := b.Switch(t.Context(), engine.DataPlane{Backend: next})
		if err != nil {
			t.Fatal(err)
		}
		defer old.Close()
		synctest.Wait()
		if fmt.Sprint(kernel.Objects) != fmt.Sprint(b.kernel.Objects) || len(kernel.Objects) != 3 {
			t.Fatalf("next has %v, the old one %v", kernel.Objects, b.kernel.Objects)
		}
		b.Set(service("c", "10.96.0.3"))
		synctest.Wait()
		if len(kernel.Objects) != 4 || len(b.kernel.Objects) != 3 {
			t.Fatalf("after the switch a change went to %v, not to %v", b.kernel.Objects, kernel.Objects)
		}
		if err := old.Remove(t.Context()); err != nil || len(b.kernel.Objects) != 0 || len(kernel.Objects) != 4 {
			t.Fatalf("removing the old one: %v, %v left", err, b.kernel.Objects)
		}
	})
}

// repairing reports in its first Sync that a port was damaged and is right again.
type repairing struct {
	dataplane.Backend
	port *model.PortID
}

func (r repairing) Sync(ctx context.Context) (dataplane.Work, error) {
	work, err := r.Backend.Sync(ctx)
	if *r.port != (model.PortID{}) {
		work.Repaired = append(work.Repaired, *r.port)
		*r.port = model.PortID{}
	}
	return work, err
}

// Connections may have been made through what the next data plane repairs before it is the
// one in use: that is reported by the first sync after.
func TestWhatASwitchRepairsIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		b.Set(service("a", "10.96.0.1"))
		b.Synced(true)
		synctest.Wait()
		_, next := second()
		id := model.PortID{Service: model.ServiceName{Namespace: "ns", Name: "a"}, Proto: model.TCP}
		before := len(b.syncs)
		if _, err := b.Switch(t.Context(), engine.DataPlane{Backend: repairing{next, &id}}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		n := 0
		for _, s := range b.syncs[before:] {
			n += len(s.Restored)
		}
		if n != 1 {
			t.Errorf("%d ports reported as repaired, want 1", n)
		}
	})
}

// What another data plane lacks is another thing: whoever follows the gaps of ports, such as
// health checks, looks at all of them after a switch, and at none after a change.
func TestASwitchNamesPortsWhoseGapsMayDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		b.Set(service("a", "10.96.0.1"))
		b.Set(service("b", "10.96.0.2"))
		b.Synced(true)
		synctest.Wait()
		named := func(since int) (n int) {
			for _, s := range b.syncs[since:] {
				n += len(s.Gaps)
			}
			return n
		}
		_, next := second()
		before := len(b.syncs)
		old, err := b.Switch(t.Context(), engine.DataPlane{Backend: next})
		if err != nil {
			t.Fatal(err)
		}
		defer old.Close()
		synctest.Wait()
		if n := named(before); n != 2 {
			t.Errorf("%d ports after a switch, want 2", n)
		}
		before = len(b.syncs)
		b.Set(service("b", "10.96.0.3"))
		synctest.Wait()
		if n := named(before); n != 0 || len(b.syncs) == before {
			t.Errorf("%d ports in %d syncs after a change, want none", n, len(b.syncs)-before)
		}
	})
}

// What the next data plane refuses at the last moment is tried again beside the
// changes, which do not wait for that.
func TestSwitchRetriesBesideChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		b.Set(service("a", "10.96.0.1"))
		b.Synced(true)
		synctest.Wait()
		kernel, next := second()
		failures, waits := 0, make(chan time.Duration, 5)
		kernel.Fail = func(op ledger.Op[string, string]) error {
			switch {
			case op.Key == "base":
				b.Set(service("b", "10.96.0.2"))
				sleep(time.Second)
			case op.Key == "10.96.0.2:80" && failures < 5:
				failures++
				begin := time.Now()
				go func() {
					if err := b.Ping(t.Context()); err != nil {
						t.Error(err)
					}
					waits <- time.Since(begin)
				}()
				return errors.New("not yet")
			}
			return nil
		}
		old, err := b.Switch(t.Context(), engine.DataPlane{Backend: next})
		if err != nil {
			t.Fatal(err)
		}
		defer old.Close()
		var longest time.Duration
		for range failures {
			longest = max(longest, <-waits)
		}
		if failures != 5 || longest > 0 || kernel.Objects["10.96.0.2:80"] == "" {
			t.Errorf("%d failures, a change waited for %s; next has %v", failures, longest, kernel.Objects)
		}
	})
}

func TestSwitchThatCannotBeCompletedChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		if _, err := b.Switch(t.Context(), engine.DataPlane{}); !errors.Is(err, engine.ErrNotReady) {
			t.Fatalf("a switch before the first sync: %v", err)
		}
		b.Set(service("a", "10.96.0.1"))
		b.Synced(true)
		synctest.Wait()
		kernel, next := second()
		kernel.Fail = func(op ledger.Op[string, string]) error {
			if op.Key == "10.96.0.1:80" {
				return errors.New("no room")
			}
			return nil
		}
		if _, err := b.Switch(t.Context(), engine.DataPlane{Backend: next}); err == nil {
			t.Fatal("switched to a data plane that refuses a Service")
		}
		b.Set(service("b", "10.96.0.2"))
		synctest.Wait()
		if b.kernel.Objects["10.96.0.2:80"] == "" {
			t.Fatalf("the old data plane is not served any more: %v", b.kernel.Objects)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := b.Switch(ctx, engine.DataPlane{Backend: next}); !errors.Is(err, context.Canceled) {
			t.Fatalf("cancelled: %v", err)
		}
	})
}

// asked counts how often a data plane is asked for the order of its endpoints.
type asked struct {
	dataplane.Backend
	times *int
}

func (a asked) Slots(proto model.Proto, at netip.AddrPort, from model.Origin) []netip.AddrPort {
	*a.times++
	return a.Backend.Slots(proto, at, from)
}

// After a switch nothing asks the old data plane any more, so that it can go; and
// the new one knows whether there is doubt by now.
func TestSwitchLeavesTheOldOneAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		times := 0
		b := start(t, func(o *engine.Options) { o.Backend = asked{o.Backend, &times} })
		b.Set(service("a", "10.96.0.1"))
		b.Set(slice("a-1", "a", "10.0.0.1", time.Time{}))
		b.Synced(false)
		synctest.Wait()
		if times == 0 {
			t.Fatal("the first one was not asked")
		}
		kernel, next := second()
		kernel.Objects["10.96.9.9:80"] = "left by an earlier run"
		kernel.Fail = func(op ledger.Op[string, string]) error {
			if op.Key == "base" {
				b.Synced(true) // the doubt ends while next is being programmed
				sleep(time.Second)
			}
			return nil
		}
		old, err := b.Switch(t.Context(), engine.DataPlane{Backend: next})
		if err != nil {
			t.Fatal(err)
		}
		defer old.Close()
		before := times
		b.Set(service("b", "10.96.0.2"))
		b.Set(slice("b-1", "b", "10.0.0.2", time.Time{}))
		sleep(time.Second)
		if times != before {
			t.Errorf("the old one was asked %d times", times-before)
		}
		if _, there := kernel.Objects["10.96.9.9:80"]; there || len(kernel.Objects) != 3 {
			t.Errorf("next has %v", kernel.Objects)
		}
	})
}
