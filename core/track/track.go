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
//
// The files, each using only those before it:
//
//	addresses.go     EndpointSlices by name and by the addresses of their endpoints
//	service.go       one Service: its object, its slices, its ports
//	claims.go        which Service holds an address that several ask for
//	overrule.go      what external and load balancer IPs give way to
//	routes.go        routes and grants, by parent and by backend
//	trigger.go       changes in the cluster, for the programming latency
//	track.go         Tracker, and which Services are dirty
//	suspects.go      endpoints that have stopped answering
//	slowstart.go     endpoints that get their weight in steps
//	inputs.go        adding, replacing and removing objects
//	view.go          the state of Services, for people
//	flush.go         from dirty Services to Deltas (Flush, Once)
//	resume.go        a Tracker with the state of another one
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
	slices     sliceTable
	claims     claims
	listening  listening
	dirty      []*service
	entailed   []*service // that others' changes touch: see Due
	flushed    []*service // what the last Flush looked at
	triggers   triggers
	list       []*View // of the Services that there are, in no order
	lists      uint32  // how often Views were passed on: those from before are not changed
	suspects   model.Suspects
	resuspect  model.Suspects // those, and former ones, that changed since the last Flush
	changed    []netip.Addr   // those that a source has changed
	slots      resolve.Slots
	stats      Stats
	fresh      []model.Problem
	now        func() time.Time
	routes     routes
	warming    map[*service]time.Time // Services with new endpoints, and when those are due for the next step
}

// Stats count work, to prove that cost follows change.
type Stats struct {
	Suspected uint64 // slices that were looked at for suspects
	Resolved  uint64 // Services resolved
	Deltas    uint64 // ports that changed
	Backends  uint64 // of routes that were looked up
}

// New returns an empty Tracker. Nothing resolves before SetHost.
func New() *Tracker {
	t := &Tracker{
		services: map[model.ServiceName]*service{},
		slices:   newSliceTable(),
		claims:   newClaims(),
		now:      time.Now,
		warming:  map[*service]time.Time{},
		routes:   newRoutes(),
		slots:    func(model.Proto, netip.AddrPort, model.Origin) []netip.AddrPort { return nil },
	}
	t.slices.moved = func(a netip.Addr) { t.claims.change(a) }
	return t
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
		s = &service{name: name, View: new(View), lists: t.lists}
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
	if !s.dirty {
		s.dirty = true
		t.change(s).Queued = true
		t.dirty = append(t.dirty, s)
	}
}

// entail touches a Service that has not changed itself: it has its turn once it is Due.
func (t *Tracker) entail(s *service) {
	if !s.dirty && !s.entailed {
		s.entailed = true
		t.change(s).Queued = true
		t.entailed = append(t.entailed, s)
	}
}

// CollectTriggers makes the Tracker collect triggers later than a moment. Without it
// none are.
func (t *Tracker) CollectTriggers(since time.Time) {
	t.triggers = triggers{since: since, waiting: map[*service][]Trigger{}}
}

// Triggered returns the triggers of the changes flushed since the last call.
func (t *Tracker) Triggered() (all []Trigger) {
	for s, ts := range t.triggers.waiting {
		if s.Queued {
			continue
		}
		if s.Object != nil {
			all = append(all, ts...)
		}
		t.triggers.forget(s)
	}
	return all
}

// markBackend entails the parents of the routes that have a Service as a backend.
func (t *Tracker) markBackend(name model.ServiceName) {
	all := t.routes.backends[name]
	for _, route := range all[:t.routes.allowed(name)] {
		t.markParents(route)
	}
}

// markParents entails the Services that a route decides about.
func (t *Tracker) markParents(route *model.Route) {
	for _, name := range parentsOf(route) {
		if s := t.services[name]; s != nil {
			t.entail(s)
		}
	}
}
