// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// A backend that leaves its share to the others is a problem with the reason, whatever it
// is: the specification wants those connections rejected. Where no backend has endpoints
// there are no others, and connections are.
func TestRouteBackendWithoutShare(t *testing.T) {
	far := service()
	far.Name.Name = "far"
	near := resolve.Backend{Service: service(), Granted: true, Slices: []*model.Slice{slice("s", "10.0.0.1@here")}}
	for _, tt := range []struct {
		what    string
		near    resolve.Backend
		far     resolve.Backend
		problem string // of far; empty for none
		rejects bool
	}{
		{"endpoints in both", near, resolve.Backend{Service: far, Granted: true, Slices: []*model.Slice{slice("t", "10.0.0.2@there")}}, "", false},
		{"no endpoints", near, resolve.Backend{Service: far, Granted: true}, "no usable endpoint of IPv4", false},
		{"unready endpoints", near, resolve.Backend{Service: far, Granted: true, Slices: []*model.Slice{slice("t", "10.0.0.2@there/unready")}}, "no usable endpoint of IPv4", false},
		{"no Service", near, resolve.Backend{Granted: true}, "no such Service", false},
		{"no grant", near, resolve.Backend{Service: far}, "no ReferenceGrant", false},
		{"no endpoints anywhere", resolve.Backend{Service: service(), Granted: true}, resolve.Backend{Service: far, Granted: true}, "", true},
	} {
		name := model.RouteName{Proto: model.TCP, Namespace: "ns", Name: "split"}
		route := resolve.Route{
			Route: &model.Route{
				Name: name, Parents: []model.RouteParent{{Service: service().Name.Name}},
				Backends: []model.RouteBackend{{Service: service().Name, Port: 80, Weight: 1}, {Service: far.Name, Port: 80, Weight: 3}},
			},
			Backends: []resolve.Backend{tt.near, tt.far},
		}
		r := resolve.Service(host(), service(), nil, route)
		want := 0
		if tt.problem != "" {
			want = 1
		}
		if len(r.Problems) != want || want == 1 && (r.Problems[0].Why != model.WhyRouteBackend || !strings.Contains(r.Problems[0].Detail, "backend ns/far:80 (tcp): "+tt.problem)) {
			t.Errorf("%s: %v", tt.what, r.Problems)
		}
		if got := r.Ports[0].Frontends[0].On[model.FromPod].Pool == nil; got != tt.rejects {
			t.Errorf("%s: connections are rejected: %t", tt.what, got)
		}
	}
}
