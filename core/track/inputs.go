// SPDX-License-Identifier: Apache-2.0

package track

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// Set adds or replaces an object. This machine's Node and ServiceCIDRs are in the host: see SetHost.
func (t *Tracker) Set(o model.Object) {
	switch o := o.(type) {
	case *model.Service:
		t.setService(o)
	case *model.Slice:
		t.setSlice(o)
	case *model.Node:
		if o.Name != t.configured.Name {
			t.SetOtherNode(o.Name, o.IPs)
		}
	case *model.Route:
		t.setRoute(o)
	case *model.Grant:
		t.setGrant(o)
	}
}

// Delete removes the object of a key, which is all that counts of it.
func (t *Tracker) Delete(o model.Object) {
	switch o := o.(type) {
	case *model.Service:
		t.deleteService(o.Name)
	case *model.Slice:
		t.deleteSlice(o.Name)
	case *model.Node:
		t.SetOtherNode(o.Name, nil)
	case *model.Route:
		t.deleteRoute(o.Name)
	case *model.Grant:
		t.deleteGrant(o.Name)
	}
}

// setService adds or replaces a Service. One that exceeds a limit is rejected: its
// last good object is kept and, where there is none, one without any port.
func (t *Tracker) setService(object *model.Service) {
	s := t.get(object.Name)
	s.excess = nil
	if p, over := resolve.Excess(object); over {
		served := " (its last valid version is served)"
		if object = s.Object; object == nil {
			object = &model.Service{Name: s.name, Where: p.Where}
		}
		if len(object.Ports) == 0 {
			served = " (nothing of it is served)"
		}
		p.Detail, p.Fix = p.Detail+served, "split the Service"
		s.excess = []model.Problem{p}
	}
	t.setObject(s, object)
	s.claimsStale = true
	t.mark(s)
}

// deleteService removes a Service. Its slices stay, in case it returns.
func (t *Tracker) deleteService(name model.ServiceName) {
	s, ok := t.services[name]
	if !ok || s.Object == nil {
		return
	}
	t.setObject(s, nil)
	s.excess, s.claimsStale = nil, true
	t.mark(s)
}

// setSlice adds or replaces a slice, which may have moved to another Service.
func (t *Tracker) setSlice(slice *model.Slice) {
	s := t.get(slice.Owner())
	if old := t.slices.get(slice.Name); old != nil && old.Service != slice.Service {
		t.deleteSlice(slice.Name)
	}
	before := t.slices.set(slice)
	v := t.change(s)
	if i, found := s.find(slice.Name); found {
		v.Slices[i] = slice
	} else {
		v.Slices = slices.Insert(v.Slices, i, slice)
	}
	t.triggers.add(s, before, slice)
	t.noteChanged(before, slice)
	t.mark(s)
	t.updateAPIServers(s)
}

// deleteSlice removes a slice.
func (t *Tracker) deleteSlice(name model.SliceName) {
	before := t.slices.remove(name)
	if before == nil {
		return
	}
	s := t.services[before.Owner()]
	v := t.change(s)
	if i, found := s.find(name); found {
		v.Slices = slices.Delete(v.Slices, i, i+1)
	}
	t.noteChanged(before, nil)
	t.triggers.forget(s)
	t.mark(s)
	t.updateAPIServers(s)
}

// Slice returns a slice that is there; nil for another.
func (t *Tracker) Slice(name model.SliceName) *model.Slice { return t.slices.get(name) }

// updateAPIServers updates the API servers' addresses, if a Service is theirs.
func (t *Tracker) updateAPIServers(s *service) {
	if s.name == resolve.APIService && t.configured != nil {
		t.setHost(resolve.WithAPIServers(t.configured, s.Slices))
	}
}

// SetHost replaces the host and touches the Services that can come out
// differently: a new zone, those with hints; other addresses that are not theirs
// to have, the Services that ask for them; anything else, all of them.
func (t *Tracker) SetHost(host *model.Host) {
	host = t.withListeners(host)
	t.configured = host
	if s := t.services[resolve.APIService]; s != nil {
		host = resolve.WithAPIServers(host, s.Slices)
	}
	t.setHost(host)
}

func (t *Tracker) setHost(host *model.Host) {
	old := t.host
	t.host = host
	all := old == nil || !old.SamePorts(host)
	zone, policy := all || old.Zone != host.Zone, !all && !old.SamePolicy(host)
	if !zone && !policy {
		return
	}
	for _, s := range t.services {
		if all || policy && s.Object != nil && resolve.Affects(old, host, s.Object, s.Slices) {
			t.affected(s)
		} else if zone && s.hinted() {
			t.mark(s)
		}
	}
	slices.SortFunc(t.dirty, func(a, b *service) int { return a.name.Compare(b.name) })
}

// setRoute adds or replaces a route.
func (t *Tracker) setRoute(route *model.Route) {
	t.deleteRoute(route.Name)
	t.routes.all[route.Name] = route
	for _, name := range parentsOf(route) {
		insert(t.routes.parents, name, route)
	}
	for _, name := range backendsOf(route) {
		t.refer(name, route, t.routes.mayRefer(route, name))
		if name.Namespace != route.Name.Namespace {
			place(t.routes.needing, name.Namespace, route.Name, route)
		}
	}
	t.markParents(route)
}

// deleteRoute removes a route.
func (t *Tracker) deleteRoute(name model.RouteName) {
	route := t.routes.all[name]
	if route == nil {
		return
	}
	delete(t.routes.all, name)
	for _, name := range parentsOf(route) {
		remove(t.routes.parents, name, route)
	}
	for _, name := range backendsOf(route) {
		t.refer(name, route, false)
		take(t.routes.needing, name.Namespace, route.Name)
	}
	t.markParents(route)
}

// refer puts a route among those that may refer to a Service, or takes it out, and touches the parents
// of those that have it as a backend no more, or have it now.
func (t *Tracker) refer(name model.ServiceName, route *model.Route, may bool) {
	r := t.routes.backends[name]
	if r.may(route) == may {
		return
	}
	if may && r == nil {
		r = &referrers{of: map[string][]*model.Route{}}
		t.routes.backends[name] = r
	}
	before := r.allowed
	if may {
		insert(r.of, route.Name.Namespace, route)
	} else {
		remove(r.of, route.Name.Namespace, route)
	}
	r.allow(name.Namespace)
	if len(r.of) == 0 {
		delete(t.routes.backends, name)
	}
	for _, all := range [][2][]*model.Route{{before, r.allowed}, {r.allowed, before}} {
		for _, other := range all[0] {
			if other != route && !slices.Contains(all[1], other) {
				t.markParents(other)
			}
		}
	}
}

// setGrant adds or replaces a grant.
func (t *Tracker) setGrant(g *model.Grant) {
	t.routes.grants[g.Name] = g
	place(t.routes.granted, g.Name.Namespace, g.Name, g)
	t.grantsChanged(g.Name.Namespace)
}

// deleteGrant removes a grant.
func (t *Tracker) deleteGrant(name model.GrantName) {
	delete(t.routes.grants, name)
	take(t.routes.granted, name.Namespace, name)
	t.grantsChanged(name.Namespace)
}

// grantsChanged looks again at the routes that need a grant of a namespace, and touches their parents.
func (t *Tracker) grantsChanged(namespace string) {
	for _, route := range t.routes.needing[namespace] {
		for _, name := range backendsOf(route) {
			if name.Namespace == namespace {
				t.refer(name, route, t.routes.mayRefer(route, name))
			}
		}
		t.markParents(route)
	}
}

// SetAll adds or replaces objects.
func (t *Tracker) SetAll(in *model.Objects) {
	for o := range in.All() {
		t.Set(o)
	}
}

// Ask returns on which of some places processes of this node listen. An error is that it cannot be
// told of any.
type Ask func(places []model.Listener) ([]model.Listener, error)

// listening is what is known of processes that listen where Services ask for this node's own
// addresses. It costs nothing while none does.
type listening struct {
	ask  Ask                   // nil where nobody can tell: the host may know
	own  map[*service]struct{} // that ask for such addresses
	turn map[string][]*service // those, by namespace, in the order in which Recheck asks about them
	held []model.Listener      // sorted
}

// mostPlaces is about how many places Recheck asks: some milliseconds, which changes wait for.
const mostPlaces = 1 << 14

// KeepListeners has the places asked about: those of a Service when it changes, and all at Recheck. What
// a resumed host knows is kept.
func (t *Tracker) KeepListeners(ask Ask) {
	t.listening = listening{ask: ask, own: map[*service]struct{}{}, turn: map[string][]*service{}}
	if t.host != nil && t.host.Guard.Listeners != nil {
		t.listening.held = t.host.Guard.Listeners.All
	}
}

// checkNew asks about the places of changed Services before they are resolved.
func (t *Tracker) checkNew() {
	l := &t.listening
	if l.ask == nil {
		return
	}
	var places []model.Listener
	for _, s := range t.dirty {
		if !s.claimsStale {
			continue
		}
		asked := resolve.AsksOwn(t.host, s.Object)
		_, known := l.own[s]
		switch n := s.name.Namespace; {
		case len(asked) > 0 && !known:
			l.own[s] = struct{}{}
			l.turn[n] = append(l.turn[n], s)
		case len(asked) == 0 && known:
			delete(l.own, s)
			if l.turn[n] = slices.DeleteFunc(l.turn[n], func(o *service) bool { return o == s }); len(l.turn[n]) == 0 {
				delete(l.turn, n)
			}
		}
		places = append(places, asked...)
	}
	if len(places) == 0 {
		return
	}
	found, err := l.ask(places)
	if err != nil { // not known is not free
		found = places
		for i := range found {
			found[i].Name = "process possibly (" + err.Error() + ")"
		}
	}
	t.hold(merged(l.held, places, found))
}

// merged is what is held once some places were asked about.
func merged(held, asked, found []model.Listener) []model.Listener {
	of := make(map[model.Listener]struct{}, len(asked))
	for _, p := range asked {
		of[model.Listener{Proto: p.Proto, At: p.At}] = struct{}{}
	}
	all := slices.DeleteFunc(slices.Clone(held), func(h model.Listener) bool {
		_, again := of[model.Listener{Proto: h.Proto, At: h.At}]
		return again
	})
	all = append(all, found...)
	slices.SortFunc(all, model.Listener.Compare)
	return slices.CompactFunc(all, func(a, b model.Listener) bool { return a.Compare(b) == 0 })
}

// Recheck asks again about places, and reports whether a Service may come out differently: about all, unless
// they are many. Then the Services of each namespace take turns, and the next Recheck goes on. After
// an error what was known stays.
func (t *Tracker) Recheck() (changed bool, err error) {
	l := &t.listening
	if len(l.own) == 0 {
		return false, nil
	}
	most := mostPlaces
	if len(l.held) > most { // mostly at places that nobody asks for any more
		most = math.MaxInt
	}
	places, all := l.next(t.host, most)
	found, err := l.ask(places)
	if err != nil {
		return false, err
	}
	if all {
		return t.hold(merged(nil, nil, found)), nil
	}
	return t.hold(merged(l.held, places, found)), nil
}

// next returns places to ask about, and whether those are all: those of one Service of each namespace, then of
// the next of each, until they are enough.
func (l *listening) next(host *model.Host, enough int) (places []model.Listener, all bool) {
	for turn := 0; !all; turn++ {
		all = true
		for n, waiting := range l.turn {
			if turn >= len(waiting) {
				continue
			}
			if len(places) >= enough {
				return places, false
			}
			s := waiting[0]
			places = append(places, resolve.AsksOwn(host, s.Object)...)
			l.turn[n] = append(waiting[1:], s)
			all = false
		}
	}
	return places, true
}

// hold takes what is held, and marks the Services that can come out differently.
func (t *Tracker) hold(held []model.Listener) (changed bool) {
	if slices.Equal(held, t.listening.held) {
		return false
	}
	t.listening.held = held
	old := t.host
	t.configured, t.host = t.withListeners(t.configured), t.withListeners(t.host)
	for s := range t.listening.own {
		if s.Object != nil && resolve.Affects(old, t.host, s.Object, nil) {
			t.affected(s)
			changed = true
		}
	}
	return changed
}

// withListeners is a host that knows what is held.
func (t *Tracker) withListeners(host *model.Host) *model.Host {
	if t.listening.ask == nil || host == nil {
		return host
	}
	more := *host
	more.Guard.Listeners = &model.Listeners{All: t.listening.held}
	return &more
}

// routes are the routes and grants of the Gateway API. Without any, they cost nothing.
type routes struct {
	all    map[model.RouteName]*model.Route
	grants map[model.GrantName]*model.Grant

	granted map[string]map[model.GrantName]*model.Grant // grants, by namespace
	needing map[string]map[model.RouteName]*model.Route // routes that have a backend in another namespace, by that

	parents map[model.ServiceName][]*model.Route // of each Service, in the order of precedence
	// backends are the routes that have a Service as a backend: those that may refer to it.
	// What others lack a grant for costs nothing, and takes no place among those that the limits allow.
	backends map[model.ServiceName]*referrers
}

// referrers are the routes that may refer to one Service; nil is none.
type referrers struct {
	of      map[string][]*model.Route // by their namespace, in the order of precedence
	allowed []*model.Route            // that have it as a backend, as many as the limits allow
}

// may reports whether a route is one of them.
func (r *referrers) may(route *model.Route) bool {
	if r == nil {
		return false
	}
	_, is := slices.BinarySearchFunc(r.of[route.Name.Namespace], route, (*model.Route).Compare)
	return is
}

// allow shares what the limits allow among namespaces: next is always the one that has the fewest parents with
// its next route; of several the Service's own, and then the one with the oldest route.
func (r *referrers) allow(own string) {
	parents, of, next := 0, map[string]int{}, map[string]int{}
	for r.allowed = nil; len(r.allowed) < resolve.MaxRoutesOf; {
		var first *model.Route
		for namespace, all := range r.of {
			if next[namespace] == len(all) {
				continue
			}
			route := all[next[namespace]]
			if first == nil {
				first = route
				continue
			}
			switch with, least := of[namespace]+len(route.Parents), of[first.Name.Namespace]+len(first.Parents); {
			case with > least:
			case with < least, namespace == own, first.Name.Namespace != own && route.Compare(first) < 0:
				first = route
			}
		}
		if first == nil || parents+len(first.Parents) > resolve.MaxParentsOf {
			return
		}
		parents += len(first.Parents)
		of[first.Name.Namespace] += len(first.Parents)
		next[first.Name.Namespace]++
		r.allowed = append(r.allowed, first)
	}
}

func newRoutes() routes {
	return routes{
		all: map[model.RouteName]*model.Route{}, grants: map[model.GrantName]*model.Grant{},
		granted: map[string]map[model.GrantName]*model.Grant{}, needing: map[string]map[model.RouteName]*model.Route{},
		parents: map[model.ServiceName][]*model.Route{}, backends: map[model.ServiceName]*referrers{},
	}
}

// parentsOf returns the Services that a route has as parents, each once.
func parentsOf(route *model.Route) []model.ServiceName {
	var names model.Unique[model.ServiceName]
	for _, p := range route.Parents {
		names.Add(model.ServiceName{Namespace: route.Name.Namespace, Name: p.Service})
	}
	return names.List()
}

// backendsOf returns the Services that a route has as backends, each once.
func backendsOf(route *model.Route) []model.ServiceName {
	var names model.Unique[model.ServiceName]
	for _, b := range route.Backends {
		names.Add(b.Service)
	}
	return names.List()
}

// of returns the routes of a Service that count: the first.
func (r *routes) of(name model.ServiceName) []*model.Route {
	all := r.parents[name]
	return all[:min(len(all), resolve.MaxRoutesAt)]
}

// excess reports that a Service has more routes than count.
func (r *routes) excess(svc *model.Service) []model.Problem {
	n := len(r.parents[svc.Name])
	if n <= resolve.MaxRoutesAt {
		return nil
	}
	return []model.Problem{{
		Object: "Service " + svc.Name.String(), Where: svc.Where, Why: model.WhyTooLarge,
		Detail: fmt.Sprintf("%d of %d routes ignored: a Service can be the parent of at most %d; older ones come first", n-resolve.MaxRoutesAt, n, resolve.MaxRoutesAt),
	}}
}

// mayRefer reports whether a route may have a Service as a backend.
func (r *routes) mayRefer(route *model.Route, name model.ServiceName) bool {
	return resolve.Granted(route.Name, name, maps.Values(r.granted[name.Namespace]))
}

// place puts an object into a map of maps.
func place[K, N comparable, V any](into map[K]map[N]V, k K, n N, v V) {
	if into[k] == nil {
		into[k] = map[N]V{}
	}
	into[k][n] = v
}

// take takes an object out of a map of maps.
func take[K, N comparable, V any](from map[K]map[N]V, k K, n N) {
	if delete(from[k], n); len(from[k]) == 0 {
		delete(from, k)
	}
}

func insert[K comparable](into map[K][]*model.Route, name K, route *model.Route) {
	i, _ := slices.BinarySearchFunc(into[name], route, (*model.Route).Compare)
	into[name] = slices.Insert(into[name], i, route)
}

func remove[K comparable](from map[K][]*model.Route, name K, route *model.Route) {
	left := slices.DeleteFunc(from[name], func(r *model.Route) bool { return r == route })
	if from[name] = left; len(left) == 0 {
		delete(from, name)
	}
}

// Orphans returns the EndpointSlices of the API server where its Service is unknown: no
// View has them, and no Service may take their addresses all the same.
func (t *Tracker) Orphans() []*model.Slice {
	if v := t.Service(resolve.APIService); v.Object == nil {
		return slices.Clone(v.Slices)
	}
	return nil
}
