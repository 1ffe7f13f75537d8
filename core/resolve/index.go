// SPDX-License-Identifier: Apache-2.0

package resolve

import (
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
	from := r.index.ports.find(portKey{family, port.Name, port.Proto})
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
	ports portIndex
	// strange reports endpoints of a family for a port that the Service does not have. Without
	// them a port that no endpoint has yet is an ordinary one: the pods that will are about to start.
	strange [2]bool

	routes map[routedPort]*Route // nil for none
	listed int                   // ports of slices that were looked at

	frontends int // of all ports
	mostSlots int // of a pool at most, so that all together are within MaxEntries

	perPort int                            // how many endpoints of one port are used at most; 0 is all
	ranks   map[*model.Slice]*[ranks][]int // which endpoints of a slice have which rank; only with room
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

// portIndex finds what there is for a port.
type portIndex struct {
	list []portSources
	at   map[portKey]int // where in list, once that is long
}

// find returns what there is for a port, until another one is added; nil for nothing.
func (x *portIndex) find(k portKey) *portSources {
	i, ok := x.at[k]
	if x.at == nil {
		i = slices.IndexFunc(x.list, func(o portSources) bool { return o.key == k })
		ok = i >= 0
	}
	if !ok {
		return nil
	}
	return &x.list[i]
}

// of is find, and adds a port that there is nothing for.
func (x *portIndex) of(k portKey) *portSources {
	const few = 16 // not worth a map
	if o := x.find(k); o != nil {
		return o
	}
	x.list = append(x.list, portSources{key: k})
	last := len(x.list) - 1
	switch {
	case x.at != nil:
		x.at[k] = last
	case last == few:
		x.at = make(map[portKey]int, 2*few)
		for i := range x.list {
			x.at[x.list[i].key] = i
		}
	}
	return &x.list[last]
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
	s.ports.list = make([]portSources, 0, len(svc.Ports))
	for i, slice := range from {
		if s.listed += len(slice.Ports); s.listed > maxSlicePorts {
			r.Problem(svc, model.WhyTooLarge, "%d of %d EndpointSlices ignored: together they list more than %d ports", len(from)-i, len(from), maxSlicePorts)
			break
		}
		for _, p := range slice.Ports {
			o := s.ports.of(portKey{slice.Family, p.Name, p.Proto})
			if n := len(o.from); n > 0 && o.from[n-1].slice == slice {
				continue // twice in one slice: the first one counts
			}
			o.add(source{slice: slice, number: p.Port})
		}
	}
	for _, family := range model.Families() {
		for _, p := range svc.Ports {
			if o := s.ports.find(portKey{family, p.Name, p.Proto}); o != nil {
				o.wanted = true
			}
		}
	}
	for _, o := range s.ports.list {
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
			if o := s.ports.find(portKey{family, port.Name, port.Proto}); o != nil {
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
	for i := range s.ports.list {
		for _, src := range s.ports.list[i].from {
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

// candidates returns the endpoints that a port may use, some of them twice.
func (s *sliceIndex) candidates(host *model.Host, o *portSources) []endpoint {
	if s.perPort == 0 || o.endpoints <= s.perPort {
		all := make([]endpoint, 0, o.endpoints)
		for _, src := range o.from {
			for i := range src.slice.Endpoints {
				all = append(all, src.candidate(host, i))
			}
		}
		return all
	}
	all := make([]endpoint, 0, s.perPort)
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
