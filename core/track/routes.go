// SPDX-License-Identifier: Apache-2.0

package track

import (
	"maps"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// routes are the routes and grants of the Gateway API. Without any, they cost nothing.
type routes struct {
	all    map[model.RouteName]*model.Route
	grants map[model.GrantName]*model.Grant

	parents  map[model.ServiceName][]*model.Route // of each Service, in the order of precedence
	backends map[model.ServiceName][]*model.Route // that have a Service as a backend, in the same order
}

// maxRoutesOf is how many routes may have one Service as a backend, the first by
// precedence: whatever changes its endpoints changes all their parents.
const maxRoutesOf = 32

func newRoutes() routes {
	return routes{
		all: map[model.RouteName]*model.Route{}, grants: map[model.GrantName]*model.Grant{},
		parents: map[model.ServiceName][]*model.Route{}, backends: map[model.ServiceName][]*model.Route{},
	}
}

// SetRoute adds or replaces a route.
func (t *Tracker) SetRoute(route *model.Route) {
	t.DeleteRoute(route.Name)
	t.routes.all[route.Name] = route
	for _, name := range parentsOf(route) {
		insert(t.routes.parents, name, route)
	}
	for _, name := range backendsOf(route) {
		if insert(t.routes.backends, name, route); len(t.routes.backends[name]) > maxRoutesOf {
			t.markParents(t.routes.backends[name][maxRoutesOf]) // has had it until now
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
		if remove(t.routes.backends, name, route); len(t.routes.backends[name]) >= maxRoutesOf {
			t.markParents(t.routes.backends[name][maxRoutesOf-1]) // may have it now
		}
	}
	t.markParents(route)
}

// SetGrant adds or replaces a grant.
func (t *Tracker) SetGrant(g *model.Grant) {
	t.routes.grants[g.Name] = g
	t.markGranted(g.Name.Namespace)
}

// HasGrant reports whether there is a grant.
func (t *Tracker) HasGrant(name model.GrantName) bool { return t.routes.grants[name] != nil }

// HasRoute reports whether there is a route.
func (t *Tracker) HasRoute(name model.RouteName) bool { return t.routes.all[name] != nil }

// DeleteGrant removes a grant.
func (t *Tracker) DeleteGrant(name model.GrantName) {
	delete(t.routes.grants, name)
	t.markGranted(name.Namespace)
}

// Routes returns the routes there are, by precedence.
func (t *Tracker) Routes() []*model.Route {
	return sorted(t.routes.all, (*model.Route).Compare)
}

// Grants returns the grants there are, by name.
func (t *Tracker) Grants() []*model.Grant {
	return sorted(t.routes.grants, func(a, b *model.Grant) int {
		return model.ServiceName(a.Name).Compare(model.ServiceName(b.Name))
	})
}

func sorted[K comparable, V any](all map[K]V, compare func(a, b V) int) []V {
	list := make([]V, 0, len(all))
	for _, v := range all {
		list = append(list, v)
	}
	slices.SortFunc(list, compare)
	return list
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

func insert(into map[model.ServiceName][]*model.Route, name model.ServiceName, route *model.Route) {
	i, _ := slices.BinarySearchFunc(into[name], route, (*model.Route).Compare)
	into[name] = slices.Insert(into[name], i, route)
}

func remove(from map[model.ServiceName][]*model.Route, name model.ServiceName, route *model.Route) {
	left := slices.DeleteFunc(from[name], func(r *model.Route) bool { return r == route })
	if from[name] = left; len(left) == 0 {
		delete(from, name)
	}
}

// markParents touches the Services that a route decides about.
func (t *Tracker) markParents(route *model.Route) {
	for _, name := range parentsOf(route) {
		if s := t.services[name]; s != nil {
			t.markOne(s)
		}
	}
}

// markBackend touches the parents of the routes that have a Service as a backend.
func (t *Tracker) markBackend(name model.ServiceName) {
	all := t.routes.backends[name]
	for _, route := range all[:min(len(all), maxRoutesOf)] {
		t.markParents(route)
	}
}

// markGranted touches the parents of the routes that need a grant of a namespace.
func (t *Tracker) markGranted(namespace string) {
	for _, route := range t.routes.all {
		if route.Name.Namespace != namespace && slices.ContainsFunc(route.Backends, func(b model.RouteBackend) bool { return b.Service.Namespace == namespace }) {
			t.markParents(route)
		}
	}
}

// routesOf returns the routes of a Service, with their backends.
func (t *Tracker) routesOf(name model.ServiceName) (all []resolve.Route) {
	for _, route := range t.routes.parents[name] {
		r := resolve.Route{Route: route, Backends: make([]resolve.Backend, len(route.Backends))}
		for i, b := range route.Backends {
			r.Backends[i] = t.backend(route, b.Service)
		}
		all = append(all, r)
	}
	return all
}

// backend returns what a backend of a route is now.
func (t *Tracker) backend(route *model.Route, name model.ServiceName) (b resolve.Backend) {
	b.Granted = resolve.Granted(route.Name, name, maps.Values(t.routes.grants))
	place, _ := slices.BinarySearchFunc(t.routes.backends[name], route, (*model.Route).Compare)
	b.Excess = place >= maxRoutesOf
	if s := t.services[name]; s != nil && s.object != nil {
		b.Service = s.object
		b.Slices = t.warmed(s, resolve.MarkUnanswered(s.slices, t.suspects))
	}
	return b
}
