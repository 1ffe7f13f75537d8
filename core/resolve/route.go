// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"fmt"
	"iter"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// Route is a route of the Gateway API, with what its backends are now.
type Route struct {
	*model.Route
	Backends []Backend // of the model's, one each; nil where it wins no port (Winning)
}

// At most so many routes, with at most so many parents together, may use one Service as a backend: whatever
// changes its endpoints changes all their parents. The first by precedence do, the older ones.
const (
	MaxRoutesOf  = 32
	MaxParentsOf = 64
)

// MaxRoutesAt is how many routes may have one Service as a parent: each is compared with each port. The first by
// precedence count, the older ones.
const MaxRoutesAt = 64

// Backend is a backend of a route.
type Backend struct {
	Granted bool
	Excess  bool           // older routes have it, as many as may
	Service *model.Service // nil for none of this name
	Slices  []*model.Slice // of the Service, by name
}

// Granted reports whether a route may refer to a backend: one of its own namespace, or
// one that a grant of the backend's namespace allows. Grants of other namespaces do
// not matter.
func Granted(route model.RouteName, backend model.ServiceName, grants iter.Seq[*model.Grant]) bool {
	from := model.GrantFrom{Proto: route.Proto, Namespace: route.Namespace}
	if route.Namespace == backend.Namespace {
		return true
	}
	for g := range grants {
		if g.Name.Namespace == backend.Namespace && slices.Contains(g.From, from) && (g.All || slices.Contains(g.To, backend.Name)) {
			return true
		}
	}
	return false
}

// routeOf returns the route of a port, the first one that has it; nil for none. All
// others are reported.
func (r *Result) routeOf(routes []Route, svc *model.Service, port model.ServicePort) (first *Route) {
	for i := range routes {
		route := &routes[i]
		switch {
		case !hasPort(route.Route, svc, port):
		case first == nil:
			first = route
		default:
			r.Problem(svc, model.WhyRouteShadowed, "%s: port %d/%s belongs to %s", route.Name, port.Port, port.Proto, first.Name)
		}
	}
	return first
}

// hasPort reports whether a route asks for a port of a Service.
func hasPort(route *model.Route, svc *model.Service, port model.ServicePort) bool {
	return route.Name.Proto == port.Proto && slices.ContainsFunc(route.Parents, func(p model.RouteParent) bool {
		return p.Service == svc.Name.Name && (p.Port == 0 || p.Port == port.Port) && (p.PortName == "" || p.PortName == port.Name)
	})
}

// Winning reports which of the routes of a Service, in the order of their precedence, have a port of it. What the
// backends of all others are does not matter.
func Winning(svc *model.Service, routes []*model.Route) []bool {
	wins := make([]bool, len(routes))
	for _, port := range svc.Ports {
		if i := slices.IndexFunc(routes, func(r *model.Route) bool { return hasPort(r, svc, port) }); i >= 0 {
			wins[i] = true
		}
	}
	return wins
}

// indexRoutes replaces what the slices of a Service have for its ports by what the
// backends of routes have, for those ports that have a route.
func (r *Result) indexRoutes(svc *model.Service, routes []Route, s *sliceIndex) {
	if len(routes) == 0 {
		return
	}
	s.routes = map[routedPort]*Route{}
	for _, port := range svc.Ports {
		route := r.routeOf(routes, svc, port)
		if route == nil || s.routes[routedPort{port.Name, port.Proto}] != nil {
			continue
		}
		s.routes[routedPort{port.Name, port.Proto}] = route
		for _, family := range model.Families() {
			o := s.ports.of(portKey{family, port.Name, port.Proto})
			o.from, o.endpoints = nil, 0
		}
		for i := range route.Backends {
			r.indexBackend(svc, port, route, i, s)
		}
		if !slices.ContainsFunc(route.Route.Backends, func(b model.RouteBackend) bool { return b.Weight > 0 }) {
			r.Problem(svc, model.WhyRouteBackend, "%s: no backend with a weight: connections are rejected", route.Name)
		}
	}
}

// invalid states why a backend cannot be one for a protocol; empty if it can, with the
// index of its port.
func (route *Route) invalid(i int, proto model.Proto) (at int, why string) {
	of, b := route.Route.Backends[i], route.Backends[i]
	at = -1
	if b.Service != nil {
		at = slices.IndexFunc(b.Service.Ports, func(p model.ServicePort) bool { return p.Port == of.Port && p.Proto == proto })
	}
	switch {
	case !b.Granted:
		why = fmt.Sprintf("no ReferenceGrant in namespace %s lets %ss of namespace %s refer to it", of.Service.Namespace, route.Name.Kind(), route.Name.Namespace)
	case b.Excess:
		why = fmt.Sprintf("limit reached: a Service can be the backend of at most %d routes with %d parentRefs in all; older routes come first", MaxRoutesOf, MaxParentsOf)
	case b.Service == nil:
		why = "no such Service with an address"
	case at < 0:
		why = "no such port"
	}
	return at, why
}

// reportBackend notes why a backend leaves its share to the others.
func (r *Result) reportBackend(svc *model.Service, route *Route, i int, proto model.Proto, why string) {
	of := route.Route.Backends[i]
	r.Problem(svc, model.WhyRouteBackend, "%s: backend %s:%d (%s): %s", route.Name, of.Service, of.Port, proto, why)
}

// reportIdle notes which backends leave their share to the others for want of endpoints.
func (r *Result) reportIdle(svc *model.Service, route *Route, id model.PortID, p pools) {
	if p.cluster == nil {
		return // there are no others
	}
	for _, i := range p.idle {
		if _, why := route.invalid(i, id.Proto); why == "" { // else that is reported
			r.reportBackend(svc, route, i, id.Proto, "no usable endpoint of "+id.Family.String())
		}
	}
}

// indexBackend adds what one backend has for a port.
func (r *Result) indexBackend(svc *model.Service, port model.ServicePort, route *Route, i int, s *sliceIndex) {
	at, why := route.invalid(i, port.Proto)
	if why != "" {
		r.reportBackend(svc, route, i, port.Proto, why)
		return
	}
	of, b := route.Route.Backends[i], route.Backends[i]
	for _, slice := range b.Slices {
		if s.listed += len(slice.Ports); s.listed > maxSlicePorts {
			r.Problem(svc, model.WhyTooLarge, "%s: EndpointSlices ignored: together they list more than %d ports", route.Name, maxSlicePorts)
			return
		}
		for _, p := range slice.Ports {
			if p.Name == b.Service.Ports[at].Name && p.Proto == port.Proto {
				s.ports.of(portKey{slice.Family, port.Name, port.Proto}).add(source{slice, p.Port, i, of.Weight == 0})
				break // twice in one slice: the first one counts
			}
		}
	}
}

// choose chooses among the endpoints of each backend as for a Service, and joins the
// choices by the weights of the backends. One without endpoints leaves its share to the
// others. The specification wants these connections rejected: IPVS, HNS and the nat table
// of iptables choose among endpoints and cannot reject a share, and modes must not differ.
func (route *Route) choose(host *model.Host, svc *model.Service, all []endpoint) chosen {
	joined := chosen{whyCluster: model.WhyRoute, whyLocal: model.WhyLocalEndpoints}
	for i, b := range route.Route.Backends {
		one := choose(host, svc, filter(all, func(e *endpoint) bool { return e.backend == i }))
		joined.cluster = shareOut(joined.cluster, one.cluster, b.Weight)
		joined.local = shareOut(joined.local, one.local, b.Weight)
		joined.passed = append(joined.passed, one.passed...)
		if len(one.cluster) == 0 && b.Weight > 0 {
			joined.idle = append(joined.idle, i)
		}
	}
	joined.cluster, joined.local = merge(joined.cluster), merge(joined.local)
	return joined
}

// shareOut appends endpoints with shares that together are a weight.
func shareOut(joined, all []endpoint, weight uint32) []endpoint {
	sum := 0.0
	for i := range all {
		sum += all[i].share
	}
	for _, e := range all {
		e.share *= float64(weight) / sum
		joined = append(joined, e)
	}
	return joined
}

// merge sorts endpoints by address, and makes one of those that several backends have.
func merge(all []endpoint) []endpoint {
	slices.SortStableFunc(all, func(a, b endpoint) int { return a.addr.Compare(b.addr) })
	merged := all[:0]
	for _, e := range all {
		if n := len(merged); n > 0 && merged[n-1].addr == e.addr {
			merged[n-1].share += e.share
		} else {
			merged = append(merged, e)
		}
	}
	return merged
}
