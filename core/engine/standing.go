package engine

import (
	"errors"
	"maps"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/track"
)

// Standing is the state of one Service. It is told when it changes.
type Standing struct {
	Service model.ServiceName
	State   model.State
	Was     model.State
	Gone    bool   // there is no such Service any more
	Detail  string // the first reason for not being Programmed
}

// standings remembers the Services that are not Programmed: mostly few.
type standings struct {
	bad   map[model.ServiceName]model.State
	count [model.States]int // of bad
	// afresh asks for a look at all Services, once: the data plane is another, with
	// other gaps.
	afresh bool
}

// failures are the ports that the data plane refuses, as after a sync. Blind is
// set when something is wrong that no single port stands for: nothing is known of
// those that are not listed.
type failures struct {
	ports map[model.PortID]error
	blind bool
}

// failures asks the backend, where there can be any.
func (e *Engine) failures(work dataplane.Work, err error) failures {
	if err == nil && work.Deferred == 0 && len(e.owed) == 0 && e.standing.count[model.Failing] == 0 {
		return failures{}
	}
	ports, left := e.Backend.Failing()
	_, base := ports[model.PortID{}]
	return failures{ports: ports, blind: work.Held != nil || base || err != nil && len(ports) == 0 && left == nil}
}

// services names the Services with ports that fail, each with one of the errors.
func (f failures) services() map[model.ServiceName]error {
	if len(f.ports) == 0 {
		return nil
	}
	names := map[model.ServiceName]error{}
	for id, err := range f.ports {
		if old := names[id.Service]; old == nil || errors.Is(old, ledger.ErrDeferred) {
			names[id.Service] = err
		}
	}
	delete(names, model.ServiceName{})
	return names
}

// refused names those that fail for another reason than lack of time.
func (f failures) refused() map[model.ServiceName]error {
	names := f.services()
	maps.DeleteFunc(names, func(_ model.ServiceName, err error) bool { return errors.Is(err, ledger.ErrDeferred) })
	return names
}

// deferred counts the Services that wait for their turn.
func (f failures) deferred() int { return len(f.services()) - len(f.refused()) }

// stuck reports whether nothing of a sync could be done for lack of the data plane
// as a whole. One Service that it refuses while others work is that Service's own
// affair, and so are those that a start finds refused with all else in place. But
// when a second one fails and nothing got through in between, it is no longer the
// Services.
func (e *Engine) stuck(r Sync, f failures) bool {
	failing := f.refused()
	if r.Err == nil || r.Work.Ops > 0 {
		e.refused = failing
		return false
	}
	if f.blind || len(failing) > 0 && len(failing) >= e.tracker.Len() {
		return true
	}
	if !e.status.Load().Synced {
		e.refused = failing
	}
	more := 0
	for name := range failing {
		if _, known := e.refused[name]; !known {
			more++
		}
	}
	return more > 1
}

// judge returns the Services whose state a sync has changed. It looks at those
// that were flushed, that fail and that did: no others can have changed.
func (e *Engine) judge(f failures) (changed []Standing) {
	failing := f.refused()
	look := func(name model.ServiceName, s track.Service) {
		if f.blind && failing[name] == nil && e.standing.bad[name] == model.Failing {
			return // it may fail still
		}
		if now, ok := e.standing.set(e.assess(name, s, failing[name])); ok {
			changed = append(changed, now)
		}
	}
	if e.standing.afresh {
		e.standing.afresh = false
		for _, s := range e.tracker.Services() {
			look(s.Object.Name, s)
		}
	}
	for name, s := range e.tracker.Flushed() {
		look(name, s)
	}
	for name := range failing {
		look(name, e.tracker.Service(name))
	}
	if e.standing.count[model.Failing] == len(failing) {
		return changed
	}
	for name, state := range e.standing.bad {
		if state == model.Failing && failing[name] == nil {
			look(name, e.tracker.Service(name))
		}
	}
	return changed
}

func (e *Engine) assess(name model.ServiceName, s track.Service, failing error) Standing {
	now := Standing{Service: name, Gone: s.Object == nil}
	var gaps []model.Gap
	for _, p := range s.Ports {
		gaps = append(gaps, model.OwnGaps(e.Backend.Gaps(p.ID))...)
	}
	switch {
	case failing != nil:
		now.Detail = failing.Error()
	case len(s.Problems) > 0:
		now.Detail = s.Problems[0].Detail + ": " + s.Problems[0].Why.Text()
	case len(gaps) > 0:
		now.Detail = gaps[0].Detail
	}
	now.State = model.StateOf(failing != nil, len(s.Problems)+len(gaps) > 0)
	return now
}

// set enters a standing and reports whether it is news.
func (s *standings) set(now Standing) (Standing, bool) {
	was, bad := s.bad[now.Service]
	now.Was = was // Programmed is the zero value
	if now.State == model.Programmed {
		if !bad {
			return now, false
		}
		delete(s.bad, now.Service)
		s.count[was]--
		return now, true
	}
	if bad && was == now.State {
		return now, false
	}
	if s.bad == nil {
		s.bad = map[model.ServiceName]model.State{}
	}
	if bad {
		s.count[was]--
	}
	s.bad[now.Service] = now.State
	s.count[now.State]++
	return now, true
}

// census counts the Services in each state. One that is gone but cannot be
// removed still counts as failing.
func (s *standings) census(total int) (all [model.States]int) {
	all = s.count
	all[model.Programmed] = max(0, total-s.count[model.Partial]-s.count[model.Failing])
	return all
}

// triggered returns the triggers whose changes are in effect now, and keeps
// those of Services that fail for later.
func (e *Engine) triggered(f failures) []track.Trigger {
	const most = 4096 // they only feed a histogram
	all := append(e.late, e.tracker.Triggered()...)
	e.late = nil
	if len(all) == 0 {
		return nil
	}
	if f.blind {
		e.late = all[:min(len(all), most)]
		return nil
	}
	failing := f.services()
	now := all[:0]
	for _, t := range all {
		if failing[t.Service] == nil {
			now = append(now, t)
		} else if len(e.late) < most {
			e.late = append(e.late, t)
		}
	}
	return now
}
