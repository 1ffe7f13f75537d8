// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"maps"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// Flow is the relevant part of one tracked flow.
type Flow struct {
	Proto model.Proto
	Dst   netip.AddrPort // where its first packet was sent: the original destination
	From  netip.AddrPort // where its answers come from: the endpoint, or Dst when it is not translated

	Answered bool // an answer was seen
}

// Translated reports whether something redirected the flow. The addresses show it,
// not the flags of the table's entry, because IPVS changes only the former.
func (f Flow) Translated() bool { return f.From != f.Dst }

// Set is a set of endpoints. The nil Set is empty. Sets in a Match are shared
// and never changed.
type Set map[netip.AddrPort]struct{}

// SetOf returns the set of the given endpoints.
func SetOf(endpoints ...netip.AddrPort) Set {
	s := make(Set, len(endpoints))
	for _, e := range endpoints {
		s[e] = struct{}{}
	}
	return s
}

// Has reports whether e is in the set.
func (s Set) Has(e netip.AddrPort) bool {
	_, ok := s[e]
	return ok
}

// minus returns the members of s that are not in o, nil when there are none.
func (s Set) minus(o Set) Set {
	var rest Set
	for e := range s {
		if !o.Has(e) {
			if rest == nil {
				rest = Set{}
			}
			rest[e] = struct{}{}
		}
	}
	return rest
}

// union returns the members of both sets; it is one of them when the other is
// empty.
func (s Set) union(o Set) Set {
	switch {
	case len(s) == 0:
		return o
	case len(o) == 0:
		return s
	}
	all := maps.Clone(s)
	maps.Copy(all, o)
	return all
}

// liveEndpoints returns the endpoints that may serve flows of a port: endpoints that get
// new flows from any frontend or sender, and draining ones. It is empty for a port that
// is not there.
func liveEndpoints(p *model.Port) Set {
	if p == nil {
		return nil
	}
	s := SetOf(p.Draining...)
	for _, pool := range p.Pools() {
		for _, e := range pool.Endpoints {
			s[e.Addr] = struct{}{}
		}
	}
	return s
}
