// SPDX-License-Identifier: Apache-2.0

package track

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// service is a Service and everything that belongs to it, or what waits for it.
type service struct {
	name   model.ServiceName
	*View                  // its state, to be changed through Tracker.change alone
	lists  uint32          // Tracker.lists when the View was made
	place  uint32          // in Tracker.list, where there is an Object
	excess []model.Problem // why the latest object was rejected

	claimed     *model.Service    // what it has claims for
	rejected    []resolve.Address // of those, what policy rejects
	claimsStale bool              // the claims must be updated
	dirty       bool              // it is in Tracker.dirty
	entailed    bool              // it is in Tracker.entailed
}

// claim is an address and protocol that a Service asks for; port 0 is all of a cluster IP.
type claim struct {
	at    netip.AddrPort
	proto model.Proto
}

// change returns the state of a Service to be changed. Others may have the one before, which
// stays as it is: then it is a copy, which the next list has.
func (t *Tracker) change(s *service) *View {
	if s.lists == t.lists {
		return s.View
	}
	v := *s.View
	v.Slices = slices.Clone(v.Slices)
	s.View, s.lists = &v, t.lists
	if v.Object != nil {
		t.list[s.place] = &v
	}
	return &v
}

// setObject sets the Service, or nil for none, and has it in the list while there is one.
func (t *Tracker) setObject(s *service, object *model.Service) {
	v := t.change(s)
	switch last := len(t.list) - 1; {
	case v.Object == nil && object != nil:
		s.place = uint32(len(t.list))
		t.list = append(t.list, v)
	case v.Object != nil && object == nil: // the last one takes its place
		moved := t.list[last]
		t.list[s.place], t.list[last] = moved, nil
		t.services[moved.Object.Name].place = s.place
		t.list = t.list[:last]
	}
	v.Object = object
}

// find returns a slice's place among the sorted ones.
func (s *service) find(name model.SliceName) (i int, found bool) {
	return slices.BinarySearchFunc(s.Slices, name, func(a *model.Slice, b model.SliceName) int {
		return model.ServiceName(a.Name).Compare(model.ServiceName(b))
	})
}

func (s *service) hinted() bool {
	for _, slice := range s.Slices {
		for i := range slice.Endpoints {
			if slice.Endpoints[i].Hints != nil {
				return true
			}
		}
	}
	return false
}
