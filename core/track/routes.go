// SPDX-License-Identifier: Apache-2.0

package track

import (
	"fmt"
	"maps"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// routes are the routes and grants of the Gateway API. Without any, they cost nothing.
type routes struct {
	all    map[model.RouteName]*model.Route
	grants map[model.GrantName]*model.Grant

	granted map[string]map[model.GrantName]*model.Grant // grants, by namespace
	needing map[string]map[model.RouteName]*model.Route // routes that have a backend in another namespace, by that

	parents map[model.ServiceName][]*model.Route // of each Service, in the order of precedence
	// backends are the routes that have a Service as a backend, in the same order: those that may refer to it.
	// What others lack a grant for costs nothing, and takes no place among those that the limits allow.
	backends map[model.ServiceName][]*model.Route
}

func newRoutes() routes {
	return routes{
		all: map[model.RouteName]*model.Route{}, grants: map[model.GrantName]*model.Grant{},
		granted: map[string]map[model.GrantName]*model.Grant{}, needing: map[string]map[model.RouteName]*model.Route{},
		parents: map[model.ServiceName][]*model.Route{}, backends: map[model.ServiceName][]*model.Route{},
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

// find returns the place of a route among those that may refer to a Service, or where it would be.
func (r *routes) find(name model.ServiceName, route *model.Route) (at int, found bool) {
	return slices.BinarySearchFunc(r.backends[name], route, (*model.Route).Compare)
}

// allowed returns how many of the routes that may refer to a Service have it as a backend: the first.
func (r *routes) allowed(name model.ServiceName) (n int) {
	parents := 0
	for _, route := range r.backends[name] {
		if parents += len(route.Parents); n == resolve.MaxRoutesOf || parents > resolve.MaxParentsOf {
			break
		}
		n++
	}
	return n
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
