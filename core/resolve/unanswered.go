// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// passOver divides the endpoints of the cluster's pool into those that get new
// connections and those that are ejected, because they have stopped answering.
// At most half of a pool is ejected, the first by address, and so never its last
// endpoint: a suspicion against most of a pool is more likely wrong than right, and the
// rest could not carry the load. Endpoints of this node answer to it in any case.
func passOver(pool []endpoint) (kept, passed []endpoint) {
	silent := func(e endpoint) bool { return e.state.Has(model.Unanswered) && !e.local }
	if !slices.ContainsFunc(pool, silent) {
		return pool, nil
	}
	kept = make([]endpoint, 0, len(pool))
	for _, e := range pool {
		if silent(e) && len(passed) < len(pool)/2 {
			passed = append(passed, e)
		} else {
			kept = append(kept, e)
		}
	}
	return kept, passed
}

// MarkUnanswered returns slices whose endpoints that are silent suspects have the state
// model.Unanswered. It changes none: slices with a suspect are copied.
func MarkUnanswered(from []*model.Slice, suspects model.Suspects) []*model.Slice {
	if len(suspects) == 0 {
		return from
	}
	marked := from
	for i, s := range from {
		if !hasSuspect(s, suspects) {
			continue
		}
		if &marked[0] == &from[0] {
			marked = slices.Clone(from)
		}
		copied := *s
		copied.Endpoints = slices.Clone(s.Endpoints)
		for k := range copied.Endpoints {
			if back, is := suspects[copied.Endpoints[k].Addr]; is && back.IsZero() {
				copied.Endpoints[k].State |= model.Unanswered
			}
		}
		marked[i] = &copied
	}
	return marked
}

// hasSuspect reports whether an endpoint of a slice is one of the suspects.
func hasSuspect(s *model.Slice, suspects model.Suspects) bool {
	return slices.ContainsFunc(s.Endpoints, func(e model.SliceEndpoint) bool {
		_, is := suspects[e.Addr]
		return is
	})
}
