// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/memory"
)

// fail makes the kernel answer ops on some objects with an error.
func (b *bench) fail(keys map[string]error) {
	b.kernel.Do(func() { b.kernel.Fail = func(op ledger.Op[string, string]) error { return keys[op.Key] } })
}

// settled names the Services of the changes that were reported as in effect.
func (b *bench) settled(t *testing.T) (names string) {
	t.Helper()
	for _, s := range b.syncs {
		for _, d := range s.Applied {
			if d.Old == nil && d.New == nil {
				t.Fatal("a change from nothing to nothing")
			}
			names += d.ID().Service.Name
		}
	}
	return names
}

// A Service may go before the data plane ever took it: then nothing was, and
// nothing is.
func TestAServiceThatNeverWorkedGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		b.fail(map[string]error{"10.96.0.1:80": errors.New("refused")})
		b.Set(service("a", "10.96.0.1"))
		b.Set(service("b", "10.96.0.2"))
		b.Synced(true)
		synctest.Wait()
		b.Delete(&model.Service{Name: model.ServiceName{Namespace: "ns", Name: "a"}})
		sleep(time.Minute)
		if got := b.settled(t); got != "b" {
			t.Errorf("in effect: %q, want b", got)
		}
		if s := b.Status(); s.Err != nil || s.Services[model.Failing] != 0 || !s.QueuedAt.IsZero() {
			t.Errorf("status %+v", s)
		}
		b.fail(nil)
		b.Set(service("a", "10.96.0.1"))
		sleep(time.Minute)
		if got := b.settled(t); got != "ba" {
			t.Errorf("in effect: %q, want b and then a", got)
		}
	})
}

// While another program holds the data plane nothing is in effect, though of another
// Service it is known why it is not.
func TestNothingIsInEffectWhileTheDataPlaneIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startOn(t, memory.New[string](fronts{}.Equal, dataplane.Limits{Atomic: true}), nil)
		refused := map[string]error{"10.96.0.1:80": errors.New("refused")}
		b.fail(refused)
		b.Set(service("a", "10.96.0.1"))
		b.Set(service("b", "10.96.0.2"))
		b.Synced(true)
		synctest.Wait()
		held := map[string]error{"10.96.0.1:80": errors.New("refused"), "10.96.0.3:80": ledger.BusyError{After: 50 * time.Millisecond}}
		b.fail(held)
		b.Set(service("c", "10.96.0.3"))
		sleep(time.Minute)
		if got := b.settled(t); got != "b" {
			t.Errorf("in effect: %q, want b alone", got)
		}
		if s := b.Status(); s.QueuedAt.IsZero() {
			t.Error("nothing waits")
		}
		b.fail(refused)
		sleep(time.Minute)
		if got := b.settled(t); got != "bc" {
			t.Errorf("in effect: %q, want b and then c", got)
		}
	})
}

// An address that stays busy is no failure at first, and one that people see later: a Service
// that is failing, with the reason, and others are not held up. When it is free the Service
// works again.
func TestAnAddressThatStaysBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		b.fail(map[string]error{"10.96.0.1:80": fmt.Errorf("listen: %w", ledger.BusyError{After: 100 * time.Millisecond})})
		b.Set(service("a", "10.96.0.1"))
		b.Set(service("b", "10.96.0.2"))
		b.Synced(true)
		sleep(ledger.BusyLimit / 2)
		if s := b.Status(); s.Err != nil || s.Services[model.Failing] != 0 {
			t.Errorf("busy for %s: status %+v", ledger.BusyLimit/2, s)
		}
		sleep(ledger.BusyLimit)
		s := b.Status()
		if s.Err == nil || !strings.Contains(s.Err.Error(), "busy; retry") || s.Services[model.Failing] != 1 || s.Services[model.Programmed] != 1 {
			t.Errorf("busy for longer: status %+v", s)
		}
		b.Set(service("c", "10.96.0.3"))
		sleep(time.Minute)
		b.fail(nil)
		sleep(time.Minute)
		if s := b.Status(); s.Err != nil || s.Services[model.Failing] != 0 || s.Services[model.Programmed] != 3 {
			t.Errorf("free: status %+v", s)
		}
		var states []string
		for _, sync := range b.syncs {
			for _, c := range sync.StateChanges {
				states = append(states, fmt.Sprintf("%s %s: %s", c.Service.Name, c.State, c.Detail))
			}
		}
		if len(states) != 2 || !strings.Contains(states[0], "a ") || !strings.Contains(states[0], "busy for 10s and longer: listen: ") {
			t.Errorf("state changes %q", states)
		}
		if n := len(b.syncs); n > 200 {
			t.Errorf("%d syncs", n)
		}
	})
}

// A restart finds everything in place but what the data plane has refused all
// along. That keeps the proxy from nothing.
func TestARestartWithARefusedServiceIsHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := newKernel()
		kernel.Objects["base"], kernel.Objects["10.96.0.1:80"] = "here []", "reject"
		b := startOn(t, kernel, nil)
		b.fail(map[string]error{"10.96.0.2:80": errors.New("taken"), "10.96.0.3:80": errors.New("taken")})
		b.Set(service("a", "10.96.0.1"))
		b.Set(service("b", "10.96.0.2"))
		b.Set(service("c", "10.96.0.3"))
		b.Synced(true)
		sleep(time.Hour)
		if s := b.Status(); !s.Synced || !s.QueuedAt.IsZero() || s.Services[model.Failing] != 2 {
			t.Errorf("status %+v", s)
		}
	})
}

// One Service that is rejected does not affect others. Two, with nothing that got through
// in between, point to the data plane.
func TestWhatIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		b.Set(service("a", "10.96.0.1"))
		b.Set(service("b", "10.96.0.2"))
		b.Synced(true)
		synctest.Wait()
		expect := func(what string, stuck bool) {
			t.Helper()
			sleep(time.Minute)
			if got := !b.Status().QueuedAt.IsZero(); got != stuck {
				t.Errorf("%s: stuck %t", what, got)
			}
		}
		no := errors.New("no")
		b.fail(map[string]error{"10.96.0.3:80": no, "10.96.0.4:80": no, "10.96.0.5:80": no})
		b.Set(service("c", "10.96.0.3"))
		expect("one", false)
		b.Set(service("d", "10.96.0.4"))
		expect("two", true)
		b.Set(service("f", "10.96.0.6"))
		expect("two, and another works", false)
		b.Set(service("e", "10.96.0.5"))
		expect("one more since", false)
		b.fail(nil)
		expect("all well", false)
		b.fail(map[string]error{"base": no})
		b.Set(&model.Node{Name: "here", IPs: service("x", "192.0.2.1").ClusterIPs})
		expect("the base", true)
	})
}

// An object of the host that fails is of no Service, and all Services may depend on it: the proxy is stuck for as long as
// it fails, also while Services change and are written, and says which object it is.
func TestAnObjectOfTheHostThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		b.Set(service("a", "10.96.0.1"))
		b.Synced(true)
		synctest.Wait()
		expect := func(what string, least time.Duration) {
			t.Helper()
			s := b.Status()
			if s.QueuedAt.IsZero() || time.Since(s.QueuedAt) < least {
				t.Errorf("%s: queued since %s, want %s and longer", what, s.QueuedAt, least)
			}
			if s.Err == nil || !strings.Contains(s.Err.Error(), "base") {
				t.Errorf("%s: the error is %v, want one that names the object", what, s.Err)
			}
		}
		busy := func() {
			for i := range 30 {
				b.Set(service("b", fmt.Sprintf("10.96.0.%d", 10+i)))
				sleep(10 * time.Second)
			}
		}
		well := func(what string) {
			t.Helper()
			b.fail(nil)
			sleep(time.Minute)
			if s := b.Status(); s.Err != nil || !s.QueuedAt.IsZero() {
				t.Errorf("%s: status %+v", what, s)
			}
		}
		b.fail(map[string]error{"base": errors.New("no")})
		b.Set(&model.Node{Name: "here", IPs: service("x", "192.0.2.1").ClusterIPs})
		busy()
		expect("changed, among changes of Services", 4*time.Minute)
		well("after a change")
		b.fail(map[string]error{"base": errors.New("no")})
		b.kernel.Do(func() { delete(b.kernel.Objects, "base") })
		if _, err := b.Audit(t.Context()); err != nil {
			t.Fatal(err)
		}
		sleep(5 * time.Minute)
		expect("deleted by another program", 4*time.Minute)
		well("after a repair")
	})
}

// Nor do several of one namespace, as long as there are others.
func TestOneTenantIsNotTheDataPlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		of := func(namespace, name, ip string) *model.Service {
			s := service(name, ip)
			s.Name.Namespace = namespace
			return s
		}
		b.Set(of("shop", "a", "10.96.0.1"))
		b.Set(of("evil", "b", "10.96.0.2"))
		b.Synced(true)
		synctest.Wait()
		no := errors.New("no")
		b.fail(map[string]error{"10.96.0.3:80": no, "10.96.0.4:80": no, "10.96.0.5:80": no})
		for i, s := range []*model.Service{of("evil", "c", "10.96.0.3"), of("evil", "d", "10.96.0.4"), of("shop", "e", "10.96.0.5")} {
			b.Set(s)
			sleep(time.Minute)
			if got := !b.Status().QueuedAt.IsZero(); got != (i == 2) {
				t.Errorf("%s: stuck %t", s.Name, got)
			}
		}
	})
}

// An API server that is away for an hour at the start is no fault of the data
// plane, also not while that is programmed for the first time.
func TestWaitingForTheSourceIsNotWaitingForTheDataPlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var queued time.Duration
		b := start(t, nil)
		b.kernel.Do(func() {
			b.kernel.Fail = func(ledger.Op[string, string]) error {
				queued = max(queued, time.Since(b.Status().QueuedAt))
				return nil
			}
		})
		b.Set(service("a", "10.96.0.1"))
		sleep(time.Hour)
		b.Synced(true)
		begin := time.Now()
		<-b.Programmed()
		if waited := time.Since(begin); waited > 0 {
			t.Errorf("reported %s late", waited)
		}
		synctest.Wait()
		if s := b.Status(); !s.Synced || queued > time.Second {
			t.Errorf("changes have waited for %s; status %+v", queued, s)
		}
		if waited := b.syncs[0].Waiting; waited > time.Second {
			t.Errorf("the first sync says that events waited for %s", waited)
		}
	})
}

// A Node that is made again has neither addresses nor podCIDRs for a moment. It is
// the same machine.
func TestANodeThatIsMadeAgainKeepsItsAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen model.Node
		b := start(t, func(o *engine.Options) {
			o.Host = func(n *model.Node, _ []*model.ServiceCIDR) (*model.Host, []model.Problem) {
				if n != nil {
					seen = *n
				}
				return &model.Host{Name: "here", IPs: seen.IPs}, nil
			}
		})
		ips := service("x", "192.0.2.1").ClusterIPs
		pods := func(p string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(p)} }
		b.Set(&model.Node{Name: "here", Zone: "a", IPs: ips, PodCIDRs: pods("10.1.0.0/24")})
		b.Set(&model.Node{Name: "here", Leaving: true})
		b.Set(&model.Node{Name: "here", Zone: "b"})
		b.Synced(true)
		synctest.Wait()
		if len(seen.IPs) != 1 || len(seen.PodCIDRs) != 1 || seen.Zone != "b" || b.Status().Leaving {
			t.Errorf("node %+v", seen)
		}
		b.Set(&model.Node{Name: "here", IPs: service("x", "192.0.2.2").ClusterIPs, PodCIDRs: pods("10.2.0.0/24")})
		synctest.Wait()
		if seen.IPs[0].String() != "192.0.2.2" || seen.PodCIDRs[0].String() != "10.2.0.0/24" {
			t.Errorf("node %+v", seen)
		}
	})
}

// A call to a busy engine that is cancelled costs nothing afterwards.
func TestCancelledCallersAreNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var backend *costly
		b := start(t, func(o *engine.Options) {
			backend = &costly{Backend: o.Backend}
			o.Backend = backend
		})
		b.Synced(true)
		synctest.Wait()
		b.kernel.Do(func() {
			b.kernel.Fail = func(ledger.Op[string, string]) error { time.Sleep(time.Minute); return nil }
		})
		b.Set(service("a", "10.96.0.1"))
		synctest.Wait()
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := b.Snapshot(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a busy engine answers: %v", err)
			}
			cancel()
		}
		if _, err := b.Snapshot(t.Context()); err != nil || backend.asked != 1 {
			t.Errorf("%d snapshots were made for one that was waited for (%v)", backend.asked, err)
		}
	})
}

// A problem that makes the node unfit is in the status while it lasts.
func TestUnfit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		for _, problems := range [][]model.Problem{{{Object: "Node n", Unfit: true}}, {{Object: "Node n"}}} {
			w.Problems("host", problems)
			synctest.Wait()
			if got := w.Status().Unfit != ""; got != problems[0].Unfit {
				t.Errorf("%+v: unfit %t", problems, got)
			}
		}
	})
}
