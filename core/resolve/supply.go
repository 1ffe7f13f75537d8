package resolve

import (
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// supply is what the slices of a Service have for its ports.
type supply struct {
	ports map[portKey]offer
	any   [2]bool // a family has endpoints, for whatever port

	room  int                            // how many endpoints of one port are used at most; 0 is all
	ranks map[*model.Slice]*[ranks][]int // which endpoints of a slice have which rank; only with room
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
	r.Problem(svc, model.WhyTooLarge, "%d endpoints of its %d frontends (ports x addresses x endpoints), at most %d are served: %d of each port, ready ones and those of this node first",
		entries, fronts, MaxEntries, s.room)
	s.ranks = make(map[*model.Slice]*[ranks][]int, len(from))
	for _, slice := range from {
		var by [ranks][]int
		for i := range slice.Endpoints {
			if rank := rankOf(host, &slice.Endpoints[i]); len(by[rank]) < s.room {
				by[rank] = append(by[rank], i)
			}
		}
		s.ranks[slice] = &by
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
	for rank := range ranks {
		for _, src := range o.from {
			for _, i := range s.ranks[src.slice][rank] {
				if len(all) == s.room {
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
	return endpoint{
		addr: netip.AddrPortFrom(e.Addr, s.number), local: isLocal(host, e), unplaced: e.Node == "",
		state: e.State, hints: e.Hints,
	}
}

func isLocal(host *model.Host, e *model.SliceEndpoint) bool {
	return e.Node != "" && e.Node == host.Name
}
