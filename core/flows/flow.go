// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"iter"
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

// live are the endpoints that may serve flows of a port, some of them several times: endpoints that
// get new flows from any frontend or sender, and draining ones. There are none of a port that is nil.
func live(p *model.Port) iter.Seq[netip.AddrPort] {
	return func(yield func(netip.AddrPort) bool) {
		if p == nil {
			return
		}
		for _, e := range p.Draining {
			if !yield(e) {
				return
			}
		}
		for _, pool := range p.Pools() {
			for i := range pool.Endpoints {
				if !yield(pool.Endpoints[i].Addr) {
					return
				}
			}
		}
	}
}

// liveEndpoints returns the set of them.
func liveEndpoints(p *model.Port) Set {
	n := 0
	for range live(p) {
		n++
	}
	s := make(Set, n)
	for e := range live(p) {
		s[e] = struct{}{}
	}
	return s
}

// noLonger returns the live endpoints of a port that are not in a set, nil when there are none.
func noLonger(old *model.Port, now Set) (gone Set) {
	for e := range live(old) {
		if now.Has(e) {
			continue
		}
		if gone == nil {
			gone = Set{}
		}
		gone[e] = struct{}{}
	}
	return gone
}
