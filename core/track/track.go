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
	"slices"
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

// SetService adds or replaces a Service. One that exceeds a limit is refused: its
// last good object is kept and, where there is none, one without any port.
func (t *Tracker) SetService(object *model.Service) {
	s := t.get(object.Name)
	s.excess = nil
	if p, over := resolve.Excess(object); over {
		s.excess = []model.Problem{p}
		if object = s.object; object == nil {
			object = &model.Service{Name: s.name, Where: p.Where}
		}
	}
	if s.object == nil {
		t.objects++
	}
	s.object, s.claimsStale = object, true
	t.mark(s)
}

// DeleteService removes a Service. Its slices stay, in case it returns.
func (t *Tracker) DeleteService(name model.ServiceName) {
	s, ok := t.services[name]
	if !ok || s.object == nil {
		return
	}
	t.objects--
	s.object, s.excess, s.claimsStale = nil, nil, true
	t.mark(s)
}

// SetSlice adds or replaces a slice, which may have moved to another Service.
func (t *Tracker) SetSlice(slice *model.Slice) {
	s := t.get(model.ServiceName{Namespace: slice.Name.Namespace, Name: slice.Service})
	if old := t.slices[slice.Name]; old != nil && old != s {
		t.DeleteSlice(slice.Name)
	}
	t.slices[slice.Name] = s
	var before *model.Slice
	i, found := s.find(slice.Name)
	if found {
		before, s.slices[i] = s.slices[i], slice
	} else {
		s.slices = slices.Insert(s.slices, i, slice)
	}
	t.triggers.add(s, before, slice)
	t.trustChanged(before, slice)
	t.mark(s)
	t.updateAPIServers(s)
}

// DeleteSlice removes a slice.
func (t *Tracker) DeleteSlice(name model.SliceName) {
	s := t.slices[name]
	if s == nil {
		return
	}
	delete(t.slices, name)
	if i, found := s.find(name); found {
		t.trustChanged(s.slices[i], nil)
		s.slices = slices.Delete(s.slices, i, i+1)
	}
	t.triggers.forget(s)
	t.mark(s)
	t.updateAPIServers(s)
}

// SliceService returns the Service that a known slice belongs to.
func (t *Tracker) SliceService(name model.SliceName) (n model.ServiceName, known bool) {
	if s := t.slices[name]; s != nil {
		return s.name, true
	}
	return n, false
}

// updateAPIServers takes over which API servers there are, where a Service says that.
func (t *Tracker) updateAPIServers(s *service) {
	if s.name == resolve.APIService && t.configured != nil {
		t.setHost(resolve.WithAPIServers(t.configured, s.slices))
	}
}

// find returns a slice's place among the sorted ones.
func (s *service) find(name model.SliceName) (i int, found bool) {
	return slices.BinarySearchFunc(s.slices, name, func(a *model.Slice, b model.SliceName) int {
		return model.ServiceName(a.Name).Compare(model.ServiceName(b))
	})
}

// SetHost replaces the host and touches the Services that can come out
// differently: a new zone, those with hints; other addresses that are not theirs
// to have, those who ask for them; anything else, all of them.
func (t *Tracker) SetHost(host *model.Host) {
	t.configured = host
	if s := t.services[resolve.APIService]; s != nil {
		host = resolve.WithAPIServers(host, s.slices)
	}
	t.setHost(host)
}

func (t *Tracker) setHost(host *model.Host) {
	old := t.host
	t.host = host
	all := old == nil || !old.SamePorts(host)
	zone, policy := all || old.Zone != host.Zone, !all && !old.SamePolicy(host)
	if !zone && !policy {
		return
	}
	for _, s := range t.services {
		if all || policy && s.object != nil && resolve.Affects(old, host, s.object, s.slices) {
			s.claimsStale = true
			t.mark(s)
		} else if zone && s.hinted() {
			t.mark(s)
		}
	}
	slices.SortFunc(t.dirty, func(a, b *service) int { return a.name.Compare(b.name) })
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
	if len(t.routes.backends) > 0 {
		for _, route := range t.routes.backends[s.name] {
			t.markParents(route)
		}
	}
}

func (t *Tracker) markOne(s *service) {
	if !s.queued {
		s.queued = true
		t.dirty = append(t.dirty, s)
	}
}
