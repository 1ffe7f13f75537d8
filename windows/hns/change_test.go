// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

func TestAnEndpointJoinsIsReplacedAndLeaves(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.2")
		r.set("other", "10.96.0.11", "10.244.2.2")
		r.begin()
		r.emu.Forget()
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.2 10.244.2.3")
		r.sync()
		r.serves("10.96.0.10", "10.244.1.2 10.244.2.2 10.244.2.3")
		r.gaps(0)
		r.spent(7, 2)
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.2 10.244.2.4")
		r.sync()
		r.gaps(0)
		r.spent(7, 2)
		r.settle() // the one that left lingers, and goes
		r.spent(1, 1)
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.4")
		r.sync()
		r.gaps(0)
		r.spent(4, 1)
		r.settle()
		r.spent(0, 0) // the other Service has it still
		if got := r.remotes(); got != "10.244.2.2 10.244.2.4" {
			r.Errorf("remote endpoints: %s", got)
		}
	})
}

func TestAPodOfThisNodeJoins(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.2")
		r.begin()
		r.emu.AddPod(r.network, "10.244.1.9")
		r.emu.Forget()
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.1.9 10.244.2.2")
		r.sync()
		r.serves("10.96.0.10", "10.244.1.2 10.244.1.9 10.244.2.2")
		r.gaps(0)
		r.spent(8, 1)
	})
}

// An HNS that cannot change load balancers costs one gap, with everything else
// done before it.
func TestOlderHNSReplacesLoadBalancers(t *testing.T) {
	on(t, hnsemu.WS2019, func(r *rig) {
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.2")
		r.begin()
		r.emu.Forget()
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.3")
		r.sync()
		r.serves("10.96.0.10", "10.244.1.2 10.244.2.3")
		r.gaps(1)
		if g := r.emu.Outages()[0]; g.For != 1e6 {
			r.Errorf("the gap was %v: something is done within it", g.For)
		}
		r.spent(7, 3)
	})
}

// While endpoints come and go one by one, an HNS that cannot change load balancers replaces one once a second,
// and where that takes long for a tenth of the time. The last state is always reached, and one
// whose endpoints are all gone does not wait.
func TestReplacementsOfALoadBalancerAreRare(t *testing.T) {
	for _, tt := range []struct {
		call         time.Duration // each deletion and creation takes
		fewest, most int           // gaps in ten seconds
		late         time.Duration // until the last change is there, at most
	}{
		{0, 10, 11, time.Second},
		{100 * time.Millisecond, 4, 6, 2200 * time.Millisecond},
		{time.Second, 1, 2, 7 * time.Second},
	} {
		on(t, hnsemu.WS2022, func(r *rig) {
			r.settings.Pause = time.Second
			r.restart()
			r.set("web", "10.96.0.10", "10.244.1.2 10.244.1.3")
			r.set("gone", "10.96.0.11", "10.244.1.3")
			r.begin()
			r.emu.Cost(func(c hnsemu.Call) time.Duration {
				if c.Name == "HcnCreateLoadBalancer" || c.Name == "HcnDeleteLoadBalancer" {
					return tt.call
				}
				return 0
			})
			r.emu.Wait(true)
			r.emu.Forget()
			for begun, i := time.Now(), 0; time.Since(begun) < 10*time.Second; i++ {
				r.set("web", "10.96.0.10", []string{"10.244.1.2", "10.244.1.2 10.244.1.3"}[i%2])
				r.sync()
				time.Sleep(100 * time.Millisecond)
			}
			if n := len(r.emu.Outages()); n < tt.fewest || n > tt.most {
				r.Errorf("%v a call: %d gaps in ten seconds, want %d to %d", tt.call, n, tt.fewest, tt.most)
			}
			if f := r.backend.Health().Failures; len(f) > 0 {
				r.Errorf("to wait is no failure: %v", f)
			}
			begun := time.Now()
			for i, at := range []string{"10.244.1.2", "10.244.1.3"} { // of each nothing is left that was there
				r.set("gone", "10.96.0.11", at)
				r.sync()
				if r.serves("10.96.0.11", at); time.Since(begun) > time.Duration(i+2)*3*tt.call {
					r.Errorf("%v a call: no endpoint is left, and it waits", tt.call)
				}
			}
			r.set("web", "10.96.0.10", "10.244.1.3 10.244.1.2 10.244.2.9")
			for r.served("10.96.0.10") != "10.244.1.2 10.244.1.3 10.244.2.9" && time.Since(begun) < time.Minute {
				r.sync()
				time.Sleep(100 * time.Millisecond)
			}
			if took := time.Since(begun); took > tt.late+6*tt.call {
				r.Errorf("%v a call: the last change took %v", tt.call, took)
			}
		})
	}
}

func TestNothingChangedCostsNothing(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.2")
		r.begin()
		r.emu.Forget()
		for range 10 {
			r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.2")
			r.sync()
			if yes, err := r.backend.Disturbed(r.Context()); yes || err != nil {
				r.Fatalf("disturbed: %t, %v", yes, err)
			}
		}
		r.spent(0, 0)
	})
}

func TestNamesComeFirst(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		for i := range 20 {
			r.set(fmt.Sprint("a", i), fmt.Sprint("10.96.0.", 100+i), fmt.Sprint("10.244.2.", 100+i))
		}
		r.set("kube-dns", "10.96.0.10", "10.244.2.2 10.244.2.3")
		r.begin()
		var creates int
		for _, c := range r.emu.Log() {
			if c.Name == "HcnCreateLoadBalancer" && strings.Contains(c.Text, `"10.96.0.10"`) {
				break
			}
			if c.Verb == hnsemu.Create {
				creates++
			}
		}
		if creates != 2 {
			r.Errorf("%d objects were made before the load balancer of DNS, want its 2 endpoints", creates)
		}
	})
}

func TestAServiceWithoutEndpointsHasNoLoadBalancer(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		r.set("web", "10.96.0.10", "10.244.2.2")
		r.begin()
		r.set("web", "10.96.0.10", "")
		r.sync()
		r.serves("10.96.0.10", "")
		if g := r.backend.Gaps(r.ports["web"].ID); len(g) != 1 {
			r.Errorf("gaps: %v", g)
		}
		r.set("web", "10.96.0.10", "10.244.2.2")
		r.emu.Forget()
		r.sync() // the endpoint lingered
		r.serves("10.96.0.10", "10.244.2.2")
		r.spent(3, 1)
	})
}

// The address of the node changes: where that is the source of connections,
// load balancers follow.
func TestTheNodesAddressChanges(t *testing.T) {
	on(t, hnsemu.WS2019, func(r *rig) {
		r.set("web", "10.96.0.10", "10.244.2.2")
		r.begin()
		host := *r.host
		host.IPs = []netip.Addr{netip.MustParseAddr("192.0.2.9")}
		r.backend.SetHost(&host)
		r.sync()
		if got := r.balancer("10.96.0.10").SourceVIP; got != "192.0.2.9" {
			r.Errorf("the source VIP is %s", got)
		}
		r.serves("10.96.0.10", "10.244.2.2")
		if drift := r.audit(); drift != 0 {
			r.Errorf("drift: %d", drift)
		}
	})
}

// One Service that HNS refuses delays no other.
func TestABadServiceDelaysNoOther(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		r.set("bad", "10.96.0.10", "10.244.2.2")
		r.set("good", "10.96.0.11", "10.244.2.3")
		bad := true
		r.emu.Hook(func(c *hnsemu.Call) hns.Code {
			if bad && c.Name == "HcnCreateLoadBalancer" && strings.Contains(c.Text, "10.96.0.10") {
				return 0x803b0007
			}
			return 0
		})
		if err := r.backend.Adopt(r.Context()); err != nil {
			r.Fatal(err)
		}
		r.backend.SetHost(r.host)
		r.backend.Update([]model.Delta{{New: r.ports["bad"]}, {New: r.ports["good"]}})
		r.fails("default/bad")
		r.serves("10.96.0.11", "10.244.2.3")
		if f := r.backend.Health().Failures; len(f) != 1 || f[r.ports["bad"].ID] == nil {
			r.Errorf("failures: %v", f)
		}
		bad = false
		r.settle()
		r.serves("10.96.0.10", "10.244.2.2")
	})
}
