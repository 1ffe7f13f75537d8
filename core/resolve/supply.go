package resolve

import (
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// supply is what the slices of a Service have for its ports.
type supply struct {
	ports map[portKey]offer
	any   [2]bool // a family has endpoints, for whatever port

	room   int                    // how many endpoints of one port are used at most; 0 is all
	locals map[*model.Slice][]int // which endpoints of a slice are on this node; only with room
}

// portKey is how slices refer to the ports of a Service.
type portKey struct {
	family model.Family
	name   string
	proto  model.Proto
}

// offer is what there is for one port.
type offer struct {
	from      []source
	endpoints int // of all of from, with those that are there twice
}

// source is a slice that has endpoints for a port, and the number that it gives
// to the port.
type source struct {
	slice  *model.Slice
	number uint16
}

// supplyOf looks once through the slices of a Service. It costs their ports, and
// not those of the Service for each of them.
func (r *Result) supplyOf(host *model.Host, svc *model.Service, from []*model.Slice) (s supply) {
	s.ports = make(map[portKey]offer, len(svc.Ports))
	listed := 0
	for i, slice := range from {
		if listed += len(slice.Ports); listed > MaxEntries {
			r.Problem(svc, model.WhyTooLarge, "%d of %d EndpointSlices are left out: with them they list more than %d ports", len(from)-i, len(from), MaxEntries)
			break
		}
		if len(slice.Endpoints) > 0 {
			s.any[slice.Family] = true
		}
		for _, p := range slice.Ports {
			k := portKey{slice.Family, p.Name, p.Proto}
			o := s.ports[k]
			if n := len(o.from); n > 0 && o.from[n-1].slice == slice {
				continue // twice in one slice: the first one counts
			}
			s.ports[k] = offer{append(o.from, source{slice, p.Port}), o.endpoints + len(slice.Endpoints)}
		}
	}
	r.ration(host, svc, from, &s)
	return s
}

// ration limits how many endpoints each port gets, where all are too many: each
// costs an entry for each frontend of its port.
func (r *Result) ration(host *model.Host, svc *model.Service, from []*model.Slice, s *supply) {
	entries, fronts := 0, 0
	for _, family := range model.Families() {
		addresses := addressCount(svc, family)
		for _, port := range svc.Ports {
			n := frontCount(svc, port, addresses)
			fronts += n
			entries += n * s.ports[portKey{family, port.Name, port.Proto}].endpoints
		}
	}
	if entries <= MaxEntries {
		return
	}
	s.room = max(1, MaxEntries/fronts)
	r.Problem(svc, model.WhyTooLarge, "%d endpoints of its %d frontends (ports x addresses x endpoints), at most %d are served: %d of each port, those of this node first",
		entries, fronts, MaxEntries, s.room)
	s.locals = make(map[*model.Slice][]int, len(from))
	for _, slice := range from {
		for i := range slice.Endpoints {
			if isLocal(host, &slice.Endpoints[i]) {
				s.locals[slice] = append(s.locals[slice], i)
			}
		}
	}
}

// candidates returns the endpoints that a port may use, some of them twice.
func (s *supply) candidates(host *model.Host, o offer) []endpoint {
	if s.room == 0 || o.endpoints <= s.room {
		all := make([]endpoint, 0, o.endpoints)
		for _, src := range o.from {
			for i := range src.slice.Endpoints {
				all = append(all, src.candidate(host, i))
			}
		}
		return all
	}
	all := make([]endpoint, 0, s.room)
	for _, src := range o.from {
		for _, i := range s.locals[src.slice] {
			if len(all) == s.room {
				return all
			}
			all = append(all, src.candidate(host, i))
		}
	}
	for _, src := range o.from {
		for i := range src.slice.Endpoints {
			if len(all) == s.room {
				return all
			}
			if e := src.candidate(host, i); !e.local {
				all = append(all, e)
			}
		}
	}
	return all
}

func (s source) candidate(host *model.Host, i int) endpoint {
	e := &s.slice.Endpoints[i]
	return endpoint{
		addr: netip.AddrPortFrom(e.Addr, s.number), local: isLocal(host, e), unplaced: e.Node == "",
		state: e.State, hints: e.Hints,
	}
}

func isLocal(host *model.Host, e *model.SliceEndpoint) bool {
	return e.Node != "" && e.Node == host.Name
}
