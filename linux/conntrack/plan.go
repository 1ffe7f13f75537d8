// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/model"
)

// filter selects entries of one family in the kernel's table. Zero fields are not
// compared, nor are the ports of protocols other than TCP and UDP.
type filter struct {
	family model.Family
	both   bool // entries of either family: of all else only unanswered can be compared
	proto  model.Proto
	dst    netip.AddrPort // the original destination
	from   netip.AddrPort // the source of the answers

	unanswered bool // only entries without an answer
}

// filterable returns the part of an address and port that a filter may hold.
// Unspecified addresses match all. IPv6 addresses must never be in a filter: from
// 5.8 up to at least 6.18 the kernel inverts that comparison and sends the entries
// that differ.
func filterable(at netip.AddrPort) netip.AddrPort {
	if at.Addr().IsUnspecified() || at.Addr().Is6() {
		return netip.AddrPortFrom(netip.Addr{}, at.Port())
	}
	return at
}

// fits reports whether a kernel that supports the filter may answer it with flow.
func (f *filter) fits(flow flows.Flow) bool {
	fits := func(want, is netip.AddrPort) bool {
		return (!want.Addr().IsValid() || want.Addr() == is.Addr()) &&
			(want.Port() == 0 || want.Port() == is.Port() || flow.Proto == model.SCTP)
	}
	return (f.proto == 0 || f.proto == flow.Proto) && fits(f.dst, flow.Dst) && fits(f.from, flow.From)
}

// A narrow dump has the kernel send fewer entries, but each walks the whole table: with its
// 262,144 buckets that takes as long as to send walkCost entries, some 3 ms, and of a full
// table a tenth of sending all. So there are at most maxNarrow, and only one of a table with few entries.
const (
	maxNarrow = 8
	walkCost  = 2500
)

// plan returns the dumps that together return every entry that may match. Matches
// share dumps:
//
//	one for each frontend         one Service loses hundreds of endpoints
//	one for each gone endpoint    one endpoint leaves a Service with ten frontends
//	one for each port             a namespace is deleted, the proxy starts
//	one for all of the protocol   none of these is few enough
//
// Kernels that cannot filter dump everything of a family.
func plan(matches []flows.Match, canFilter bool, entries int) []filter {
	type group struct {
		family model.Family
		proto  model.Proto
	}
	var order []group
	groups := map[group][]*flows.Match{}
	for i := range matches {
		g := group{matches[i].Family(), matches[i].Proto}
		if !canFilter {
			g.proto = 0
		}
		if groups[g] == nil {
			order = append(order, g)
		}
		groups[g] = append(groups[g], &matches[i])
	}
	var dumps []filter
	for _, g := range order {
		wide := filter{family: g.family, proto: g.proto, unanswered: g.proto == model.TCP} // those of TCP with an answer cannot be stale
		if !canFilter {
			dumps = append(dumps, wide)
			continue
		}
		dumps = append(dumps, narrow(wide, groups[g], entries)...)
	}
	return dumps
}

// narrow returns the dumps for matches of one family and protocol.
func narrow(wide filter, matches []*flows.Match, entries int) []filter {
	var endpoints, frontends, ports []filter
	for _, m := range matches {
		frontend, port := wide, wide
		frontend.dst = filterable(m.Frontend)
		port.dst = netip.AddrPortFrom(netip.Addr{}, m.Frontend.Port())
		frontends, ports = addOnce(frontends, frontend), addOnce(ports, port)
		if m.Reach != flows.OnlyGone {
			endpoints = addOnce(endpoints, frontend)
			continue
		}
		for _, e := range m.Gone {
			endpoint := wide
			endpoint.from = filterable(e)
			if endpoints = addOnce(endpoints, endpoint); len(endpoints) > maxNarrow {
				break
			}
		}
	}
	// The more specific a filter, the fewer entries come that are not stale.
	most := min(maxNarrow, 1+entries/walkCost)
	switch {
	case len(endpoints) <= min(len(frontends), most):
		return endpoints
	case len(frontends) <= most:
		return frontends
	case len(ports) <= most:
		return ports
	}
	return []filter{wide}
}

// addOnce adds a filter unless it is already in the list. Beyond maxNarrow only the
// number of filters matters.
func addOnce(filters []filter, f filter) []filter {
	if len(filters) > maxNarrow || slices.Contains(filters, f) {
		return filters
	}
	return append(filters, f)
}
