// SPDX-License-Identifier: Apache-2.0

package track

import (
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
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
