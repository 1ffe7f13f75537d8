// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// A pod is in its slice before its CNI plug-in has made the endpoint.
func TestAPodThatIsLate(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.1.8 10.244.2.2")
		r.fails("10.244.1.8")
		r.serves("10.96.0.10", "10.244.1.2 10.244.2.2")
		r.set("new", "10.96.0.12", "10.244.1.8 10.244.1.3")
		r.fails("10.244.1.8")
		r.serves("10.96.0.12", "10.244.1.3")
		r.emu.AddPod(r.network, "10.244.1.8")
		r.settle()
		r.serves("10.96.0.10", "10.244.1.2 10.244.1.8 10.244.2.2")
		r.serves("10.96.0.12", "10.244.1.3 10.244.1.8")
	})
}

// What was made in part belongs to its Service, and is deleted with it.
func TestALatePodsServiceIsDeleted(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.set("new", "10.96.0.12", "10.244.1.8 10.244.1.3")
		r.fails("10.244.1.8")
		r.unset("new")
		r.sync()
		r.serves("10.96.0.12", "")
		r.settle()
	})
}

func TestNoneOfThePodsIsThereYet(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.set("new", "10.96.0.12", "10.244.1.8")
		r.fails("none of the endpoints is in HNS")
		r.serves("10.96.0.12", "")
		r.set("web", "10.96.0.10", "10.244.1.8") // the old ones are better than none
		r.fails("none of the endpoints is in HNS")
		r.serves("10.96.0.10", "10.244.1.2 10.244.2.2")
		r.emu.AddPod(r.network, "10.244.1.8")
		r.settle()
		r.serves("10.96.0.12", "10.244.1.8")
		r.serves("10.96.0.10", "10.244.1.8")
	})
}

// A new pod of this node gets the address of one that was on another node: load
// balancers follow, and the remote endpoint does not stay beside the pod's
// (kubernetes#130963).
func TestARemoteAddressBecomesLocal(t *testing.T) {
	for _, inUse := range []bool{false, true} {
		on(t, hnsemu.WS2025, func(r *rig) {
			r.emu.Behave(hnsemu.Behaviour{DeleteInUse: inUse})
			r.set("web", "10.96.0.10", "10.244.2.2")
			r.ports["api"] = port("api", "10.96.0.11", "10.244.2.2")
			r.begin()
			pod := r.emu.AddPod(r.network, "10.244.2.2")
			local := port("web", "10.96.0.10", "10.244.2.2")
			local.Frontends[0].On[0].Pool.Endpoints[0].Local = true
			r.replace("web", local)
			r.sync()
			if got := r.balancer("10.96.0.10").HostComputeEndpoints; len(got) != 1 || got[0] != pod {
				r.Errorf("web is balanced over %v, want the pod's %s", got, pod)
			}
			r.sound() // the other still needs the remote one
			local = port("api", "10.96.0.11", "10.244.2.2")
			local.Frontends[0].On[0].Pool.Endpoints[0].Local = true
			r.replace("api", local)
			r.sync()
			if got := r.remotes(); got != "" {
				r.Errorf("the remote endpoint %s stays beside the pod's", got)
			}
			r.settle()
			if got := r.balancer("10.96.0.11").HostComputeEndpoints; len(got) != 1 || got[0] != pod {
				r.Errorf("api is balanced over %v, want the pod's %s", got, pod)
			}
		})
	}
}

// HNS loses the connection while it deletes the remote endpoint beside a new pod: nothing more
// is written before HNS was read.
func TestALostAnswerAboutARemoteEndpoint(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		r.set("web", "10.96.0.10", "10.244.2.2")
		r.begin()
		r.emu.AddPod(r.network, "10.244.2.2")
		local := port("web", "10.96.0.10", "10.244.2.2")
		local.Frontends[0].On[0].Pool.Endpoints[0].Local = true
		r.replace("web", local)
		r.refuse("HcnDeleteEndpoint", serverGone, 1)
		r.fails("outcome unknown")
		r.settle()
		if got := r.remotes(); got != "" {
			r.Errorf("the remote endpoint %s stays beside the pod's", got)
		}
	})
}

// A pod of this node goes, and its address comes up on another node.
func TestALocalAddressBecomesRemote(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		pod := r.emu.AddPod(r.network, "10.244.1.8")
		r.set("web", "10.96.0.10", "10.244.1.8 10.244.2.2")
		r.begin()
		r.set("web", "10.96.0.10", "10.244.2.2")
		r.sync()
		r.emu.Remove(pod)
		remote := port("web", "10.96.0.10", "10.244.1.8 10.244.2.2")
		remote.Frontends[0].On[0].Pool.Endpoints[0].Local = false
		r.replace("web", remote)
		r.sync()
		r.serves("10.96.0.10", "10.244.1.8 10.244.2.2")
		if got := r.remotes(); got != "10.244.1.8 10.244.2.2" {
			r.Errorf("remote endpoints: %s", got)
		}
	})
}

// HNS refuses one endpoint: its Service has the others.
func TestAnEndpointThatIsRefused(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		refuse := true
		r.emu.Hook(func(c *hnsemu.Call) hns.Code {
			if refuse && c.Name == "HcnCreateEndpoint" && strings.Contains(c.Text, "10.244.2.9") {
				return 0x803b002f
			}
			return 0
		})
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.9")
		r.fails("10.244.2.9")
		r.serves("10.96.0.10", "10.244.1.2")
		refuse = false
		r.settle()
		r.serves("10.96.0.10", "10.244.1.2 10.244.2.9")
	})
}

// Another program has deleted a remote endpoint; the next change of a Service finds out.
func TestARemoteEndpointIsDeleted(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		for _, e := range r.emu.Endpoints() {
			if e.Name == "tandem_10.244.2.3" {
				r.emu.Remove(e.ID)
			}
		}
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.3")
		r.sync()
		r.serves("10.96.0.10", "10.244.1.2 10.244.2.3")
		r.audit()
		r.settle()
		served2 := r.served("10.96.0.11")
		if served2 != "10.244.2.2 10.244.2.3" {
			r.Errorf("the other Service has %s", served2)
		}
	})
}

// A slice gives addresses of this node's own pods another node: no remote endpoint is made there,
// since the next pod with such an address would have no network until an audit. Where a pod has it
// the Service has that; where none does that is reported. Either range alone proves nothing.
func TestAnotherNodeInThisNodesRange(t *testing.T) {
	pods, wide := netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("10.244.0.0/16")
	for _, tt := range []struct {
		network, node netip.Prefix
		ours          bool
	}{{pods, pods, true}, {wide, pods, true}, {pods, wide, true}, {netip.Prefix{}, pods, false}, {pods, netip.Prefix{}, false}} {
		on(t, hnsemu.WS2025, func(r *rig) {
			r.options.Subnets[model.IPv4] = tt.network
			r.host.PodCIDRs = []netip.Prefix{tt.node}
			r.restart()
			p := port("web", "10.96.0.10", "10.244.1.2 10.244.1.60 10.244.2.2")
			for i := range p.Frontends[0].On[0].Pool.Endpoints {
				p.Frontends[0].On[0].Pool.Endpoints[i].Local = false
			}
			r.ports["web"] = p
			if !tt.ours {
				r.begin()
				if got := r.remotes(); got != "10.244.1.60 10.244.2.2" {
					r.Errorf("remote endpoints %s", got)
				}
				return
			}
			if err := r.backend.Adopt(r.Context()); err != nil {
				r.Fatal(err)
			}
			r.backend.SetHost(r.host)
			r.backend.Update([]model.Delta{{New: p}})
			r.fails("not in HNS yet, and left out: 10.244.1.60")
			r.serves("10.96.0.10", "10.244.1.2 10.244.2.2")
			if got := r.remotes(); got != "10.244.2.2" {
				r.Errorf("remote endpoints %s", got)
			}
			r.emu.AddPod(r.network, "10.244.1.60")
			r.settle()
			r.serves("10.96.0.10", "10.244.1.2 10.244.1.60 10.244.2.2")
		})
	}
}
