// SPDX-License-Identifier: Apache-2.0

// Package track holds the inputs, knows which Services a change touches, and
// turns a flush of changes into the Deltas of desired state.
//
//	Set, Delete, SetHost ... ──▶ dirty Services ──Flush──▶ resolve ──▶ []model.Delta
//
// An event costs a few map operations; a flush costs the dirty Services and
// nothing else. Events may come in any order, repeatedly, and in contradiction:
// slices before their Service, a Service that is replaced by another type, the
// same object again. Only the last state of each object counts.
//
// The files:
//
//	track.go      Tracker, and which Services are dirty; one Service; their state, for people
//	inputs.go     adding, replacing and removing objects; listeners, routes and grants
//	addresses.go  EndpointSlices by name and by the addresses of their endpoints
//	budget.go     how many entries of a data plane the Services of a namespace may have
//	claims.go     which Service holds an address that several ask for, and what that overrules
//	suspects.go   endpoints that have stopped answering, and those that get their weight in steps
//	flush.go      from dirty Services to Deltas (Flush, Once); a Tracker with the state of another
package track

import (
	"iter"
	"maps"
	"net/netip"
	"runtime"
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
	slices     sliceTable
	claims     claims
	budget     budget
	listening  listening
	dirty      []*service
	entailed   []*service // affected by changes of other objects; see Due
	flushed    []*service // what the last Flush looked at
	triggers   triggers
	list       []*View // of the Services that there are, in no order
	lists      uint32  // how often Views were passed on: those from before are not changed
	suspects   model.Suspects
	resuspect  model.Suspects // those, and former ones, that changed since the last Flush
	changed    []netip.Addr   // those that a source has changed
	slots      resolve.Slots
	stats      Stats
	fresh      []model.Problem // see NewProblems
	solved     []model.Problem
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
	Claimants uint64 // Services in lines for addresses that were looked at
}

// New returns an empty Tracker. Nothing resolves before SetHost.
func New() *Tracker {
	t := &Tracker{
		services: map[model.ServiceName]*service{},
		slices:   newSliceTable(),
		claims:   newClaims(),
		budget:   newBudget(),
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

// Host returns the host as it was set: SetHost's. Ports are resolved for it with the addresses of the API servers that
// the Service default/kubernetes names.
func (t *Tracker) Host() *model.Host { return t.configured }

// NewProblems returns the problems that Services have and did not have before,
// since the last call.
func (t *Tracker) NewProblems() []model.Problem {
	ps := t.fresh
	t.fresh = nil
	return ps
}

// SolvedProblems returns the problems that Services had and have no more, since the last call.
func (t *Tracker) SolvedProblems() []model.Problem {
	ps := t.solved
	t.solved = nil
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
	if r := t.routes.backends[name]; r != nil {
		for _, route := range r.allowed {
			t.markParents(route)
		}
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

// service is a Service and everything that belongs to it, or what waits for it.
type service struct {
	name   model.ServiceName
	*View                  // its state, to be changed through Tracker.change alone
	lists  uint32          // Tracker.lists when the View was made
	place  uint32          // in Tracker.list, where there is an Object
	excess []model.Problem // why the latest object was rejected

	claimed     *model.Service    // what it has claims for
	rejected    []resolve.Address // of those, what policy rejects
	entries     int               // that it has of Tracker.budget
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
		return a.Name.Compare(b)
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

// Trigger is a change in the cluster that led to a slice of a Service: the time
// of its annotation endpoints.kubernetes.io/last-change-trigger-time. It is what
// the network programming latency is counted from (Kubernetes SIG Scalability).
type Trigger struct {
	Service model.ServiceName
	Family  model.Family
	At      time.Time
}

// MaxTriggers bounds how many are kept between two flushes, and for what is not in effect yet. A flood loses some:
// they only feed a histogram.
const MaxTriggers = 4096

// triggers are those that nothing was flushed for yet.
type triggers struct {
	since   time.Time // earlier ones are another run's
	waiting map[*service][]Trigger
	count   int
}

// add notes what led to a slice. The same version again, as after a relist, is
// ignored.
func (ts *triggers) add(s *service, before, now *model.Slice) {
	if ts.waiting == nil || !now.Triggered.After(ts.since) || ts.count == MaxTriggers {
		return
	}
	if before != nil && before.Triggered.Equal(now.Triggered) {
		return
	}
	ts.waiting[s] = append(ts.waiting[s], Trigger{s.name, now.Family, now.Triggered})
	ts.count++
}

// forget drops a Service's triggers: after a deletion the last one belongs to an
// older change, as in kube-proxy.
func (ts *triggers) forget(s *service) {
	ts.count -= len(ts.waiting[s])
	delete(ts.waiting, s)
}

// View is the state of one Service. Those of a list do not change any more: a change of the Service makes
// another one. Those of Service and Flushed, which are made for every change, are valid until the next one: what
// is in their Slices may be replaced.
type View struct {
	Object   *model.Service
	Slices   []*model.Slice
	Ports    []*model.Port
	Problems []model.Problem
	// Ready is when each endpoint became ready, with slow start; the zero time for those
	// that always were. Nil without.
	Ready map[netip.Addr]time.Time
	// Queued means that the inputs have changed since: the next Flush resolves them.
	Queued bool
}

// Service returns one Service as last resolved, until the next change; its Object is nil when there
// is none of that name.
func (t *Tracker) Service(name model.ServiceName) View {
	if s := t.services[name]; s != nil {
		return *s.View
	}
	return View{}
}

// Flushed ranges over what the last Flush looked at, with their names, as Service returns them, in no order.
// The Object of
// those that are gone is nil. It costs what that Flush did.
func (t *Tracker) Flushed() iter.Seq2[model.ServiceName, View] {
	return func(yield func(model.ServiceName, View) bool) {
		for _, s := range t.flushed {
			if !yield(s.name, *s.View) {
				return
			}
		}
	}
}

// Named returns the Service of a name, if there is one, as a list.
func (t *Tracker) Named(n model.ServiceName) []*View {
	if s := t.services[n]; s != nil && s.Object != nil {
		t.lists++
		return []*View{s.View}
	}
	return nil
}

// Concerned returns the Services that affect a packet to an address: they hold the
// address, its cluster IP or a port of that, or the node port of its number.
func (t *Tracker) Concerned(p model.Proto, to netip.AddrPort) (all []*View) {
	t.lists++
	unspecified := model.FamilyOf(to.Addr()).Unspecified()
	found := slices.Clone(t.claims.line(whole(to.Addr()))) // they may hold other ports
	for _, c := range []claim{{to, p}, {netip.AddrPortFrom(unspecified, to.Port()), p}} {
		found = append(found, t.claims.holder(c))
	}
	var once model.Unique[*service]
	for _, s := range found {
		if s != nil && s.Object != nil && once.Add(s) {
			all = append(all, s.View)
		}
	}
	return all
}

// Services lists all Services by name. It walks everything: for requests of
// users, never for a change.
func (t *Tracker) Services() []*View {
	all := t.Unsorted()
	SortServices(all)
	return all
}

// Where processors are few, a walk over all Services could hold up a change for 10 ms, until the runtime
// interrupts it: so walks yield now and then.
const (
	stretch  = 16   // Services to be resumed: some tens of microseconds
	compared = 1024 // comparisons of a sort: some hundred
)

// SortServices sorts by name: most of what a list costs.
func SortServices(all []*View) {
	n := 0
	slices.SortFunc(all, func(a, b *View) int {
		if n++; n%compared == 0 {
			runtime.Gosched()
		}
		return a.Object.Name.Compare(b.Object.Name)
	})
}

// Unsorted lists all Services. It looks at none of them, and copies 8 bytes for each.
func (t *Tracker) Unsorted() []*View {
	t.lists++
	return slices.Clone(t.list)
}

// Settled reports whether all Services are resolved as of a time: the next Flush would
// resolve none.
func (t *Tracker) Settled(now time.Time) bool {
	next := t.Next()
	return t.host != nil && len(t.dirty)+len(t.entailed)+len(t.resuspect)+len(t.claims.changed) == 0 && (next.IsZero() || now.Before(next))
}

// Len returns how many Services there are.
func (t *Tracker) Len() int { return len(t.list) }

// Namespaces returns in how many namespaces there are Services, most at most. It may walk everything.
func (t *Tracker) Namespaces(most int) int {
	seen := map[string]struct{}{}
	for _, v := range t.list {
		if seen[v.Object.Name.Namespace] = struct{}{}; len(seen) == most {
			break
		}
	}
	return len(seen)
}

// Routes returns the routes there are, by precedence.
func (t *Tracker) Routes() []*model.Route {
	return sorted(t.routes.all, (*model.Route).Compare)
}

// Grants returns the grants there are, by name.
func (t *Tracker) Grants() []*model.Grant {
	return sorted(t.routes.grants, func(a, b *model.Grant) int {
		return a.Name.Compare(b.Name)
	})
}

// HasRoute reports whether there is a route.
func (t *Tracker) HasRoute(name model.RouteName) bool { return t.routes.all[name] != nil }

// HasGrant reports whether the grant exists.
func (t *Tracker) HasGrant(name model.GrantName) bool { return t.routes.grants[name] != nil }

func sorted[K comparable, V any](all map[K]V, compare func(a, b V) int) []V {
	return slices.SortedFunc(maps.Values(all), compare)
}
