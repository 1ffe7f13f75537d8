// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"slices"
	"testing"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// refuse lets calls of a function fail, so many times.
func (r *rig) refuse(name string, code hns.Code, times int) {
	r.emu.Hook(func(c *hnsemu.Call) hns.Code {
		if c.Name != name || times == 0 {
			return 0
		}
		times--
		return code
	})
}

const (
	serverGone       hns.Code = 0x6ba
	notImplemented   hns.Code = 0x80004001
	endpointNotFound hns.Code = 0x803b0002
	notFound         hns.Code = 0x490
)

func TestModifyThatDoesNothing(t *testing.T) {
	on(t, hnsemu.WS2025RT, func(r *rig) { // our gate: not even tried
		web(r)
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.3")
		r.sync()
		r.serves("10.96.0.10", "10.244.1.2 10.244.2.3")
		if n := r.emu.Calls("HcnModifyLoadBalancer"); n != 0 {
			r.Errorf("Modify was called %d times", n)
		}
	})
	on(t, hnsemu.WS2025RT, func(r *rig) { // an HNS that has the fault and says it is newer
		r.version = hnsemu.WS2025
		r.restart()
		web(r)
		for _, last := range []string{"10.244.2.3", "10.244.2.4"} {
			r.set("web", "10.96.0.10", "10.244.1.2 "+last)
			r.sync()
			r.serves("10.96.0.10", "10.244.1.2 "+last)
		}
		if n := r.emu.Calls("HcnModifyLoadBalancer"); n != 1 {
			r.Errorf("Modify was called %d times, want 1", n)
		}
	})
}

func TestModifyThatIsNotImplemented(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.refuse("HcnModifyLoadBalancer", notImplemented, -1)
		for _, last := range []string{"10.244.2.3", "10.244.2.4"} {
			r.set("web", "10.96.0.10", "10.244.1.2 "+last)
			r.sync()
			r.serves("10.96.0.10", "10.244.1.2 "+last)
		}
		if n := r.emu.Calls("HcnModifyLoadBalancer"); n != 1 {
			r.Errorf("Modify was called %d times, want 1", n)
		}
		if all := r.driver.BalancerFailures(); len(all) > 0 {
			r.Errorf("what is replaced has not failed, and is counted: %v", all)
		}
	})
}

// HNS has a load balancer that was not there when it was read (kubernetes#139519).
func TestALoadBalancerThatTurnsUp(t *testing.T) {
	for _, code := range []hns.Code{0, 0xb7, 0x1392, 0x803b0012} {
		on(t, hnsemu.WS2025, func(r *rig) {
			r.emu.Behave(hnsemu.Behaviour{Exists: code})
			web(r)
			lb := r.balancer("10.96.0.11")
			lb.FrontendVIPs = []string{"10.96.0.12"}
			r.emu.AddBalancer(lb, false)
			lb.FrontendVIPs = []string{"10.96.0.13"}
			r.emu.AddBalancer(lb, false)
			r.set("same", "10.96.0.12", "10.244.2.2 10.244.2.3")
			r.set("differs", "10.96.0.13", "10.244.2.2")
			r.sync()
			r.serves("10.96.0.12", "10.244.2.2 10.244.2.3")
			r.serves("10.96.0.13", "10.244.2.2")
			r.gaps(0)
			if n := r.emu.Calls("HcnEnumerateLoadBalancers"); n != 1 {
				r.Errorf("listed %d times", n)
			}
		})
	}
}

// Windows Server 2019 refuses the first deletion of a load balancer.
func TestADeletionThatFailsOnce(t *testing.T) {
	on(t, hnsemu.WS2019, func(r *rig) {
		r.emu.Behave(hnsemu.Behaviour{DeleteFailsOnce: true})
		web(r)
		r.set("web", "10.96.0.10", "10.244.2.3")
		r.sync()
		r.serves("10.96.0.10", "10.244.2.3")
		r.unset("web")
		r.sync()
		r.serves("10.96.0.10", "")
	})
}

// A deletion that goes on failing leaves the Service unchanged.
func TestADeletionThatFails(t *testing.T) {
	on(t, hnsemu.WS2019, func(r *rig) {
		web(r)
		r.refuse("HcnDeleteLoadBalancer", 0x1f, 6)
		r.set("web", "10.96.0.10", "10.244.2.3")
		r.fails("default/web")
		r.serves("10.96.0.10", "10.244.1.2 10.244.2.2")
		r.settle()
		r.serves("10.96.0.10", "10.244.2.3")
	})
}

// Builds of Windows with a certain feature refuse deletions as if an address was wrong
// (wcnscripts, stale-lb-dsr-rules): the error states what helps, and what is there serves.
func TestADeletionThatABuildRefuses(t *testing.T) {
	on(t, hnsemu.WS2022, func(r *rig) {
		web(r)
		r.refuse("HcnDeleteLoadBalancer", 0x803b001e, -1)
		r.set("web", "10.96.0.10", "10.244.2.3")
		r.fails("140377743")
		served(r)
	})
}

// After its deletion a load balancer cannot be made again for a while.
func TestACreationThatFailsAfterTheDeletion(t *testing.T) {
	on(t, hnsemu.WS2019, func(r *rig) {
		web(r)
		r.refuse("HcnCreateLoadBalancer", 0x803b0007, 3)
		r.set("web", "10.96.0.10", "10.244.2.3")
		r.fails("default/web")
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.2") // back to what was: it is not there any more
		r.fails("default/web")
		r.settle()
		served(r)
	})
}

// HNS reports that an endpoint is deleted, and it stays (Windows-Containers#631).
func TestADeletionThatIsALie(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.emu.Behave(hnsemu.Behaviour{DeleteLies: true})
		r.unset("web")
		r.unset("api")
		r.sync()
		r.settle()
		r.emu.Behave(hnsemu.Behaviour{})
		if drift := r.audit(); drift == 0 {
			r.Error("not noticed")
		}
		r.settle()
		if got := r.remotes(); got != "" {
			r.Errorf("left: %s", got)
		}
	})
}

func TestALoadBalancerIsEdited(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.emu.Change(r.balancer("10.96.0.10").ID, func(lb *hns.LoadBalancer) {
			lb.HostComputeEndpoints, lb.SourceVIP = lb.HostComputeEndpoints[:1], "10.0.0.9"
		})
		if drift := r.audit(); drift != 1 {
			r.Errorf("drift: %d", drift)
		}
		served(r)
		if got := r.balancer("10.96.0.10").SourceVIP; got != "" {
			r.Errorf("source VIP %s", got)
		}
	})
}

// Calls that fail are counted by what they were about and why, for kube-proxy's metrics: the words
// are those of its classifyLBError.
func TestFailuresAreCounted(t *testing.T) {
	for code, why := range map[hns.Code]string{
		0x1f: "other", 0x803b0001: "network_not_found", 0x803b0013: "port_already_exists", 0x803b001e: "invalid_ip", 0x80004001: "not_implemented",
	} {
		on(t, hnsemu.WS2019, func(r *rig) {
			web(r)
			r.refuse("HcnDeleteLoadBalancer", code, 6)
			r.set("web", "10.96.0.10", "10.244.2.3")
			if _, err := r.backend.Sync(r.Context()); err == nil {
				r.Errorf("0x%x: nothing fails", uint32(code))
			}
			want := dataplane.BalancerFailure{Verb: "delete", Family: model.IPv4, Type: "clusterip", Error: why}
			if all := r.driver.BalancerFailures(); len(all) != 1 || all[want] == 0 {
				r.Errorf("0x%x: counted %v", uint32(code), all)
			}
		})
	}
}

// The forwarded health check of a VIP is told apart from its Service's load balancers, and from those of
// cluster IPs, also by a process that has found it there.
func TestFailuresOfHealthChecksAreCounted(t *testing.T) {
	on(t, hnsemu.WS2019, func(r *rig) {
		r.forwards()
		lb := public("http", "203.0.113.1:80", "10.244.2.2:8080", 0)
		web(r)
		counted := func(want ...string) {
			r.Helper()
			var got []string
			for f := range r.driver.BalancerFailures() {
				got = append(got, f.Verb+" "+f.Type)
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				r.Errorf("counted: %q, want %q", got, want)
			}
		}
		r.refuse("HcnCreateLoadBalancer", 0x1f, -1)
		r.backend.Update([]model.Delta{{New: lb}})
		r.fails("error 0x1f")
		counted("create externalip", "create healthcheck")
		r.emu.Hook(nil)
		r.settle()
		r.ports["lb"] = lb
		r.restart()
		r.begin()
		counted()
		r.refuse("HcnDeleteLoadBalancer", 0x1f, -1)
		r.unset("lb")
		r.fails("error 0x1f")
		counted("delete externalip", "delete healthcheck")
	})
}

// A load balancer that another program has deleted meanwhile is gone, whichever code says so:
// the second one is that of a policy (HCN_E_POLICY_NOT_FOUND), assumed of some builds.
func TestALoadBalancerThatIsGoneAlready(t *testing.T) {
	for _, code := range []hns.Code{notFound, 0x803b0008} {
		for _, v := range []hns.Version{hnsemu.WS2019, hnsemu.WS2025} {
			on(t, v, func(r *rig) {
				web(r)
				gone := map[string]bool{r.balancer("10.96.0.10").ID: true, r.balancer("10.96.0.11").ID: true}
				for id := range gone {
					r.emu.Remove(id)
				}
				r.emu.Hook(func(c *hnsemu.Call) hns.Code {
					if c.Kind == hnsemu.LoadBalancer && gone[c.ID] && (c.Verb == hnsemu.Delete || c.Verb == hnsemu.Open) {
						return code
					}
					return 0
				})
				r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.3")
				r.unset("api")
				r.sync()
				r.serves("10.96.0.10", "10.244.1.2 10.244.2.3")
				r.serves("10.96.0.11", "")
				r.answered()
			})
		}
	}
}
