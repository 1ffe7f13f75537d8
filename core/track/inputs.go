// SPDX-License-Identifier: Apache-2.0

package track

import (
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// SetService adds or replaces a Service. One that exceeds a limit is rejected: its
// last good object is kept and, where there is none, one without any port.
func (t *Tracker) SetService(object *model.Service) {
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

// DeleteService removes a Service. Its slices stay, in case it returns.
func (t *Tracker) DeleteService(name model.ServiceName) {
	s, ok := t.services[name]
	if !ok || s.Object == nil {
		return
	}
	t.setObject(s, nil)
	s.excess, s.claimsStale = nil, true
	t.mark(s)
}

// SetSlice adds or replaces a slice, which may have moved to another Service.
func (t *Tracker) SetSlice(slice *model.Slice) {
	s := t.get(ownerOf(slice))
	if old := t.slices.get(slice.Name); old != nil && old.Service != slice.Service {
		t.DeleteSlice(slice.Name)
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

// DeleteSlice removes a slice.
func (t *Tracker) DeleteSlice(name model.SliceName) {
	before := t.slices.remove(name)
	if before == nil {
		return
	}
	s := t.services[ownerOf(before)]
	v := t.change(s)
	if i, found := s.find(name); found {
		v.Slices = slices.Delete(v.Slices, i, i+1)
	}
	t.noteChanged(before, nil)
	t.triggers.forget(s)
	t.mark(s)
	t.updateAPIServers(s)
}

// SliceService returns the Service that a known slice belongs to.
func (t *Tracker) SliceService(name model.SliceName) (n model.ServiceName, known bool) {
	if slice := t.slices.get(name); slice != nil {
		return ownerOf(slice), true
	}
	return n, false
}

func ownerOf(slice *model.Slice) model.ServiceName {
	return model.ServiceName{Namespace: slice.Name.Namespace, Name: slice.Service}
}

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
			s.claimsStale = true
			t.mark(s)
		} else if zone && s.hinted() {
			t.mark(s)
		}
	}
	slices.SortFunc(t.dirty, func(a, b *service) int { return a.name.Compare(b.name) })
}

// SetRoute adds or replaces a route.
func (t *Tracker) SetRoute(route *model.Route) {
	t.DeleteRoute(route.Name)
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

// DeleteRoute removes a route.
func (t *Tracker) DeleteRoute(name model.RouteName) {
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

// refer puts a route among those that may refer to a Service, or takes it out.
func (t *Tracker) refer(name model.ServiceName, route *model.Route, may bool) {
	before := t.routes.allowed(name)
	switch _, does := t.routes.find(name, route); {
	case may && !does:
		insert(t.routes.backends, name, route)
		t.markDisplaced(name, t.routes.allowed(name), before+1)
	case does && !may:
		remove(t.routes.backends, name, route)
		t.markDisplaced(name, before-1, t.routes.allowed(name))
	}
}

// markDisplaced touches the parents of the routes at some places among those that may refer
// to a Service: they have it as a backend no more, or have it now.
func (t *Tracker) markDisplaced(name model.ServiceName, from, to int) {
	all := t.routes.backends[name]
	for _, route := range all[min(max(from, 0), len(all)):max(0, min(to, len(all)))] {
		t.markParents(route)
	}
}

// SetGrant adds or replaces a grant.
func (t *Tracker) SetGrant(g *model.Grant) {
	t.routes.grants[g.Name] = g
	place(t.routes.granted, g.Name.Namespace, g.Name, g)
	t.grantsChanged(g.Name.Namespace)
}

// DeleteGrant removes a grant.
func (t *Tracker) DeleteGrant(name model.GrantName) {
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

// Set adds or replaces objects, all but ServiceCIDRs and the Node of this host, which is set.
func (t *Tracker) Set(in *model.Objects) {
	for _, n := range in.Nodes {
		if n.Name != t.configured.Name {
			t.SetOtherNode(n.Name, n.IPs)
		}
	}
	for _, s := range in.Services {
		t.SetService(s)
	}
	for _, s := range in.Slices {
		t.SetSlice(s)
	}
	for _, g := range in.Grants {
		t.SetGrant(g)
	}
	for _, r := range in.Routes {
		t.SetRoute(r)
	}
}
