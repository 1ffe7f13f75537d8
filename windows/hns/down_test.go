// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// HNS is stopped while a change is made, and comes back as it was.
func TestHNSIsDownForAWhile(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.emu.Down(true)
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.3")
		r.fails("HNS is unavailable")
		for range 20 {
			time.Sleep(time.Until(r.backend.Next()))
			if _, err := r.backend.Sync(r.Context()); err == nil {
				r.Fatal("a sync succeeded without an HNS")
			}
		}
		r.serves("10.96.0.10", "10.244.1.2 10.244.2.2")
		r.emu.Down(false)
		r.settle()
		r.serves("10.96.0.10", "10.244.1.2 10.244.2.3")
		r.gaps(0)
	})
}

// An HNS whose service is not there answers with one of several codes of RPC: the rest of a
// Commit is not tried, nothing is replaced, and HNS is read back afterwards. The last one was
// seen of an HNS that does not start (WSL#4403).
func TestTheCodesOfAnHNSThatIsGone(t *testing.T) {
	for _, code := range []hns.Code{0x426, serverGone, 0x6b5, 0x6d9} {
		on(t, hnsemu.WS2019, func(r *rig) {
			web(r)
			calls := 0
			r.emu.Hook(func(*hnsemu.Call) hns.Code { calls++; return code })
			r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.2 10.244.2.3")
			r.set("api", "10.96.0.11", "10.244.1.3")
			if _, err := r.backend.Sync(r.Context()); !errors.Is(err, ledger.ErrUnknown) || strings.Contains(err.Error(), ": error 0x") || calls != 1 {
				r.Errorf("0x%x: %d calls, %v", uint32(code), calls, err)
			}
			r.emu.Hook(nil)
			r.settle()
			r.serves("10.96.0.10", "10.244.1.2 10.244.2.2 10.244.2.3")
			r.serves("10.96.0.11", "10.244.1.3")
		})
	}
}

// The connection breaks after HNS has carried a call out: its outcome is looked
// up, not guessed.
func TestALostAnswer(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.refuse("HcnQueryLoadBalancerProperties", serverGone, 1)
		r.set("new", "10.96.0.12", "10.244.2.2")
		r.fails("outcome unknown")
		r.serves("10.96.0.12", "10.244.2.2")
		r.settle()
		r.serves("10.96.0.12", "10.244.2.2")
		if n := len(r.emu.Balancers()); n != 3 {
			r.Errorf("%d load balancers, want 3", n)
		}
		r.unset("new")
		r.sync()
		r.serves("10.96.0.12", "")
	})
}

// HNS makes a load balancer and then cannot show it: that is refused, and is there. When its
// Service goes, an audit finds it.
func TestABalancerThatCannotBeReadBack(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.refuse("HcnQueryLoadBalancerProperties", 0x1f, 1)
		r.set("new", "10.96.0.12", "10.244.2.2")
		r.fails("error 0x1f")
		r.answered() // the next process takes HNS at its word: it may be another program's then
		r.serves("10.96.0.12", "10.244.2.2")
		r.unset("new")
		r.sync()
		r.audit()
		r.settle()
		r.serves("10.96.0.12", "")
		served(r)
	})
}

// The Service goes before HNS can be read again: what was made for it goes, too, though its id
// was never known.
func TestALostAnswerOfAServiceThatGoes(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		before := len(r.emu.Balancers())
		r.refuse("HcnQueryLoadBalancerProperties", serverGone, 1)
		r.set("new", "10.96.0.12", "10.244.2.2")
		r.fails("outcome unknown")
		if n := len(r.emu.Balancers()); n != before+1 {
			r.Fatalf("%d load balancers, want %d: the call was not carried out", n, before+1)
		}
		r.emu.Down(true)
		r.fails("HNS is unavailable") // a reading that fails forgets nothing
		r.unset("new")
		r.emu.Down(false)
		r.settle()
		r.serves("10.96.0.12", "")
		if n := len(r.emu.Balancers()); n != before {
			r.Errorf("%d load balancers, want %d", n, before)
		}
	})
}

func TestHNSIsDownAtTheStart(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.restart()
		r.emu.Down(true)
		if err := r.backend.Adopt(r.Context()); err == nil {
			r.Fatal("adopted an HNS that does not answer")
		}
		if err := r.backend.Remove(r.Context()); err == nil {
			r.Fatal("removed from an HNS that does not answer")
		}
		r.emu.Down(false)
		served(r)
		r.begin()
		served(r)
		r.gaps(0)
	})
}

// Load balancers vanish, all but one, at a restart of HNS (kubernetes#110849).
func TestLoadBalancersVanish(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.emu.Remove(r.balancer("10.96.0.10").ID)
		r.driver.Doubt()
		if yes, _ := r.backend.Disturbed(r.Context()); !yes {
			r.Fatal("not disturbed")
		}
		if drift := r.audit(); drift != 1 {
			r.Errorf("drift: %d", drift)
		}
		served(r)
		if yes, _ := r.backend.Disturbed(r.Context()); yes {
			r.Error("still disturbed")
		}
	})
}

// Windows reports that HNS is another process than before, or was none meanwhile: where it shares
// a process with other services, that stays the same. Then it is read back.
func TestTheServiceIsRestarted(t *testing.T) {
	for _, again := range []uint32{2000, 1000} {
		serviceRestarted(t, again)
	}
}

func serviceRestarted(t *testing.T, again uint32) {
	t.Helper()
	on(t, hnsemu.WS2025, func(r *rig) {
		process := uint32(1000)
		r.settings.Instance = func() (uint32, error) { return process, nil }
		r.restart()
		web(r)
		if yes, _ := r.backend.Disturbed(r.Context()); yes {
			r.Error("disturbed by nothing")
		}
		process = 0 // it is starting
		if yes, _ := r.backend.Disturbed(r.Context()); yes {
			r.Error("disturbed before anything exists")
		}
		process = again
		if yes, _ := r.backend.Disturbed(r.Context()); !yes {
			r.Errorf("not disturbed by process %d", again)
		}
		r.audit()
		if yes, _ := r.backend.Disturbed(r.Context()); yes {
			r.Error("still disturbed")
		}
	})
}

// The network is made again, with another id: pods have new endpoints, load
// balancers and remote endpoints are gone.
func TestTheNetworkIsMadeAnew(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		for _, lb := range r.emu.Balancers() {
			r.emu.Remove(lb.ID)
		}
		r.emu.RemoveNetwork(r.network)
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.2 10.244.2.4")
		r.fails("no longer exists")
		time.Sleep(time.Second)
		r.fails("no l2bridge or overlay network")
		r.network = r.emu.AddNetwork("pods", hns.TypeL2Bridge)
		r.emu.AddPod(r.network, "10.244.1.2")
		r.settle()
		r.serves("10.96.0.10", "10.244.1.2 10.244.2.2 10.244.2.4")
		r.serves("10.96.0.11", "10.244.2.2 10.244.2.3")
	})
}

// An object vanishes while all are listed, so that the list fails as a whole:
// that is not an empty HNS.
func TestAListThatFails(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.restart()
		r.refuse("HcnOpenLoadBalancer", notFound, 2)
		r.begin()
		served(r)
		r.unwritten()
		r.refuse("HcnOpenLoadBalancer", notFound, -1)
		if _, err := r.backend.Audit(r.Context()); err == nil {
			r.Error("an audit that could not read succeeded")
		}
		r.refuse("", 0, 0)
		served(r)
	})
}

func TestAPodVanishesWhileAllAreListed(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.2")
		r.refuse("HcnOpenEndpoint", endpointNotFound, 1) // the first pod
		if err := r.backend.Adopt(r.Context()); err != nil {
			r.Fatal(err)
		}
	})
}

// A call hangs: it is given up, no second one is made, and when HNS lets go of
// it all is read back and goes on.
func TestACallThatHangs(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		release := make(chan struct{})
		r.emu.Hook(func(c *hnsemu.Call) hns.Code {
			if c.Name == "HcnModifyLoadBalancer" {
				<-release
			}
			return 0
		})
		r.set("web", "10.96.0.10", "10.244.1.2")
		start := time.Now()
		_, err := r.backend.Sync(r.Context())
		if !errors.Is(err, ledger.ErrUnknown) || time.Since(start) != 2*time.Minute {
			r.Fatalf("after %v: %v", time.Since(start), err)
		}
		calls := r.emu.Calls()
		time.Sleep(time.Until(r.backend.Next()))
		r.fails("an earlier HNS call has not returned")
		if n := r.emu.Calls(); n != calls {
			r.Errorf("%d calls while one hangs", n-calls)
		}
		close(release)
		time.Sleep(time.Second)
		r.settle()
		r.serves("10.96.0.10", "10.244.1.2")
	})
}

func TestTheEndOfTheContextEndsACommit(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		ctx, cancel := context.WithCancel(r.Context())
		release := make(chan struct{})
		r.emu.Hook(func(c *hnsemu.Call) hns.Code {
			if c.Name == "HcnModifyLoadBalancer" {
				cancel()
				<-release
			}
			return 0
		})
		r.set("web", "10.96.0.10", "10.244.1.2")
		if _, err := r.backend.Sync(ctx); err == nil {
			r.Fatal("no error")
		}
		close(release)
		r.emu.Hook(nil)
		time.Sleep(time.Second)
		r.settle()
		r.serves("10.96.0.10", "10.244.1.2")
	})
}

// HNS is read while a change is made: what it shows of before must not undo what
// is known of after.
func TestAChangeWhileHNSIsRead(t *testing.T) {
	on(t, hnsemu.WS2019, func(r *rig) {
		web(r)
		listed, release := make(chan struct{}), make(chan struct{})
		var old string
		r.emu.Hook(func(c *hnsemu.Call) hns.Code {
			// The list of ids is there, the last object is not read yet.
			if c.Name == "HcnCloseLoadBalancer" && old == "" {
				old = c.ID
				close(listed)
				<-release
			}
			return 0
		})
		done := make(chan error)
		go func() {
			err := r.driver.Observe(r.Context(), func(hns.Key, hns.Value) {})
			done <- err
		}()
		<-listed
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.3")
		r.sync()
		close(release)
		<-done
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.4")
		r.sync()
		r.serves("10.96.0.10", "10.244.1.2 10.244.2.4")
		r.unset("web")
		r.sync()
		r.serves("10.96.0.10", "")
	})
}

// Load balancers cannot be listed while endpoints can: what is known of them
// stays known, and what is not wanted any more goes.
func TestAChangeAfterAListThatFailed(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.refuse("HcnOpenLoadBalancer", notFound, -1)
		if err := r.driver.Observe(r.Context(), func(hns.Key, hns.Value) {}); err == nil {
			r.Fatal("it was read")
		}
		r.unset("web")
		r.sync()
		r.serves("10.96.0.10", "")
	})
}

// The network is made again, and what changes then is a Service that has pods of
// this node only.
func TestTheNetworkIsMadeAnewUnderALocalService(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		r.set("web", "10.96.0.10", "10.244.1.2")
		r.begin()
		for _, lb := range r.emu.Balancers() {
			r.emu.Remove(lb.ID)
		}
		r.emu.RemoveNetwork(r.network)
		r.network = r.emu.AddNetwork("pods", hns.TypeL2Bridge)
		r.emu.AddPod(r.network, "10.244.1.3")
		r.emu.AddPod(r.network, "10.244.1.4")
		r.set("web", "10.96.0.10", "10.244.1.3")
		r.set("api", "10.96.0.11", "10.244.1.4")
		r.backend.Sync(r.Context()) // finds out
		r.settle()
		r.serves("10.96.0.10", "10.244.1.3")
		r.serves("10.96.0.11", "10.244.1.4")
	})
}

// HNS hangs before it has said what it is: the start fails, and says at what.
func TestAStartThatHangs(t *testing.T) {
	for _, hangs := range []string{"HNSCall", "HcnEnumerateNetworks"} {
		on(t, hnsemu.WS2025, func(r *rig) {
			release := make(chan struct{})
			r.emu.Hook(func(c *hnsemu.Call) hns.Code {
				if c.Name == hangs {
					<-release
				}
				return 0
			})
			ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
			defer cancel()
			c, start := config.Default(), time.Now()
			s := r.settings
			s.Journal = ""
			_, err := hns.Open(ctx, r.emu.Client(), &c, s)
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Minute {
				r.Errorf("after %v: %v", time.Since(start), err)
			}
			close(release)
			time.Sleep(time.Second)
		})
	}
}

// A system without HNS is not waited for.
func TestThereIsNoHNS(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		r.refuse("HNSCall", 0x7e, -1)
		c, start := config.Default(), time.Now()
		s := r.settings
		s.Journal = ""
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		defer cancel()
		_, err := hns.Open(ctx, r.emu.Client(), &c, s)
		if !errors.Is(err, dataplane.ErrAbsent) || !strings.Contains(err.Error(), "no HNS") || time.Since(start) > 0 {
			r.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// HNS starts after the proxy, and the network of the pods comes after that.
func TestTheNetworkComesLater(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		r.emu.RemoveNetwork(r.network)
		r.emu.Down(true)
		go func() {
			time.Sleep(10 * time.Second)
			r.emu.Down(false)
			time.Sleep(10 * time.Second)
			r.emu.AddNetwork("pods", hns.TypeL2Bridge)
		}()
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		defer cancel()
		c := config.Default()
		s := r.settings
		s.Journal = ""
		b, err := hns.Open(ctx, r.emu.Client(), &c, s)
		if err != nil {
			r.Fatal(err)
		}
		r.backend.Close()
		r.backend = b
	})
}

// One look states what is missing, at once, and that it may come; a call that hangs is not abandoned, so
// that the next look makes none beside it.
func TestOneLookForTheNetwork(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		s, c := r.settings, config.Default()
		s.Journal, s.Once = "", true
		look := func(why string, took time.Duration) {
			r.Helper()
			start := time.Now()
			b, err := hns.Open(r.Context(), r.emu.Client(), &c, s)
			if b != nil || !errors.Is(err, dataplane.ErrNotReady) || !strings.Contains(err.Error(), why) || time.Since(start) != took {
				r.Fatalf("after %v: %v", time.Since(start), err)
			}
		}
		r.emu.RemoveNetwork(r.network)
		look("no l2bridge or overlay network", 0)
		r.emu.Down(true)
		look("HNS is unavailable", 0)
		r.emu.Down(false)
		release, calls := make(chan struct{}), 0
		r.emu.Hook(func(call *hnsemu.Call) hns.Code {
			if call.Name == "HcnEnumerateNetworks" {
				calls++
				<-release
			}
			return 0
		})
		go func() { time.Sleep(time.Hour); close(release) }()
		look("no l2bridge or overlay network", time.Hour)
		if calls != 1 {
			r.Errorf("%d calls while one hung", calls)
		}
		r.emu.Hook(nil)
		r.network = r.emu.AddNetwork("pods", hns.TypeL2Bridge)
		b, err := hns.Open(r.Context(), r.emu.Client(), &c, s)
		if err != nil {
			r.Fatal(err)
		}
		r.backend.Close()
		r.backend = b
	})
}

// An HNS that is there and does not answer is not absent: auto must not take another
// mode, which would delete its load balancers.
func TestProbeOfAnHNSThatIsDown(t *testing.T) {
	service := func(err error) func() (uint32, error) { return func() (uint32, error) { return 4, err } }
	for _, tt := range []struct {
		name            string
		down, undecided bool
		instance        func() (uint32, error)
	}{
		{"answers", false, false, nil},
		{"stopped", true, true, nil},
		{"service running", true, true, service(nil)},
		{"service manager fails", true, true, service(context.DeadlineExceeded)},
		{"no service", true, false, service(dataplane.ErrAbsent)},
	} {
		on(t, hnsemu.WS2025, func(r *rig) {
			r.emu.Down(tt.down)
			ctx, cancel := context.WithTimeout(r.Context(), 50*time.Millisecond)
			if !tt.down {
				ctx = r.Context()
			}
			defer cancel()
			err := hns.Probe(ctx, r.emu.Client(), hns.Settings{Instance: tt.instance})
			if (err != nil) != tt.down || errors.Is(err, dataplane.ErrUndecided) != tt.undecided {
				r.Errorf("%s: %v", tt.name, err)
			}
		})
	}
}
