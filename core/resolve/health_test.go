// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"net/netip"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// Load balancers get the number of distinct ready addresses on this node, over all
// ports, and only where a Service of type LoadBalancer has policy Local.
func TestHealthPort(t *testing.T) {
	const number = 32080
	for _, test := range []struct {
		name    string
		kind    model.ServiceType
		policy  model.TrafficPolicy
		slices  []*model.Slice
		port    uint16
		v4, v6  int
		wantFor int // ports that carry it
	}{
		{"none", model.LoadBalancer, model.Local, nil, number, 0, 0, 4},
		{"local and remote", model.LoadBalancer, model.Local, []*model.Slice{slice("s", "10.0.0.1@here", "10.0.0.2@there", "10.0.0.3")}, number, 1, 0, 4},
		{"both families", model.LoadBalancer, model.Local, []*model.Slice{slice("s", "10.0.0.1@here", "10.0.0.4@here"), slice("t", "fd00::1@here")}, number, 2, 1, 4},
		{"one address in two slices", model.LoadBalancer, model.Local, []*model.Slice{slice("s", "10.0.0.1@here"), slice("t", "10.0.0.1@here")}, number, 1, 0, 4},
		{"terminating only", model.LoadBalancer, model.Local, []*model.Slice{slice("s", "10.0.0.1@here/terminating")}, number, 0, 0, 4},
		{"policy Cluster", model.LoadBalancer, model.Cluster, []*model.Slice{slice("s", "10.0.0.1@here")}, 0, 0, 0, 0},
		{"no load balancer", model.NodePort, model.Local, []*model.Slice{slice("s", "10.0.0.1@here")}, 0, 0, 0, 0},
	} {
		svc := service()
		svc.ClusterIPs = []netip.Addr{addr("10.96.0.1"), addr("fd00:96::1")}
		svc.Type, svc.External, svc.HealthCheckNodePort = test.kind, test.policy, number
		second := svc.Ports[0]
		second.Name, second.Port, second.NodePort = "second", 81, 30081
		svc.Ports = append(svc.Ports, second)
		for _, s := range test.slices {
			s.Family = model.FamilyOf(s.Endpoints[0].Addr)
			s.Ports = append(s.Ports, model.SlicePort{Name: "second", Proto: second.Proto, Port: 9090})
		}
		r := resolve.Service(host(), svc, test.slices)
		if len(r.Problems) > 0 {
			t.Errorf("%s: %v", test.name, r.Problems)
		}
		carry := 0
		for _, p := range r.Ports {
			want := test.v4
			if p.ID.Family == model.IPv6 {
				want = test.v6
			}
			if p.HealthPort != test.port || p.LocalReady != want {
				t.Errorf("%s: %v %s: port %d with %d, want %d with %d", test.name, p.ID, p.ID.Family, p.HealthPort, p.LocalReady, test.port, want)
			}
			if p.HealthPort != 0 {
				carry++
			}
		}
		if carry != test.wantFor {
			t.Errorf("%s: %d ports carry it, want %d", test.name, carry, test.wantFor)
		}
	}
}
