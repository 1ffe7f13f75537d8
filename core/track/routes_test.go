// SPDX-License-Identifier: Apache-2.0

package track

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
)

// routed is a tracker with Services a, b and c, one endpoint each.
func routed(t *testing.T) *Tracker {
	t.Helper()
	tr := New()
	tr.SetHost(&model.Host{Name: "node-1"})
	for i, name := range []string{"a", "b", "c"} {
		tr.SetService(&model.Service{
			Name: model.ServiceName{Namespace: "ns", Name: name}, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(i)})},
			Ports: []model.ServicePort{{Proto: model.TCP, Port: 80}},
		})
		tr.SetSlice(endpointsOf(name, i))
	}
	tr.Flush()
	return tr
}

func endpointsOf(name string, number int) *model.Slice {
	return &model.Slice{
		Name: model.SliceName{Namespace: "ns", Name: name}, Service: name, Ports: []model.SlicePort{{Proto: model.TCP, Port: 8080}},
		Endpoints: []model.SliceEndpoint{{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(number)}), Node: "node-2", State: model.Ready | model.Serving}},
	}
}

func routeOf(parent string, backends ...string) *model.Route {
	r := &model.Route{Name: model.RouteName{Proto: model.TCP, Namespace: "ns", Name: "of-" + parent}, Parents: []model.RouteParent{{Service: parent}}}
	for i, b := range backends {
		r.Backends = append(r.Backends, model.RouteBackend{Service: model.ServiceName{Namespace: "ns", Name: b}, Port: 80, Weight: uint32(i + 1)})
	}
	return r
}

// changes reports which Services a flush changed, and to which endpoints.
func changes(tr *Tracker) string {
	var all []string
	for _, d := range tr.Flush() {
		line := d.ID().Service.Name + ":"
		for _, f := range d.New.Frontends[:1] {
			if f.On[0].Pool == nil {
				line += " " + f.On[0].Verdict.String()
				continue
			}
			for i, e := range f.On[0].Pool.Endpoints {
				line += fmt.Sprintf(" %d=%.2f", e.Addr.Addr().As4()[3], f.On[0].Pool.Share(i))
			}
		}
		all = append(all, line)
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// A route touches its parents and nothing else, and so do changes of its backends. Those
// of a parent do not reach what has it as a backend.
func TestRoutesTouchTheirParents(t *testing.T) {
	tr := routed(t)
	is := func(what, want string, resolved uint64) {
		t.Helper()
		before := tr.Stats().Resolved
		if got := changes(tr); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
		if n := tr.Stats().Resolved - before; n != resolved {
			t.Errorf("%s: %d Services were resolved, want %d", what, n, resolved)
		}
	}
	tr.SetRoute(routeOf("a", "b", "c"))
	is("a route", "a: 1=0.33 2=0.67", 1)
	tr.SetSlice(endpointsOf("c", 7))
	is("an endpoint of a backend", "a: 1=0.33 7=0.67; c: 7=1.00", 2)
	tr.SetSlice(endpointsOf("a", 8))
	is("an endpoint of the parent, which nobody uses", "", 1)
	tr.DeleteService(model.ServiceName{Namespace: "ns", Name: "c"})
	before := tr.Flush()
	if len(before) != 2 {
		t.Errorf("a backend is gone: %d changes", len(before))
	}
	if n := len(tr.Service(model.ServiceName{Namespace: "ns", Name: "a"}).Problems); n != 1 {
		t.Errorf("%d problems", n)
	}
	tr.SetRoute(routeOf("a", "a"))
	is("itself", "a: 8=1.00", 1)
	tr.SetRoute(routeOf("b", "a"))
	is("a second route", "b: 8=1.00", 1)
	tr.SetSlice(endpointsOf("b", 9))
	is("an endpoint of what is a parent alone", "", 1)
	tr.DeleteRoute(routeOf("a").Name)
	tr.DeleteRoute(routeOf("b").Name)
	is("no routes", "a: 8=1.00; b: 9=1.00", 2) // of a the reason alone
	if n := len(tr.routes.all) + len(tr.routes.parents) + len(tr.routes.backends); n != 0 {
		t.Errorf("%d entries are left of routes that are gone", n)
	}
}

// Failover probes what connections really reach.
func TestRemoteOfRoute(t *testing.T) {
	tr := routed(t)
	tr.SetRoute(routeOf("a", "b"))
	tr.Flush()
	got := fmt.Sprint(tr.RemoteOf(netip.MustParseAddrPort("10.96.0.0:80"), model.ServiceName{}))
	if !strings.Contains(got, "10.0.0.1:8080") {
		t.Errorf("the endpoints are %s", got)
	}
}

// A suspect among the endpoints of a backend is passed over in the parent's pool.
func TestSuspectBehindRoute(t *testing.T) {
	tr := routed(t)
	two := endpointsOf("b", 1)
	two.Endpoints = append(two.Endpoints, endpointsOf("b", 5).Endpoints...)
	tr.SetSlice(two)
	tr.SetRoute(routeOf("a", "b"))
	tr.Flush()
	tr.SetSuspects(model.Suspects{two.Endpoints[1].Addr: {}})
	if got, want := changes(tr), "a: 1=1.00; b: 1=1.00"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A Service is queued from a change of its inputs until the flush that resolves it.
func TestQueued(t *testing.T) {
	tr := routed(t)
	name := model.ServiceName{Namespace: "ns", Name: "a"}
	for _, change := range []func(){
		func() { tr.SetSlice(endpointsOf("a", 5)) },
		func() { tr.SetRoute(routeOf("a", "b")) },
	} {
		if tr.Service(name).Queued {
			t.Error("queued without a change")
		}
		change()
		if !tr.Service(name).Queued {
			t.Error("not queued after a change")
		}
		tr.Flush()
	}
	if all := tr.Services(); all[0].Queued || all[1].Queued || all[2].Queued {
		t.Errorf("%+v", all)
	}
}
