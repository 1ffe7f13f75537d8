// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

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

func conditionRank(s model.EndpointState) (n int) {
	if s.Has(model.Ready) {
		n += 4
	}
	if s.Has(model.Serving) {
		n += 2
	}
	if !s.Has(model.Terminating) {
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
