// SPDX-License-Identifier: Apache-2.0

package track

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// service is a Service and everything that belongs to it, or what waits for it.
type service struct {
	name     model.ServiceName
	object   *model.Service  // nil while only slices are known
	excess   []model.Problem // why the latest object was rejected
	slices   []*model.Slice  // by name
	shared   bool            // a view has the list of slices, too
	ports    []*model.Port   // as last resolved
	problems []model.Problem
	queued   bool
	ready    map[netip.Addr]time.Time // when each endpoint became ready, with slow start; nil before

	claimed     *model.Service // what it has claims for
	rejected    []claim        // of those, claims that policy rejects
	claimsStale bool           // the claims must be updated
}

// claim is an address and protocol that a Service asks for; port 0 is all of a cluster IP.
type claim struct {
	at    netip.AddrPort
	proto model.Proto
}

// ownSlices comes before a change of the list of slices, which others may have.
func (s *service) ownSlices() {
	if s.shared {
		s.slices, s.shared = slices.Clone(s.slices), false
	}
}

// find returns a slice's place among the sorted ones.
func (s *service) find(name model.SliceName) (i int, found bool) {
	return slices.BinarySearchFunc(s.slices, name, func(a *model.Slice, b model.SliceName) int {
		return model.ServiceName(a.Name).Compare(model.ServiceName(b))
	})
}

func (s *service) hinted() bool {
	for _, slice := range s.slices {
		for i := range slice.Endpoints {
			if slice.Endpoints[i].Hints != nil {
				return true
			}
		}
	}
	return false
}
