// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"net/netip"
	"slices"

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

// Set is a set of endpoints: sorted, each once. The nil Set is empty. Sets in a Match are shared
// and never changed.
type Set []netip.AddrPort

// SetOf returns the set of the given endpoints, in their place.
func SetOf(endpoints ...netip.AddrPort) Set {
	slices.SortFunc(endpoints, netip.AddrPort.Compare)
	return slices.Compact(endpoints)
}

// Has reports whether e is in the set.
func (s Set) Has(e netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(s, e, netip.AddrPort.Compare)
	return found
}

// minus returns the members of s that are not in o, in the place of s.
func (s Set) minus(o Set) Set {
	return slices.DeleteFunc(s, func(e netip.AddrPort) bool {
		for len(o) > 0 && o[0].Compare(e) < 0 {
			o = o[1:]
		}
		return len(o) > 0 && o[0] == e
	})
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
	return SetOf(slices.Concat(s, o)...)
}

// liveEndpoints returns the endpoints that may serve flows of a port: endpoints that get
// new flows from any frontend or sender, and draining ones. It is empty for a port that
// is not there.
func liveEndpoints(p *model.Port) Set {
	if p == nil {
		return nil
	}
	pools := p.Pools()
	n := len(p.Draining)
	for _, pool := range pools {
		n += len(pool.Endpoints)
	}
	all := make(Set, 0, n)
	for _, pool := range pools {
		for i := range pool.Endpoints {
			all = append(all, pool.Endpoints[i].Addr)
		}
	}
	return SetOf(append(all, p.Draining...)...)
}
