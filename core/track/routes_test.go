// SPDX-License-Identifier: Apache-2.0

package track

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// routed is a tracker with Services a, b and c, one endpoint each.
func routed(t *testing.T) *Tracker {
	t.Helper()
	tr := New()
	tr.SetHost(&model.Host{Name: "node-1"})
	for i, name := range []string{"a", "b", "c"} {
		tr.Set(serviceOf(name, byte(i)))
		tr.Set(endpointsOf(name, i))
	}
	tr.Flush()
	return tr
}

func serviceOf(name string, number byte) *model.Service {
	return &model.Service{
		Name: model.ServiceName{Namespace: "ns", Name: name}, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, number})},
		Ports: []model.ServicePort{{Proto: model.TCP, Port: 80}},
	}
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
	tr.Set(routeOf("a", "b", "c"))
	is("a route", "a: 1=0.33 2=0.67", 1)
	tr.Set(endpointsOf("c", 7))
	is("an endpoint of a backend", "a: 1=0.33 7=0.67; c: 7=1.00", 2)
	tr.Set(endpointsOf("a", 8))
	is("an endpoint of the parent, which nobody uses", "", 1)
	tr.Delete(&model.Service{Name: model.ServiceName{Namespace: "ns", Name: "c"}})
	before := tr.Flush()
	if len(before) != 2 {
		t.Errorf("a backend is gone: %d changes", len(before))
	}
	if n := len(tr.Service(model.ServiceName{Namespace: "ns", Name: "a"}).Problems); n != 1 {
		t.Errorf("%d problems", n)
	}
	tr.Set(routeOf("a", "a"))
	is("itself", "a: 8=1.00", 1)
	tr.Set(routeOf("b", "a"))
	is("a second route", "b: 8=1.00", 1)
	tr.Set(endpointsOf("b", 9))
	is("an endpoint of what is a parent alone", "", 1)
	tr.Delete(routeOf("a"))
	tr.Delete(routeOf("b"))
	is("no routes", "a: 8=1.00; b: 9=1.00", 2) // of a the reason alone
	if n := len(tr.routes.all) + len(tr.routes.parents) + len(tr.routes.backends); n != 0 {
		t.Errorf("%d entries are left of routes that are gone", n)
	}
}

// A change of a Service costs the parents of 32 routes at most that have it as a backend:
// those of the others, which are younger, do not get it until one of them goes.
func TestMostRoutesOfABackend(t *testing.T) {
	tr := routed(t)
	named := func(i int) *model.Route {
		parent := fmt.Sprintf("p%02d", i)
		tr.Set(serviceOf(parent, byte(100+i)))
		return routeOf(parent, "c")
	}
	for i := range resolve.MaxRoutesOf + 1 {
		tr.Set(named(resolve.MaxRoutesOf - i)) // the youngest by name first
	}
	tr.Flush()
	before := tr.Stats().Resolved
	tr.Set(endpointsOf("c", 7))
	if got := strings.Count(changes(tr), "7=1.00"); got != resolve.MaxRoutesOf+1 {
		t.Errorf("%d Services have the new endpoint, want its own and those of %d routes", got, resolve.MaxRoutesOf)
	}
	if n := tr.Stats().Resolved - before; n != resolve.MaxRoutesOf+1 {
		t.Errorf("%d Services were resolved", n)
	}
	last := model.ServiceName{Namespace: "ns", Name: fmt.Sprintf("p%02d", resolve.MaxRoutesOf)}
	if all := tr.Service(last).Problems; len(all) != 1 || !strings.Contains(all[0].Detail, fmt.Sprintf("at most %d routes with %d parentRefs", resolve.MaxRoutesOf, resolve.MaxParentsOf)) {
		t.Errorf("problems of the youngest: %v", all)
	}
	tr.Delete(named(0))
	if got := changes(tr); !strings.Contains(got, last.Name+": 7=1.00") {
		t.Errorf("when one has gone: %s", got)
	}
}

// Routes of other namespaces that no grant lets refer to a Service take no place among those that may have it as
// a backend, however old they are, and cost its changes nothing; with a grant they do, and leave the Service's
// own namespace its share.
func TestRoutesWithoutAGrantTakeNoPlace(t *testing.T) {
	tr := routed(t)
	for i := range resolve.MaxRoutesOf {
		parent := serviceOf(fmt.Sprintf("x%02d", i), byte(100+i))
		parent.Name.Namespace = "foreign"
		tr.Set(parent)
		r := routeOf(parent.Name.Name, "c")
		r.Name.Namespace = "foreign"
		tr.Set(r)
	}
	own := routeOf("a", "c")
	own.Created = time.Unix(1, 0) // the youngest: the others have no age
	tr.Set(own)
	tr.Flush()
	is := func(what, want string, resolved uint64) {
		t.Helper()
		before := tr.Stats().Resolved
		if got := changes(tr); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
		if n := tr.Stats().Resolved - before; n != resolved {
			t.Errorf("%s: %d Services were resolved, want %d", what, n, resolved)
		}
	}
	tr.Set(endpointsOf("c", 7))
	is("without a grant", "a: 7=1.00; c: 7=1.00", 2)
	grant := &model.Grant{Name: model.GrantName{Namespace: "ns", Name: "g"}, From: []model.GrantFrom{{Proto: model.TCP, Namespace: "foreign"}}, All: true}
	tr.Set(grant)
	is("with a grant", "x00: 7=1.00; x01: 7=1.00", resolve.MaxRoutesOf)
	last := model.ServiceName{Namespace: "foreign", Name: fmt.Sprintf("x%02d", resolve.MaxRoutesOf-1)}
	if all := tr.Service(last).Problems; len(all) != 1 || !strings.Contains(all[0].Detail, "namespaces share them") {
		t.Errorf("problems of the one without a place: %v", all)
	}
	tr.Set(endpointsOf("c", 8))
	is("an endpoint", "a: 8=1.00; c: 8=1.00; x00: 8=1.00", resolve.MaxRoutesOf+1)
	tr.Delete(own)
	is("its own has gone", "a: ", 2)
	if all := tr.Service(last).Problems; len(all) != 0 {
		t.Errorf("problems of the one that has its place: %v", all)
	}
	tr.Set(own)
	is("and is back", "a: 8=1.00; "+last.Name+": reject", 2)
	tr.Delete(grant)
	is("without it again", "x00: reject", resolve.MaxRoutesOf)
}

// Namespaces share what the limits allow: routes that are older, or have many parents, leave others their share.
func TestNamespacesShareTheRoutesOfABackend(t *testing.T) {
	for name, parents := range map[string]int{"many routes": 1, "many parents": 30} {
		t.Run(name, func(t *testing.T) {
			tr := routed(t)
			grant := &model.Grant{Name: model.GrantName{Namespace: "ns", Name: "g"}, All: true}
			add := func(namespace string, i, parents int, age int64) {
				var r *model.Route
				for j := range parents {
					s := serviceOf(fmt.Sprintf("p%02d-%02d", i, j), 0)
					s.Name.Namespace = namespace
					s.ClusterIPs[0] = netip.AddrFrom4([4]byte{10, 97 + namespace[0]%8, byte(i), byte(j)})
					tr.Set(s)
					if r == nil {
						r = routeOf(s.Name.Name, "c")
						r.Name.Namespace, r.Created = namespace, time.Unix(age, 0)
						continue
					}
					r.Parents = append(r.Parents, model.RouteParent{Service: s.Name.Name})
				}
				tr.Set(r)
			}
			for _, namespace := range []string{"evil", "shop"} {
				grant.From = append(grant.From, model.GrantFrom{Proto: model.TCP, Namespace: namespace})
			}
			tr.Set(grant)
			for i := range resolve.MaxRoutesOf {
				add("evil", i, parents, 0)
			}
			for i := range 10 {
				add("shop", i, 1, 1)
			}
			tr.Flush()
			for i := range 10 {
				if all := tr.Service(model.ServiceName{Namespace: "shop", Name: fmt.Sprintf("p%02d-00", i)}).Problems; len(all) != 0 {
					t.Errorf("shop's route %d: %v", i, all)
				}
			}
			if all := tr.Service(model.ServiceName{Namespace: "evil", Name: "p31-00"}).Problems; len(all) != 1 {
				t.Errorf("evil's last route: %v", all)
			}
		})
	}
}

// Routes with many parents each do not multiply: a change of a Service costs a bounded number
// of parents.
func TestRoutesWithManyParents(t *testing.T) {
	tr := routed(t)
	for i := range resolve.MaxRoutesOf {
		r := routeOf(fmt.Sprintf("p%02d-00", i), "c")
		for j := range 32 {
			s := serviceOf(fmt.Sprintf("p%02d-%02d", i, j), 0)
			s.ClusterIPs[0] = netip.AddrFrom4([4]byte{10, 97, byte(i), byte(j)})
			tr.Set(s)
			if j > 0 {
				r.Parents = append(r.Parents, model.RouteParent{Service: s.Name.Name})
			}
		}
		tr.Set(r)
	}
	tr.Flush()
	before := tr.Stats().Resolved
	tr.Set(endpointsOf("c", 7))
	tr.Flush()
	if n := tr.Stats().Resolved - before; n != resolve.MaxParentsOf+1 {
		t.Errorf("%d Services were resolved, want %d", n, resolve.MaxParentsOf+1)
	}
}

// Whatever routes and grants come and go, in whatever order, each Service is as if everything
// had been there at once.
func TestRoutesComeAndGo(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	tr := routed(t)
	in := map[string]*model.Route{}
	grants := map[string]*model.Grant{}
	parent := func(n int) string { return fmt.Sprintf("p%02d", n) }
	var services []*model.Service
	for n := range 70 {
		s := serviceOf(parent(n), byte(100+n))
		services = append(services, s)
		tr.Set(s)
	}
	other := serviceOf("d", 99)
	other.Name.Namespace = "other"
	slice := endpointsOf("d", 99)
	slice.Name.Namespace = "other"
	tr.Set(other)
	tr.Set(slice)
	for range 2000 {
		name := fmt.Sprintf("r%02d", random.IntN(60))
		switch random.IntN(5) {
		case 0:
			tr.Delete(&model.Route{Name: model.RouteName{Proto: model.TCP, Namespace: "ns", Name: name}})
			delete(in, name)
		case 1:
			g := &model.Grant{Name: model.GrantName{Namespace: "other", Name: name[:2]}, From: []model.GrantFrom{{Proto: model.TCP, Namespace: "ns"}}, All: true}
			if grants[name[:2]] = g; random.IntN(2) == 0 {
				tr.Delete(g)
				delete(grants, name[:2])
				break
			}
			tr.Set(g)
		default:
			r := routeOf(parent(random.IntN(70)), "c", "b")
			r.Name.Name = name
			for range random.IntN(6) {
				r.Parents = append(r.Parents, model.RouteParent{Service: parent(random.IntN(70))})
			}
			if random.IntN(3) == 0 {
				r.Backends[1].Service = other.Name
			}
			tr.Set(r)
			in[name] = r
		}
		if random.IntN(20) > 0 {
			continue
		}
		tr.Flush()
		fresh := routed(t)
		fresh.SetAll(&model.Objects{
			Services: append(services[:len(services):len(services)], other), Slices: []*model.Slice{slice},
			Routes: slices.Collect(maps.Values(in)), Grants: slices.Collect(maps.Values(grants)),
		})
		fresh.Flush()
		for _, want := range fresh.Services() {
			got := tr.Service(want.Object.Name)
			if !slices.EqualFunc(got.Ports, want.Ports, func(a, b *model.Port) bool { return a.ID == b.ID && fmt.Sprint(shares(a)) == fmt.Sprint(shares(b)) }) || !slices.Equal(got.Problems, want.Problems) {
				t.Fatalf("%s is %v with %v, want %v with %v", want.Object.Name, got.Ports, got.Problems, want.Ports, want.Problems)
			}
		}
	}
	for name := range in {
		tr.Delete(&model.Route{Name: model.RouteName{Proto: model.TCP, Namespace: "ns", Name: name}})
	}
	for name := range grants {
		tr.Delete(&model.Grant{Name: model.GrantName{Namespace: "other", Name: name}})
	}
	if r := &tr.routes; len(r.all)+len(r.parents)+len(r.backends)+len(r.needing)+len(r.granted)+len(r.grants) != 0 {
		t.Errorf("left: %+v", *r)
	}
}

// shares are the endpoints of a port and their shares, in order of address.
func shares(p *model.Port) (all []string) {
	if pool := p.Frontends[0].On[0].Pool; pool != nil {
		for i, e := range pool.Endpoints {
			all = append(all, fmt.Sprintf("%s=%.3f", e.Addr, pool.Share(i)))
		}
	}
	slices.Sort(all)
	return all
}

// Failover probes what connections really reach.
func TestRemoteOfRoute(t *testing.T) {
	tr := routed(t)
	tr.Set(routeOf("a", "b"))
	tr.Flush()
	got := fmt.Sprint(tr.RemoteOf(netip.MustParseAddrPort("10.96.0.0:80"), model.ServiceName{}))
	if !strings.Contains(got, "10.0.0.1:8080") {
		t.Errorf("the endpoints are %s", got)
	}
}

// A suspect among the endpoints of a backend is ejected in the parent's pool.
func TestSuspectBehindRoute(t *testing.T) {
	tr := routed(t)
	two := endpointsOf("b", 1)
	two.Endpoints = append(two.Endpoints, endpointsOf("b", 5).Endpoints...)
	tr.Set(two)
	tr.Set(routeOf("a", "b"))
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
		func() { tr.Set(endpointsOf("a", 5)) },
		func() { tr.Set(routeOf("a", "b")) },
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

// Of a Service's routes the backends of those that have a port are looked up, and so many routes count at most.
func TestManyRoutesOfAParent(t *testing.T) {
	const n = 3000
	tr := routed(t)
	for i := range n {
		route := routeOf("a", "b", "c")
		route.Name.Name, route.Created = fmt.Sprintf("r%04d", i), time.Unix(int64(n-i), 0)
		tr.Set(route)
	}
	tr.Flush()
	before := tr.Stats()
	tr.Set(endpointsOf("b", 7))
	if got := changes(tr); !strings.Contains(got, "a: ") {
		t.Errorf("changes: %s", got)
	}
	now := tr.Stats()
	if backends, resolved := now.Backends-before.Backends, now.Resolved-before.Resolved; backends != 2 || resolved != 2 {
		t.Errorf("%d backends looked up for %d Services, want 2 for 2", backends, resolved)
	}
	v := tr.Service(model.ServiceName{Namespace: "ns", Name: "a"})
	if want := fmt.Sprintf("%d of %d routes ignored", n-resolve.MaxRoutesAt, n); !strings.HasPrefix(v.Problems[0].Detail, want) || v.Problems[0].Why != model.WhyTooLarge {
		t.Errorf("problems: %v", v.Problems)
	}
	if r := v.Ports[0].Route; r == nil || r.Name != fmt.Sprintf("r%04d", n-1) {
		t.Errorf("the port has %v, want the oldest route", r)
	}
	var names []string // of the slices behind it: a backend that many routes name counts once
	for _, s := range tr.Backing(v.Object.Name) {
		names = append(names, s.Name.Name)
	}
	slices.Sort(names)
	if len(names) == 0 || len(slices.Compact(slices.Clone(names))) != len(names) {
		t.Errorf("the EndpointSlices behind it are %v", names)
	}
}

// BenchmarkManyRoutesOfAParent is a change of an endpoint of a backend of 3,000 routes of one Service.
func BenchmarkManyRoutesOfAParent(b *testing.B) {
	tr := New()
	tr.SetHost(&model.Host{Name: "node-1"})
	for i, name := range []string{"a", "b"} {
		tr.Set(serviceOf(name, byte(i)))
	}
	for i := range 3000 {
		route := routeOf("a", "b")
		route.Name.Name = fmt.Sprintf("r%04d", i)
		tr.Set(route)
	}
	i := 0
	for b.Loop() {
		i++
		tr.Set(endpointsOf("b", i%2))
		tr.Flush()
	}
}
