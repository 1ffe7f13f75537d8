// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/test/conformance"
)

// In random worlds, exactly the endpoints of the pools are reported as used, each once,
// and every other one has a reason that its conditions bear out.
func TestEndpointUsesArePolicys(t *testing.T) {
	used, unused := 0, map[string]int{}
	for seed := range uint64(300) {
		w := conformance.RandomWorld(conformance.NewRand(seed))
		for _, svc := range w.Services {
			from := slices.DeleteFunc(slices.Clone(w.Slices), func(s *model.Slice) bool {
				return s.Service != svc.Name.Name || s.Name.Namespace != svc.Name.Namespace
			})
			ports := resolve.Service(w.Host, svc, from).Ports
			pools := map[model.PortID]map[netip.AddrPort]bool{}
			for _, p := range ports {
				pools[p.ID] = map[netip.AddrPort]bool{}
				for _, pool := range p.Pools() {
					for _, e := range pool.Endpoints {
						pools[p.ID][e.Addr] = true
					}
				}
			}
			for _, u := range resolve.EndpointUses(w.Host, from, ports) {
				if u.Used {
					used++
					if !pools[u.Port][u.Addr] {
						t.Fatalf("seed %d: %s: %s is reported as used, once too often", seed, u.Port, u.Addr)
					}
					delete(pools[u.Port], u.Addr)
				} else {
					unused[strings.Split(u.Why, " (")[0]]++
				}
				wrong := u.Why == "" || strings.Contains(u.Why, "not ready") && u.State.Has(model.Ready) ||
					strings.HasPrefix(u.Why, "terminating") && !u.State.Has(model.Terminating)
				if wrong {
					t.Errorf("seed %d: %+v", seed, u)
				}
			}
			for id, left := range pools {
				if len(left) > 0 {
					t.Fatalf("seed %d: %s: in a pool and not reported as used: %v", seed, id, left)
				}
			}
		}
	}
	t.Logf("%d used; unused: %v", used, unused)
	if used < 1000 || len(unused) < 5 {
		t.Error("too little was judged")
	}
}

// Endpoints that failover ejects and those of weight 0 are reported as such, whatever
// the others are.
func TestEndpointUseReasons(t *testing.T) {
	weightless := slice("weightless", "10.0.0.3@there")
	weightless.Weighted = true
	for _, others := range [][]string{
		{"10.0.0.1@here", "10.0.0.2@there"},
		{"10.0.0.1@there", "10.0.0.2@there"},
	} {
		suspects := model.Suspects{addr("10.0.0.2"): {}}
		from := resolve.MarkUnanswered([]*model.Slice{slice("s", others...), weightless}, suspects)
		got := map[string]string{}
		for _, u := range resolve.EndpointUses(host(), from, resolve.Service(host(), service(), from).Ports) {
			if !u.Used {
				got[u.Addr.Addr().String()] = u.Why
			}
		}
		if len(got) != 2 || !strings.Contains(got["10.0.0.2"], "ejected") || !strings.Contains(got["10.0.0.3"], "weight 0") {
			t.Errorf("%v: %v", others, got)
		}
	}
}

// Endpoints of a Service whose port has a route are reported as left to it, whatever the
// conditions of the others are.
func TestEndpointUseBehindARoute(t *testing.T) {
	own := []*model.Slice{slice("s", "10.0.0.1@here", "10.0.0.2@there")}
	route := resolve.Route{
		Route:    &model.Route{Name: model.RouteName{Proto: model.TCP, Namespace: "ns", Name: "split"}, Parents: []model.RouteParent{{Service: service().Name.Name}}},
		Backends: nil,
	}
	for _, u := range resolve.EndpointUses(host(), own, resolve.Service(host(), service(), own, route).Ports) {
		if u.Used || !strings.Contains(u.Why, "TCPRoute ns/split has this port") {
			t.Errorf("%s: used %t, %q", u.Addr, u.Used, u.Why)
		}
	}
}
