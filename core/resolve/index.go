// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// endpoints returns the endpoints of a port in address order, each once.
//
// Slices belong to a port by port name and protocol; the Service's targetPort
// plays no part, so the numbers may differ from slice to slice. Where one
// address and port is in several slices (it moves from one to another, or a
// finished pod's address was given to a new one) the best conditions count, in
// whatever order they are met: kubernetes issue 135266.
func (r *Result) endpoints(
	host *model.Host, svc *model.Service, port model.ServicePort, family model.Family, own []Address,
) []endpoint {
	from := r.index.sourcesOf(portKey{family, port.Name, port.Proto})
	if from == nil {
		if r.index.strange[family] {
			r.Problem(svc, model.WhyNoTargetPort, "port %q (%s %d)", port.Name, port.Proto, port.Port)
		}
		return nil
	}
	all := unique(r.index.candidates(host, from))
	return slices.DeleteFunc(all, func(e endpoint) bool {
		if slices.ContainsFunc(own, func(a Address) bool { return a.At == e.addr }) {
			r.Problem(svc, model.WhyOwnFrontend, "endpoint %s", e.addr)
			return true
		}
		why := unusableEndpoint(host, e.addr.Addr())
		if why != "" {
			r.Problem(svc, model.WhyBadAddress, "endpoint %s (%s)", e.addr.Addr(), why)
		}
		return why != ""
	})
}

// sliceIndex is what the slices of a Service have for its ports.
type sliceIndex struct {
	ports model.Index[portKey, portSources]
	// strange reports endpoints of a family for a port that the Service does not have. Without
	// them a port that no endpoint has yet is an ordinary one: the pods that will are about to start.
	strange [2]bool

	routes map[routedPort]*Route // nil for none
	listed int                   // ports of slices that were looked at

	frontends int // of all ports
	mostSlots int // of a pool at most, so that all together are within MaxEntries

	perPort int                            // how many endpoints of one port are used at most; 0 is all
	ranks   map[*model.Slice]*[ranks][]int // which endpoints of a slice have which rank; only with room

	room []endpoint // for the candidates of a port
}

// routedPort is how routes refer to the ports of a Service, which have one of these
// each.
type routedPort struct {
	name  string
	proto model.Proto
}

// portKey is how slices refer to the ports of a Service.
type portKey struct {
	family model.Family
	name   string
	proto  model.Proto
}

// portSources is what there is for one port.
type portSources struct {
	key       portKey
	from      []source
	endpoints int // of all of from, with those that are there twice
	wanted    bool
}

// add adds a slice.
func (o *portSources) add(s source) {
	o.from, o.endpoints = append(o.from, s), o.endpoints+len(s.slice.Endpoints)
}

// sourcesOf returns what there is for a port, until another one is added; nil for nothing.
func (s *sliceIndex) sourcesOf(k portKey) *portSources { return s.ports.Find(k, len(s.ports.List)) }

// addPort is sourcesOf, and adds a port that there is nothing for.
func (s *sliceIndex) addPort(k portKey) *portSources {
	if o := s.sourcesOf(k); o != nil {
		return o
	}
	s.ports.List = append(s.ports.List, portSources{key: k})
	return &s.ports.List[len(s.ports.List)-1]
}

// source is a slice that has endpoints for a port, and the number that it gives
// to the port. With a route it is one of a backend.
type source struct {
	slice   *model.Slice
	number  uint16
	backend int
	unused  bool // its endpoints get no new connections
}

// indexSlices looks once through the slices of a Service. It costs their ports, and
// not those of the Service for each of them.
func (r *Result) indexSlices(host *model.Host, svc *model.Service, from []*model.Slice, routes []Route) (s sliceIndex) {
	s.ports.List = make([]portSources, 0, len(svc.Ports))
	s.ports.Key = func(o *portSources) portKey { return o.key }
	for i, slice := range from {
		if s.listed += len(slice.Ports); s.listed > maxSlicePorts {
			r.Problem(svc, model.WhyTooLarge, "%d of %d EndpointSlices ignored: together they list more than %d ports", len(from)-i, len(from), maxSlicePorts)
			break
		}
		for _, p := range slice.Ports {
			o := s.addPort(portKey{slice.Family, p.Name, p.Proto})
			if n := len(o.from); n > 0 && o.from[n-1].slice == slice {
				continue // twice in one slice: the first one counts
			}
			o.add(source{slice: slice, number: p.Port})
		}
	}
	for _, family := range model.Families() {
		for _, p := range svc.Ports {
			if o := s.sourcesOf(portKey{family, p.Name, p.Proto}); o != nil {
				o.wanted = true
			}
		}
	}
	for _, o := range s.ports.List {
		if !o.wanted && o.endpoints > 0 {
			s.strange[o.key.family] = true
		}
	}
	r.indexRoutes(svc, routes, &s)
	r.capEndpoints(host, svc, &s)
	return s
}

// capEndpoints limits how many endpoints each port gets, where all are too many: each
// costs an entry for each frontend of its port.
func (r *Result) capEndpoints(host *model.Host, svc *model.Service, s *sliceIndex) {
	entries, fronts := 0, 0
	for _, family := range model.Families() {
		addresses := addressCount(svc, family)
		for _, port := range svc.Ports {
			n := frontendCount(svc, port, addresses)
			fronts += n
			if o := s.sourcesOf(portKey{family, port.Name, port.Proto}); o != nil {
				entries += n * o.endpoints
			}
		}
	}
	s.frontends, s.mostSlots = fronts, min(model.MaxSlots, MaxEntries/max(1, fronts))
	if entries <= MaxEntries {
		return
	}
	s.perPort = max(1, MaxEntries/fronts)
	r.Problem(svc, model.WhyTooLarge, "%d entries (each endpoint of a port on each of its frontends, %d in all), limit %d: serving %d endpoints of each port, ready and local ones first",
		entries, fronts, MaxEntries, s.perPort)
	s.ranks = map[*model.Slice]*[ranks][]int{}
	for i := range s.ports.List {
		for _, src := range s.ports.List[i].from {
			if s.ranks[src.slice] == nil {
				s.ranks[src.slice] = s.rank(host, src.slice)
			}
		}
	}
}

// The ranks of endpoints where not all are used: what takes connections before what
// does not, and those of this node first, as only they serve policies of this node.
const (
	readyHere = iota
	readyElsewhere
	unreadyHere
	unreadyElsewhere
	ranks // how many there are
)

func rankOf(host *model.Host, e *model.SliceEndpoint) int {
	switch isReady, isLocal := e.State.Has(model.Ready), isLocal(host, e); {
	case isReady && isLocal:
		return readyHere
	case isReady:
		return readyElsewhere
	case isLocal:
		return unreadyHere
	}
	return unreadyElsewhere
}

// rank returns which endpoints of a slice have which rank.
func (s *sliceIndex) rank(host *model.Host, slice *model.Slice) *[ranks][]int {
	var by [ranks][]int
	for i := range slice.Endpoints {
		if rank := rankOf(host, &slice.Endpoints[i]); len(by[rank]) < s.perPort {
			by[rank] = append(by[rank], i)
		}
	}
	return &by
}

// candidates returns the endpoints that a port may use, some of them twice. They are valid until the next call.
func (s *sliceIndex) candidates(host *model.Host, o *portSources) (all []endpoint) {
	defer func() { s.room = all[:0] }()
	if s.perPort == 0 || o.endpoints <= s.perPort {
		all = slices.Grow(s.room, o.endpoints)
		for _, src := range o.from {
			for i := range src.slice.Endpoints {
				all = append(all, src.candidate(host, i))
			}
		}
		return all
	}
	all = slices.Grow(s.room, s.perPort)
	for rank := range ranks {
		for _, src := range o.from {
			for _, i := range s.ranks[src.slice][rank] {
				if len(all) == s.perPort {
					return all
				}
				all = append(all, src.candidate(host, i))
			}
		}
	}
	return all
}

func (s source) candidate(host *model.Host, i int) endpoint {
	e := &s.slice.Endpoints[i]
	share := float64(model.DefaultWeight)
	if s.slice.Weighted {
		share = float64(s.slice.Weight)
	}
	if e.Warm > 0 {
		share = share * float64(e.Warm) / 10
	}
	if s.unused {
		share = 0
	}
	return endpoint{
		addr: netip.AddrPortFrom(e.Addr, s.number), local: isLocal(host, e), nodeUnknown: e.Node == "",
		state: e.State, hints: e.Hints, share: share, backend: s.backend, warm: e.Warm,
	}
}

// endpoint is a candidate: one address and port of a slice, with what decides
// about its use.
type endpoint struct {
	addr               netip.AddrPort
	local, nodeUnknown bool // on this node; nodeName is empty
	state              model.EndpointState
	hints              *model.Hints
	share              float64 // of new connections beside the others' of its pool; 0 is none
	backend            int     // of the route of its port, if any
	warm               uint8   // how many tenths of its share it has while it is new; 0 is all
}

// unique sorts endpoints by address and keeps the best of each, and of each backend. The sort is
// stable, so among equals the first slice by name counts.
func unique(all []endpoint) []endpoint {
	slices.SortStableFunc(all, func(a, b endpoint) int {
		if c := a.addr.Compare(b.addr); c != 0 {
			return c
		}
		return cmp.Or(a.backend-b.backend, conditionRank(b.state)-conditionRank(a.state))
	})
	return slices.CompactFunc(all, func(a, b endpoint) bool { return a.addr == b.addr && a.backend == b.backend })
}

// conditionRank orders the states that an address has in several slices. A pod that does not
// terminate comes first: it may have the address of one that does, whose connections would reach
// it before it is ready. kube-proxy prefers it, too.
func conditionRank(s model.EndpointState) (n int) {
	if !s.Has(model.Terminating) {
		n += 4
	}
	if s.Has(model.Ready) {
		n += 2
	}
	if s.Has(model.Serving) {
		n++
	}
	return n
}

func ready(e *endpoint) bool { return e.state.Has(model.Ready) && e.share > 0 }

func terminating(e *endpoint) bool {
	return e.state.Has(model.Serving|model.Terminating) && e.share > 0
}

// filter returns those to keep. It copies only if that is some: unique endpoints are
// shared, and never changed in place.
func filter(all []endpoint, keep func(*endpoint) bool) []endpoint {
	n := 0
	for i := range all {
		if keep(&all[i]) {
			n++
		}
	}
	switch n {
	case 0:
		return nil
	case len(all):
		return all
	}
	kept := make([]endpoint, 0, n)
	for i := range all {
		if keep(&all[i]) {
			kept = append(kept, all[i])
		}
	}
	return kept
}

func isLocal(host *model.Host, e *model.SliceEndpoint) bool {
	return e.Node != "" && e.Node == host.Name
}

// Route is a route of the Gateway API, with what its backends are now.
type Route struct {
	*model.Route
	Backends []Backend // of the model's, one each; nil where it wins no port (Winning)
}

// At most so many routes, with at most so many parents together, may use one Service as a backend: whatever
// changes its endpoints changes all their parents. The namespaces of the routes share them, and of each the first by
// precedence do, the older ones.
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
	Excess  bool           // the limit is reached by older routes
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
			o := s.addPort(portKey{family, port.Name, port.Proto})
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
		why = fmt.Sprintf("limit reached: a Service can be the backend of at most %d routes with %d parentRefs in all; namespaces share them, and older routes come first", MaxRoutesOf, MaxParentsOf)
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
				s.addPort(portKey{slice.Family, port.Name, port.Proto}).add(source{slice, p.Port, i, of.Weight == 0})
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
		joined.ejected = append(joined.ejected, one.ejected...)
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
