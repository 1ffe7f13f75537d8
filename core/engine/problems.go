// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"container/list"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// Hold is how long a problem of the inputs has to last before it is reported: logged, counted and written as an
// Event. What belongs together arrives as several objects, one after another: a Service and its EndpointSlices, two
// Services between which an address moves, Nodes, ServiceCIDRs, routes and their backends. A controller takes some
// hundred milliseconds for its part, and with one retry after a conflict a second more. The states of Services and
// the problems in a Snapshot are those of the moment.
//
// What this node has measured depends on nothing that is yet to come, and is reported at once; so are Gaps.
const Hold = 5 * time.Second

// held are the problems that have not lasted for Hold: as many at most as there are.
type held struct {
	places map[model.Problem]*list.Element
	queue  list.List // of heldProblem: the one that is due first is first
}

type heldProblem struct {
	model.Problem
	due time.Time
}

// next is when the first problem is due; zero for none.
func (h *held) next() (due time.Time) {
	if at := h.queue.Front(); at != nil {
		due = at.Value.(heldProblem).due
	}
	return due
}

func (h *held) drop(p model.Problem) {
	if at := h.places[p]; at != nil {
		h.queue.Remove(at)
		delete(h.places, p)
	}
}

// hold has new problems wait, and forgets those that are solved. One that replaces another of its object and reason,
// with other details, has lasted as long as that: a count that changes all the time must not hide it.
func (e *Engine) hold(fresh, solved []model.Problem) {
	type subject struct {
		object string
		why    model.Reason
	}
	lasting := map[subject]*list.Element{} // nil where it was reported
	for _, p := range solved {
		s, at := subject{p.Object, p.Why}, e.held.places[p]
		if old, more := lasting[s]; !more || at == nil || old != nil && at.Value.(heldProblem).due.Before(old.Value.(heldProblem).due) {
			lasting[s] = at
		}
	}
	due := time.Now().Add(Hold)
	for _, p := range fresh {
		before, replaces := lasting[subject{p.Object, p.Why}]
		switch {
		case e.held.places[p] != nil:
		case p.Why.Measured():
			e.report(p)
		case !replaces:
			e.held.places[p] = e.held.queue.PushBack(heldProblem{p, due})
		case before == nil:
			e.report(p)
		default:
			e.held.places[p] = e.held.queue.InsertAfter(heldProblem{p, before.Value.(heldProblem).due}, before)
		}
	}
	for _, p := range solved {
		e.held.drop(p)
	}
}

// reportLasting reports the problems that have lasted.
func (e *Engine) reportLasting() {
	now := time.Now()
	for at := e.held.queue.Front(); at != nil; at = e.held.queue.Front() {
		p := at.Value.(heldProblem)
		if now.Before(p.due) {
			return
		}
		e.held.drop(p.Problem)
		e.report(p.Problem)
	}
}

// reportPorts reports what is newly wrong with the ports that changed, or whose gaps did.
func (e *Engine) reportPorts(deltas []model.Delta, changed []model.PortID) {
	e.hold(e.tracker.NewProblems(), e.tracker.SolvedProblems())
	count := map[model.ServiceName]int{} // gaps
	ids := make([]model.PortID, 0, len(deltas)+len(changed))
	for _, d := range deltas {
		ids = append(ids, d.ID())
	}
	for _, id := range append(ids, changed...) {
		gaps := e.backend().Gaps(id)
		if slices.Equal(gaps, e.reported[id]) {
			continue
		}
		delete(e.reported, id)
		if len(gaps) > 0 {
			e.reported[id] = gaps
		}
		e.reportGaps(id, gaps, count)
	}
	for name, n := range count {
		if more := n - model.MaxProblems; more > 0 {
			e.report(model.Problem{Object: "Service " + name.String(), Why: model.WhyUnsupported, Detail: fmt.Sprintf("%d more problems of its ports", more)})
		}
	}
}

// reportGaps reports the gaps of a port. A Service may have thousands of ports that
// lack the same, so that most of them are only counted.
func (e *Engine) reportGaps(id model.PortID, gaps []model.Gap, count map[model.ServiceName]int) {
	for _, g := range gaps {
		if g.OfMode() {
			e.reportModeGap(g)
			continue
		}
		if count[id.Service]++; count[id.Service] > model.MaxProblems {
			continue
		}
		e.report(model.Problem{Object: "Service " + id.Service.String(), Why: model.WhyUnsupported, Detail: id.String() + ": " + g.Detail})
	}
}

// reportModeGap reports, once, what the whole mode does not support: it was chosen,
// so that it is no warning. It is kept under the zero port.
func (e *Engine) reportModeGap(g model.Gap) {
	if reported := e.reported[model.PortID{}]; !slices.Contains(reported, g) {
		e.reported[model.PortID{}] = append(reported, g)
		e.options.Log.Info("mode limitation", "mode", e.current.Load().Mode.Name, "detail", g.Detail)
		e.hookProblem(model.Problem{Object: "data plane", Why: model.WhyUnsupported, Detail: g.Detail})
	}
}

// reportDataPlane reports objects that the data plane has no room for or that are degraded,
// and clears problems that are resolved.
func (e *Engine) reportDataPlane() {
	const source = "data plane"
	now, before := e.backend().Health().Problems, e.problems[source]
	if slices.Equal(now, before) {
		return
	}
	e.hold(without(now, before), without(before, now))
	degraded := 0
	for _, p := range now {
		if p.Why == model.WhyDegraded {
			degraded++
		}
	}
	e.publish(func(s *Status) { s.Degraded = degraded })
	e.keepProblems(source, now, time.Now())
}

// keepProblems replaces the problems of a source, and has the next sync look at the states of
// the Services that have one now or had one before.
func (e *Engine) keepProblems(source string, ps []model.Problem, since time.Time) {
	if e.problems[source] = ps; len(ps) == 0 {
		delete(e.problems, source)
	}
	was := e.faulty
	e.faulty = map[model.ServiceName]model.Problem{}
	for _, source := range slices.Sorted(maps.Keys(e.problems)) {
		for _, p := range e.problems[source] {
			name, ok := p.Service()
			if _, has := e.faulty[name]; ok && !has {
				e.faulty[name] = p
			}
		}
	}
	stale := missing(e.faulty, was)
	if stale = append(stale, missing(was, e.faulty)...); len(stale) > 0 {
		e.states.stale = append(e.states.stale, stale...)
		e.change(since)
	}
}

// missing returns the Services of one map that are not in another, by name.
func missing(from, in map[model.ServiceName]model.Problem) (names []model.ServiceName) {
	for name := range from {
		if _, there := in[name]; !there {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, model.ServiceName.Compare)
	return names
}

// without returns the problems that are not among others.
func without(ps, others []model.Problem) (rest []model.Problem) {
	known := make(map[model.Problem]bool, len(others))
	for _, p := range others {
		known[p] = true
	}
	for _, p := range ps {
		if !known[p] {
			rest = append(rest, p)
		}
	}
	return rest
}

// Log budget per namespace: a burst, then one line per interval saying how many were dropped. The
// metrics have all of it, and the states of Services (status) the rest.
const (
	linesAtOnce = 100
	linesEvery  = 10 * time.Second

	// changesASecond is how many Services that have changed are logged by name.
	changesASecond = 20
)

// lines is the budget of a namespace.
type lines struct {
	limiter *rate.Limiter // of problems
	left    int           // out, since the last line
	changes *rate.Limiter // of Services that have changed
}

// linesOf returns the budget of a namespace.
func (e *Engine) linesOf(namespace string) *lines {
	l := e.lines[namespace]
	if l == nil {
		l = &lines{rate.NewLimiter(rate.Every(linesEvery), linesAtOnce), 0, rate.NewLimiter(changesASecond, changesASecond)}
		e.lines[namespace] = l
	}
	return l
}

// mayLog reports whether there may be another line about an object.
func (e *Engine) mayLog(object string) bool {
	_, name, _ := strings.Cut(object, " ")
	namespace, _, namespaced := strings.Cut(name, "/")
	if !namespaced {
		return true
	}
	l := e.linesOf(namespace)
	if l.left == 0 && l.limiter.Allow() { // first report what was suppressed
		return true
	}
	l.left++
	return false
}

// logMore logs how many lines were left out, and forgets namespaces that have all of their budget again.
func (e *Engine) logMore(now time.Time) {
	if len(e.lines) == 0 {
		return
	}
	for _, namespace := range slices.Sorted(maps.Keys(e.lines)) {
		switch l := e.lines[namespace]; {
		case l.left > 0 && l.limiter.AllowN(now, 1):
			e.options.Log.Warn("more objects not fully programmed", "namespace", namespace, "problems", l.left)
			l.left = 0
		case l.left == 0 && l.limiter.TokensAt(now) >= linesAtOnce && l.changes.TokensAt(now) >= changesASecond:
			delete(e.lines, namespace)
		}
	}
}

func (e *Engine) report(p model.Problem) {
	defer e.hookProblem(p)
	if name, ok := p.Service(); ok {
		e.states.report(name)
	}
	if !e.mayLog(p.Object) {
		return
	}
	log := e.options.Log
	if p.Fix != "" {
		log = log.With("fix", p.Fix)
	}
	log.Warn("object not fully programmed", "object", p.Object, "reason", p.Why.String(), "detail", p.Detail, "where", p.Where)
}

func (e *Engine) hookProblem(p model.Problem) {
	if e.options.Hooks.Problem != nil {
		e.options.Hooks.Problem(p)
	}
}

// StateChange is the new state of one Service.
type StateChange struct {
	Service model.ServiceName
	State   model.State
	Was     model.State
	Gone    bool   // there is no such Service any more
	Detail  string // the first reason for not being Programmed
	// Brief means that the state before it, Partial, ended before any of its problems had lasted
	// long enough to be reported: see Hold.
	Brief bool
}

// serviceStates remembers the Services that are not Programmed: mostly few.
type serviceStates struct {
	bad   map[model.ServiceName]badState
	count [model.States]int // of bad
	// early are Services of which a problem was reported before the sync that looks at their state.
	early map[model.ServiceName]struct{}
	// recheck requests one check of all Services: the data plane is another one, with
	// other gaps.
	recheck bool
	stale   []model.ServiceName // whose inputs have or have no problem any more
}

// badState is the state of a Service that is not Programmed, and whether people were told why.
type badState struct {
	is       model.State
	reported bool
}

// report notes that a problem of a Service was reported.
func (s *serviceStates) report(name model.ServiceName) {
	if was, bad := s.bad[name]; bad {
		s.bad[name] = badState{was.is, true}
		return
	}
	if s.early == nil {
		s.early = map[model.ServiceName]struct{}{}
	}
	s.early[name] = struct{}{}
}

// set enters a state and reports whether it differs from the one before.
func (s *serviceStates) set(now StateChange) (StateChange, bool) {
	was, bad := s.bad[now.Service]
	now.Was = was.is // Programmed is the zero value
	now.Brief = bad && !was.reported
	if now.State == now.Was {
		return now, false
	}
	if bad {
		s.count[was.is]--
	}
	if now.State == model.Programmed {
		delete(s.bad, now.Service)
		return now, true
	}
	if s.bad == nil {
		s.bad = map[model.ServiceName]badState{}
	}
	_, early := s.early[now.Service]
	s.bad[now.Service] = badState{now.State, was.reported || early || now.State == model.Failing}
	s.count[now.State]++
	return now, true
}

// counts returns how many of total Services are in each state. One that is gone
// but cannot be removed still counts as failing.
func (s *serviceStates) counts(total int) (all [model.States]int) {
	all = s.count
	all[model.Programmed] = max(0, total-s.count[model.Partial]-s.count[model.Failing])
	return all
}

// failures are what is not programmed after a sync, by port and by Service.
type failures struct {
	ports map[model.PortID]error
	// unknown is set after an error of no single port: nothing is known
	// then of the ports that are not listed.
	unknown bool
	host    error // of an object of the host

	services map[model.ServiceName]error // each with one of the errors of its ports
	failed   map[model.ServiceName]error // Services that fail for a reason other than lack of time
}

func newFailures(ports map[model.PortID]error, unknown bool) failures {
	f := failures{ports: ports, unknown: unknown}
	if len(ports) == 0 {
		return f
	}
	f.services = map[model.ServiceName]error{}
	for id, err := range ports {
		if old := f.services[id.Service]; old == nil || errors.Is(old, ledger.ErrDeferred) {
			f.services[id.Service] = err
		}
	}
	delete(f.services, model.ServiceName{})
	f.failed = maps.Clone(f.services)
	maps.DeleteFunc(f.failed, func(_ model.ServiceName, err error) bool { return errors.Is(err, ledger.ErrDeferred) })
	return f
}

// deferred counts the Services that a later sync programs.
func (f failures) deferred() int { return len(f.services) - len(f.failed) }
