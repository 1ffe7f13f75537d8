// SPDX-License-Identifier: Apache-2.0

package track

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/sleep"
)

// SetSuspects replaces the addresses of endpoints that have stopped answering. The
// Services that have one of those that are new or gone are Due.
func (t *Tracker) SetSuspects(suspects model.Suspects) {
	for _, pair := range [][2]model.Suspects{{suspects, t.suspects}, {t.suspects, suspects}} {
		for a, back := range pair[0] {
			if was, both := pair[1][a]; !both || !was.Equal(back) {
				t.noteSuspect(a)
			}
		}
	}
	t.suspects = suspects
}

// noteSuspect has the Services of an address resolved.
func (t *Tracker) noteSuspect(a netip.Addr) {
	if t.resuspect == nil {
		t.resuspect = model.Suspects{}
	}
	t.resuspect[a] = time.Time{}
}

// touchSuspects entails the Services of the addresses that were noted since the last Flush.
func (t *Tracker) touchSuspects() {
	if len(t.resuspect) == 0 {
		return
	}
	for a := range t.resuspect {
		for slice := range t.slices.at(a) {
			t.stats.Suspected++
			s := t.services[slice.Owner()]
			t.entail(s)
			t.markBackend(s.name)
		}
	}
	t.resuspect = nil
}

// Suspects returns them, as last set.
func (t *Tracker) Suspects() model.Suspects { return t.suspects }

// ChangedSuspects returns the suspects that a source has changed since the last call. They
// stay suspects: whoever may write an EndpointSlice decides nothing about the addresses in it.
func (t *Tracker) ChangedSuspects() []netip.Addr {
	all := t.changed
	t.changed = nil
	return all
}

// noteChanged notes the suspects of a slice whose node or conditions have changed, and those that
// are not in it any more. Either slice may be nil.
func (t *Tracker) noteChanged(before, now *model.Slice) {
	if len(t.suspects) == 0 || before == nil {
		return
	}
	type said struct {
		node  string
		state model.EndpointState
	}
	is := map[netip.Addr]said{}
	if now != nil {
		for _, e := range now.Endpoints {
			is[e.Addr] = said{e.Node, e.State}
		}
	}
	for _, e := range before.Endpoints {
		_, suspect := t.suspects[e.Addr]
		if suspect && is[e.Addr] != (said{e.Node, e.State}) && !slices.Contains(t.changed, e.Addr) {
			t.changed = append(t.changed, e.Addr)
		}
	}
}

// Endpoint is an address and port on another node that takes connections.
type Endpoint struct {
	At      netip.AddrPort
	Node    string // empty where unknown
	Service model.ServiceName
}

// maxOf is how many endpoints of a Service RemoteOf returns: more than one node has of it.
const maxOf = 256

// RemoteOf returns ready endpoints, on other nodes, of the Service that has a
// TCP frontend, or of the named one where the frontend is the zero value. One that is no
// Service's own address may be a node port.
func (t *Tracker) RemoteOf(frontend netip.AddrPort, name model.ServiceName) (all []Endpoint) {
	s := t.services[name]
	if frontend.IsValid() {
		s = t.claims.holder(claim{frontend, model.TCP})
	}
	if s == nil && frontend.IsValid() {
		nodePort := netip.AddrPortFrom(model.FamilyOf(frontend.Addr()).Unspecified(), frontend.Port())
		s = t.claims.holder(claim{nodePort, model.TCP})
	}
	if s == nil || t.host == nil {
		return nil
	}
	for _, slice := range t.backing(s) {
		for e := range t.remote(slice) {
			if all = append(all, e); len(all) == maxOf {
				return all
			}
		}
	}
	return all
}

// Backing returns the slices whose endpoints a Service may use.
func (t *Tracker) Backing(name model.ServiceName) []*model.Slice {
	if s := t.services[name]; s != nil {
		return t.backing(s)
	}
	return nil
}

// backing returns the slices whose endpoints a Service may use: its own, and those of
// the backends of its routes.
func (t *Tracker) backing(s *service) []*model.Slice {
	all := slices.Clip(s.Slices)
	if len(t.routes.all) == 0 {
		return all
	}
	var seen model.Unique[model.ServiceName] // many routes may name one backend
	seen.Add(s.name)
	for _, route := range t.routes.of(s.name) {
		for _, b := range route.Backends {
			if of := t.services[b.Service]; of != nil && seen.Add(b.Service) {
				all = append(all, of.Slices...)
			}
		}
	}
	return all
}

// maxAt is how many endpoints of a namespace at one address RemoteAt returns: a pod has a few ports.
const maxAt = 16

// RemoteAt returns the ready endpoints on other nodes that have an address: all TCP ports, of all
// Services, sorted. It costs the EndpointSlices that have the address. Of a namespace that has more than
// maxAt there it returns as many.
func (t *Tracker) RemoteAt(a netip.Addr) (all []Endpoint) {
	found := map[string]int{} // by namespace
	for slice, e := range t.At(a) {
		for at := range t.remoteOf(slice, e) {
			if found[at.Service.Namespace]++; found[at.Service.Namespace] <= maxAt {
				all = append(all, at)
			}
		}
	}
	slices.SortFunc(all, func(a, b Endpoint) int { return cmp.Or(a.At.Compare(b.At), a.Service.Compare(b.Service)) })
	return all
}

func (t *Tracker) remote(slice *model.Slice) iter.Seq[Endpoint] {
	return func(yield func(Endpoint) bool) {
		for i := range slice.Endpoints {
			for at := range t.remoteOf(slice, &slice.Endpoints[i]) {
				if !yield(at) {
					return
				}
			}
		}
	}
}

// remoteOf ranges over the TCP ports of one endpoint, if it is ready and on another node.
func (t *Tracker) remoteOf(slice *model.Slice, e *model.SliceEndpoint) iter.Seq[Endpoint] {
	return func(yield func(Endpoint) bool) {
		if t.host == nil || !e.State.Has(model.Ready) || e.Node != "" && e.Node == t.host.Name {
			return
		}
		for _, p := range slice.Ports {
			if p.Proto == model.TCP && !yield(Endpoint{netip.AddrPortFrom(e.Addr, p.Port), e.Node, slice.Owner()}) {
				return
			}
		}
	}
}

// Slow start: an endpoint that becomes ready beside others gets tenths of its weight,
// from one to ten, over the time that its Service asks for. Endpoints that are ready when a
// Service is first resolved are not new, since their age is not known. While
// there is a new endpoint, its Service is resolved at each step, and otherwise only
// when it changes.

// SetClock replaces time.Now.
func (t *Tracker) SetClock(now func() time.Time) { t.now = now }

// Next returns when Due has something to do without a change; zero for never. It
// costs the Services with new endpoints.
func (t *Tracker) Next() (next time.Time) {
	for _, at := range t.warming {
		next = sleep.Earlier(next, at)
	}
	return next
}

// wake entails the Services of which an endpoint is due for its next step. They are back in warming when they are
// resolved.
func (t *Tracker) wake(now time.Time) {
	for s, at := range t.warming {
		if !now.Before(at) {
			delete(t.warming, s)
			t.entail(s)
			t.markBackend(s.name)
		}
	}
}

// warmed returns the slices of a Service, with the endpoints that are new marked as such.
func (t *Tracker) warmed(s *service, from []*model.Slice) []*model.Slice {
	w := warming{now: t.now()}
	if t.comeBack(from, &w); s.Object.Choice.SlowStart > 0 {
		t.startSlowly(s, from, &w)
	} else if s.Ready != nil {
		t.change(s).Ready = nil
	}
	if len(w.steps) == 0 {
		delete(t.warming, s)
		return from
	}
	t.warming[s] = w.next
	return model.MarkEndpoints(from, func(e model.SliceEndpoint) model.SliceEndpoint {
		e.Warm = w.steps[e.Addr]
		return e
	})
}

// warming is at which step endpoints are, and when the first is due for its next one.
type warming struct {
	now   time.Time
	next  time.Time
	steps map[netip.Addr]uint8
}

// add adds an endpoint that began at a time; of two the smaller step counts.
func (w *warming) add(a netip.Addr, began time.Time, window time.Duration) {
	step, until := warmStep(w.now.Sub(began), window)
	if had := w.steps[a]; step == 0 || had > 0 && had < step {
		return
	}
	if w.steps == nil { // most Services never have one
		w.steps = map[netip.Addr]uint8{}
	}
	w.steps[a] = step
	w.next = sleep.Earlier(w.next, began.Add(until))
}

// comebackEndpoints is how many endpoints of a family a Service has at most whose
// endpoints come back in steps: that makes ten slots of each endpoint's one
// (model.Pool), and beside more a single one matters little.
const comebackEndpoints = 32

// comeBack adds the endpoints that answer again.
func (t *Tracker) comeBack(from []*model.Slice, w *warming) {
	if len(t.suspects) == 0 {
		return
	}
	var endpoints [2]int // by family
	for _, slice := range from {
		endpoints[slice.Family] += len(slice.Endpoints)
	}
	for _, slice := range from {
		if endpoints[slice.Family] > comebackEndpoints {
			continue
		}
		for i := range slice.Endpoints {
			if back := t.suspects[slice.Endpoints[i].Addr]; !back.IsZero() {
				w.add(slice.Endpoints[i].Addr, back, model.SlowStart)
			}
		}
	}
}

// startSlowly adds the endpoints that are new.
func (t *Tracker) startSlowly(s *service, from []*model.Slice, w *warming) {
	since := make(map[netip.Addr]time.Time, len(s.Ready))
	for _, slice := range from {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if !e.State.Has(model.Ready) {
				continue
			}
			at, known := s.Ready[e.Addr]
			if !known && s.Ready != nil {
				at = w.now
			}
			since[e.Addr] = at
		}
	}
	t.change(s).Ready = since
	for a, at := range since {
		w.add(a, at, s.Object.Choice.SlowStart)
	}
}

// SetReady sets when the endpoints of a Service became ready, as returned by Service.Ready. The
// Service is resolved again.
func (t *Tracker) SetReady(n model.ServiceName, since map[netip.Addr]time.Time) {
	if s := t.services[n]; s != nil {
		t.change(s).Ready = since
		t.mark(s)
	}
}

func (t *Tracker) stopWarming(s *service) {
	t.change(s).Ready = nil
	delete(t.warming, s)
}

// warmSteps is in how many steps an endpoint gets its weight: tenths of it, the first
// at once (model.SliceEndpoint).
const warmSteps = 10

// warmStep returns at which step an endpoint is, 0 when it has all of its weight,
// and at what age the next one is due.
func warmStep(age, window time.Duration) (step uint8, until time.Duration) {
	if age < 0 { // a clock that was set back
		age = 0
	}
	if age >= window {
		return 0, 0
	}
	n := age*(warmSteps-1)/window + 1
	return uint8(n), (n*window + warmSteps - 2) / (warmSteps - 1)
}
