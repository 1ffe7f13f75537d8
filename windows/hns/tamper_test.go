// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// tampering is a way to break what tandem has in HNS. An audit must name the object by its
// address.
type tampering struct {
	do    func(*rig)
	names string
}

func tamperings() map[string]tampering {
	const vip = "10.96.0.10"
	change := func(f func(*hns.LoadBalancer)) func(*rig) {
		return func(r *rig) { r.emu.Change(r.balancer(vip).ID, f) }
	}
	return map[string]tampering{
		"a load balancer deleted":                 {func(r *rig) { r.emu.Remove(r.balancer(vip).ID) }, vip},
		"all load balancers deleted":              {func(r *rig) { r.emu.Remove(r.balancer(vip).ID, r.balancer("10.96.0.11").ID) }, "10.96.0.11"},
		"a load balancer that has lost its rules": {func(r *rig) { r.emu.Degrade(r.balancer(vip).ID, hns.StateDegraded) }, vip},
		"a load balancer without an endpoint":     {change(func(lb *hns.LoadBalancer) { lb.HostComputeEndpoints = lb.HostComputeEndpoints[:1] }), vip},
		"a load balancer without any endpoint":    {change(func(lb *hns.LoadBalancer) { lb.HostComputeEndpoints = nil }), vip},
		"a load balancer with an endpoint of another": {func(r *rig) {
			id := r.at("10.244.2.3").ID
			change(func(lb *hns.LoadBalancer) { lb.HostComputeEndpoints[0] = id })(r)
		}, vip},
		"a load balancer at another address":        {change(func(lb *hns.LoadBalancer) { lb.FrontendVIPs = []string{"10.96.0.99"} }), vip},
		"a load balancer at another port":           {change(func(lb *hns.LoadBalancer) { lb.PortMappings[0].ExternalPort = 81 }), vip},
		"a load balancer to another port":           {change(func(lb *hns.LoadBalancer) { lb.PortMappings[0].InternalPort = 9 }), vip},
		"a load balancer at the address of another": {change(func(lb *hns.LoadBalancer) { lb.FrontendVIPs = []string{"10.96.0.11"} }), "surplus load balancer 10.96.0.11:80"},
		"a lost load balancer found again": {func(r *rig) {
			lost := r.balancer(vip)
			r.emu.Remove(lost.ID)
			for _, endpoints := range []string{"10.244.2.2", "10.244.1.2 10.244.2.2"} { // makes another one
				r.set("web", vip, endpoints)
				r.sync()
			}
			r.emu.Change(lost.ID, func(lb *hns.LoadBalancer) { *lb = lost })
		}, "surplus load balancer 10.96.0.10:80"},
		"a load balancer at two addresses":      {change(func(lb *hns.LoadBalancer) { lb.FrontendVIPs = append(lb.FrontendVIPs, "10.96.0.99") }), "surplus load balancer 10.96.0.10:80"},
		"a load balancer of two Services":       {change(func(lb *hns.LoadBalancer) { lb.FrontendVIPs = append(lb.FrontendVIPs, "10.96.0.11") }), "surplus load balancer 10.96.0.10:80"},
		"a load balancer without port mappings": {change(func(lb *hns.LoadBalancer) { lb.PortMappings = nil }), "surplus load balancer 10.96.0.10 without a frontend"},
		"a load balancer of another protocol":   {change(func(lb *hns.LoadBalancer) { lb.PortMappings[0].Protocol = 17 }), vip},
		"the network made anew under another name": {func(r *rig) {
			for _, lb := range r.emu.Balancers() {
				r.emu.Remove(lb.ID)
			}
			r.emu.RemoveNetwork(r.network)
			r.network = r.emu.AddNetwork("renamed", hns.TypeL2Bridge)
			r.emu.AddPod(r.network, "10.244.1.2")
		}, vip},
		"a remote endpoint deleted":  {func(r *rig) { r.emu.Remove(r.at("10.244.2.2").ID) }, "10.244.2.2"},
		"a remote endpoint degraded": {func(r *rig) { r.emu.SetEndpointState(r.at("10.244.2.2").ID, hns.EndpointDegraded) }, "10.244.2.2"},
	}
}

// Every kind of tampering is drift that names its object, is repaired, and is no drift
// then.
func TestTamperingIsNamed(t *testing.T) {
	for what, k := range tamperings() {
		t.Run(what, func(t *testing.T) {
			on(t, hnsemu.WS2022, func(r *rig) {
				web(r)
				if drift := r.audit(); drift != 0 {
					r.Fatalf("before: drift %d", drift)
				}
				k.do(r)
				drift, err := r.backend.Audit(r.Context())
				if err != nil || drift == 0 {
					r.Fatalf("drift: %d, %v", drift, err)
				}
				var said []string
				for _, d := range r.backend.Drifted() {
					said = append(said, fmt.Sprintf("%s %s: %s, not %s", d.State, d.Object, d.Found, d.Wanted))
				}
				if !slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, k.names) }) {
					r.Errorf("not named (%s): %q", k.names, said)
				}
				r.sync()
				r.settle()
				served(r)
				if drift := r.audit(); drift != 0 {
					r.Errorf("after the repair: drift %d", drift)
				}
				if n := len(r.emu.Balancers()); n != 2 {
					r.Errorf("%d load balancers after the repair, not one for each Service", n)
				}
			})
		})
	}
}
