// SPDX-License-Identifier: Apache-2.0

package track

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

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
		if next.IsZero() || at.Before(next) {
			next = at
		}
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
	return markWarm(from, w.steps)
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
	if due := began.Add(until); w.next.IsZero() || due.Before(w.next) {
		w.next = due
	}
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

// markWarm returns slices whose endpoints have their steps. It changes none.
func markWarm(from []*model.Slice, steps map[netip.Addr]uint8) []*model.Slice {
	marked := slices.Clone(from)
	for i, s := range from {
		isNew := func(e model.SliceEndpoint) bool { return steps[e.Addr] > 0 }
		if !slices.ContainsFunc(s.Endpoints, isNew) {
			continue
		}
		copied := *s
		copied.Endpoints = slices.Clone(s.Endpoints)
		for k := range copied.Endpoints {
			copied.Endpoints[k].Warm = steps[copied.Endpoints[k].Addr]
		}
		marked[i] = &copied
	}
	return marked
}
