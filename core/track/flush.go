// SPDX-License-Identifier: Apache-2.0

package track

import (
	"runtime"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// Flush resolves the Services that changes have touched and those that are Due, and returns what changed. Services
// whose result is the same as before give no Delta.
func (t *Tracker) Flush() []model.Delta {
	if t.host == nil {
		return nil
	}
	t.settleClaims()
	for _, name := range t.Due(t.now()) {
		t.Touch(name)
	}
	return t.FlushTouched()
}

// Due returns Services to resolve again although they did not change themselves, each once: an endpoint is a
// suspect or is none any more, or gets its next share, a backend of their routes has changed, another
// Service now claims their address, or there is room again for one that was refused. Any
// number of them may follow from one small change. They are returned
// once: the caller has to Touch them, and may take its time.
func (t *Tracker) Due(now time.Time) (all []model.ServiceName) {
	t.touchSuspects()
	t.wake(now)
	for _, s := range t.entailed {
		if s.entailed = false; !s.dirty {
			all = append(all, s.name)
		}
	}
	if clear(t.entailed); cap(t.entailed) > 4096 {
		t.entailed = nil
	}
	t.entailed = t.entailed[:0]
	slices.SortFunc(all, model.ServiceName.Compare)
	return all
}

// HasDue reports whether changes of others have made a Service due.
func (t *Tracker) HasDue() bool { return len(t.entailed)+len(t.resuspect) > 0 }

// Touch has a Service resolved at the next FlushTouched.
func (t *Tracker) Touch(name model.ServiceName) {
	if s := t.services[name]; s != nil {
		t.markOne(s)
	}
}

// FlushTouched is Flush without those that are Due.
func (t *Tracker) FlushTouched() []model.Delta {
	if t.host == nil {
		return nil
	}
	t.settleClaims()
	var deltas []model.Delta
	for _, s := range t.dirty {
		s.dirty = false
		t.change(s).Queued = false
		deltas = t.resolve(deltas, s)
	}
	for _, s := range t.budget.again() {
		t.entail(s)
	}
	clear(t.flushed) // they may be gone
	t.flushed, t.dirty = t.dirty, t.flushed[:0]
	// A queue that once held everything must not stay that large forever.
	if cap(t.dirty) > 4096 {
		t.dirty = nil
	}
	t.stats.Deltas += uint64(len(deltas))
	return deltas
}

// settleClaims finds who has the addresses that the touched Services ask for.
func (t *Tracker) settleClaims() {
	t.claims.expect(len(t.dirty))
	t.checkNew()
	for i := 0; i < len(t.dirty); i++ { // others become dirty by it
		if s := t.dirty[i]; s.claimsStale {
			s.claimsStale = false
			t.updateClaims(s)
		}
	}
	t.decideClaims()
}

func (t *Tracker) resolve(deltas []model.Delta, s *service) []model.Delta {
	var r resolve.Result
	if s.Object == nil {
		t.budget.take(s, 0)
	} else {
		t.stats.Resolved++
		r = resolve.Service(t.host, s.Object, t.warmed(s, resolve.MarkUnanswered(s.Slices, t.suspects)), t.routesOf(s)...)
		t.removeLost(s, &r)
		t.afford(s, &r)
		r.Problems = slices.Concat(s.excess, t.routes.excess(s.Object), model.More(r.Problems, r.More))
	}
	v := t.change(s)
	old := model.IndexPorts(v.Ports)
	for _, p := range r.Problems {
		if !slices.Contains(v.Problems, p) {
			t.fresh = append(t.fresh, p)
		}
	}
	for _, p := range v.Problems {
		if !slices.Contains(r.Problems, p) {
			t.solved = append(t.solved, p)
		}
	}
	v.Problems, v.Ports = r.Problems, r.Ports
	for i, port := range r.Ports {
		var before *model.Port
		if p := old.Find(port.ID, i); p != nil {
			before = *p
		}
		resolve.Reslot(port, before, t.slots)
		if port.Equal(before) {
			v.Ports[i] = before // keep the old value: pointers stay comparable, memory is shared
			continue
		}
		deltas = append(deltas, model.Delta{Old: before, New: port})
	}
	now := model.IndexPorts(v.Ports)
	for i, port := range old.List {
		if now.Find(port.ID, i) == nil {
			deltas = append(deltas, model.Delta{Old: port})
		}
	}
	if v.Object == nil {
		t.stopWarming(s)
	}
	if v.Object == nil && len(v.Slices) == 0 {
		delete(t.services, s.name)
	}
	return deltas
}

// Once resolves a whole set of inputs at once, for plans and tests. Services
// are in order of name, and so are their ports.
func Once(host *model.Host, in *model.Objects) ([]*View, []*model.Port) {
	return OnceAsking(host, in, nil)
}

// OnceAsking is Once on a machine that tells which of its processes listen; ask may be nil.
func OnceAsking(host *model.Host, in *model.Objects, ask Ask) ([]*View, []*model.Port) {
	t := New()
	if ask != nil {
		t.KeepListeners(ask)
	}
	t.SetHost(host)
	t.SetAll(in)
	t.Flush()
	all := t.Services()
	var ports []*model.Port
	for _, s := range all {
		ports = append(ports, s.Ports...)
	}
	return all, ports
}

// routesOf returns the routes of a Service, those that have a port of it with their backends.
func (t *Tracker) routesOf(s *service) (all []resolve.Route) {
	routes := t.routes.of(s.name)
	for n, wins := range resolve.Winning(s.Object, routes) {
		r := resolve.Route{Route: routes[n]}
		if wins {
			r.Backends = make([]resolve.Backend, len(r.Route.Backends))
			for i, b := range r.Route.Backends {
				r.Backends[i] = t.backend(r.Route, b.Service)
			}
		}
		all = append(all, r)
	}
	return all
}

// backend returns what a backend of a route is now.
func (t *Tracker) backend(route *model.Route, name model.ServiceName) (b resolve.Backend) {
	t.stats.Backends++
	referring := t.routes.backends[name]
	b.Granted = referring.may(route)
	b.Excess = b.Granted && !slices.Contains(referring.allowed, route)
	if s := t.services[name]; s != nil && s.Object != nil {
		b.Service = s.Object
		b.Slices = t.warmed(s, resolve.MarkUnanswered(s.Slices, t.suspects))
	}
	return b
}

// Resume returns a Tracker with the state that another one has resolved for a host: all are its Services, in
// has its routes, grants, Orphans and OtherNodes. Flush resolves only what is set afterwards. It is for questions of what an edit
// would change, and costs the claims of all Services.
func Resume(host *model.Host, all []*View, in *model.Objects, suspects model.Suspects, now time.Time) *Tracker {
	t := New()
	t.services = make(map[model.ServiceName]*service, len(all))
	t.slices.putOff(len(all))
	t.claims.expect(len(all))
	t.list, t.lists = make([]*View, 0, len(all)), 1 // the other Tracker has the Views, too
	t.SetClock(func() time.Time { return now })
	t.configured, t.host, t.suspects = host, host, suspects
	t.SetAll(&model.Objects{Slices: in.Slices, Nodes: in.Nodes})
	for i := range all {
		if all[i].Object.Name == resolve.APIService {
			t.host = resolve.WithAPIServers(host, all[i].Slices)
		}
	}
	for i, v := range all {
		if i%stretch == 0 {
			runtime.Gosched()
		}
		s := &service{name: v.Object.Name, View: v, place: uint32(len(t.list))}
		t.services[s.name], t.list = s, append(t.list, v)
		for _, slice := range s.Slices {
			t.slices.set(slice)
		}
		if s.Queued {
			t.change(s).Queued = false
		}
		t.budget.take(s, resolve.EntriesOf(s.Ports...))
		t.updateClaims(s)
	}
	t.decideClaims()
	t.SetAll(&model.Objects{Routes: in.Routes, Grants: in.Grants})
	for _, s := range slices.Concat(t.dirty, t.entailed) { // by claims that were resolved before
		s.dirty, s.entailed = false, false
		t.change(s).Queued = false
	}
	t.dirty, t.entailed = nil, nil
	return t
}
