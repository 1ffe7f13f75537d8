// SPDX-License-Identifier: Apache-2.0

// Package track holds the inputs, knows which Services a change touches, and
// turns a flush of changes into the Deltas of desired state.
//
//	SetService, SetSlice, SetHost ... ──▶ dirty Services ──Flush──▶ resolve ──▶ []model.Delta
//
// An event costs a few map operations; a flush costs the dirty Services and
// nothing else. Events may come in any order, repeatedly, and in contradiction:
// slices before their Service, a Service that is replaced by another type, the
// same object again. Only the last state of each object counts.
package track

import (
	"net/netip"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// Tracker is the indexed inputs. It is not safe for concurrent use.
type Tracker struct {
	configured *model.Host // as set
	host       *model.Host // and with the API servers that are known from their Service
	services   map[model.ServiceName]*service
	slices     map[model.SliceName]*service // which Service a slice belongs to
	claims     claims
	dirty      []*service
	flushed    []*service // what the last Flush looked at
	triggers   triggers
	objects    int // Services there are
	suspects   model.Suspects
	resuspect  model.Suspects // those, and former ones, that changed since the last Flush
	trusted    []netip.Addr   // suspects that a source has changed
	slots      resolve.Slots
	stats      Stats
	fresh      []model.Problem
	now        func() time.Time
	routes     routes
	warming    map[*service]time.Time // Services with new endpoints, and when those are due for the next step
}

// Stats count work, to prove that cost follows change.
type Stats struct {
	Searches uint64 // through all endpoints, for suspects
	Resolved uint64 // Services resolved
	Deltas   uint64 // ports that changed
}

// service is a Service and everything that belongs to it, or what waits for it.
type service struct {
	name     model.ServiceName
	object   *model.Service  // nil while only slices are known
	excess   []model.Problem // why the latest object was refused
	slices   []*model.Slice  // by name
	shared   bool            // a view has the list of slices, too
	ports    []*model.Port   // as last resolved
	problems []model.Problem
	queued   bool
	since    map[netip.Addr]time.Time // when each endpoint became ready, with slow start; nil before

	claimed     *model.Service // what it has claims for
	refused     []claim        // of those, claims that policy rejects
	claimsStale bool           // the claims must be updated
}

// New returns an empty Tracker. Nothing resolves before SetHost.
func New() *Tracker {
	return &Tracker{
		services: map[model.ServiceName]*service{},
		slices:   map[model.SliceName]*service{},
		claims:   claims{holder: map[claim]*service{}, rivals: map[claim][]*service{}, below: map[claim]serviceSet{}},
		now:      time.Now,
		warming:  map[*service]time.Time{},
		routes:   newRoutes(),
		slots:    func(model.Proto, netip.AddrPort, model.Origin) []netip.AddrPort { return nil },
	}
}

// KeepSlots makes ports that appear for the first time take the order in which
// their endpoints are installed.
func (t *Tracker) KeepSlots(s resolve.Slots) { t.slots = s }

// Host returns the host that ports are resolved for.
func (t *Tracker) Host() *model.Host { return t.configured }

// NewProblems returns the problems that Services have and did not have before,
// since the last call.
func (t *Tracker) NewProblems() []model.Problem {
	ps := t.fresh
	t.fresh = nil
	return ps
}

// Stats returns the work done so far.
func (t *Tracker) Stats() Stats { return t.stats }

func (t *Tracker) get(name model.ServiceName) *service {
	s := t.services[name]
	if s == nil {
		s = &service{name: name}
		t.services[name] = s
	}
	return s
}

// mark touches a Service, and those that have it as a backend.
func (t *Tracker) mark(s *service) {
	t.markOne(s)
	t.markBackend(s.name)
}

func (t *Tracker) markOne(s *service) {
	if !s.queued {
		s.queued = true
		t.dirty = append(t.dirty, s)
	}
}
