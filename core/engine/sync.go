// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/sleep"
	"github.com/tandem-proxy/tandem/core/track"
)

// sync brings the data plane to the desired state.
func (e *Engine) sync(ctx context.Context) {
	start := time.Now()
	r := Sync{Full: e.full}
	if e.pending {
		r.Waiting = start.Sub(e.since)
	}
	all := e.full || !e.status.Load().Synced || e.unread.Endpoints || len(e.withheld) > 0
	deltas := e.turns.cut(e.withhold(e.tracker.FlushTouched()), all)
	for name := range e.waiting {
		e.states.stale = append(e.states.stale, name) // gaps of its ports may be known now
	}
	e.waiting = e.turns.backlog.services()
	resolved := time.Now()
	e.backend().Update(deltas)
	compiled := time.Now()
	if e.options.Hooks.Writing != nil {
		e.options.Hooks.Writing(deltas)
	}
	r.Work, r.Err = e.write(ctx)
	end := time.Now()
	r.Host, r.Took = e.tracker.Host(), end.Sub(start)
	r.Stages = [history.Stages]time.Duration{r.Waiting, resolved.Sub(start), compiled.Sub(resolved), end.Sub(compiled)}
	failing := e.failures(r.Work, r.Err)
	r.Applied = e.applied(deltas, failing)
	if r.Work.Held == nil {
		r.Restored, e.repaired = e.restored(append(e.repaired, r.Work.Repaired...)), nil
	}
	r.Gaps = e.changedGaps(r.Work.Gaps)
	e.account(&r, deltas, failing)
	e.pending, e.syncedAt = false, end
	e.turns.end(r.Took, r.Work)
	e.checkBy(end.Add(checkEvery))
	e.noteRepairs(failing, end)
	first := e.record(end, r, failing)
	if first || !e.status.Load().Synced {
		e.endpoints += endpointCount(r.Applied)
	} else {
		e.noteSince(r.Applied, end)
	}
	e.reportPorts(deltas, r.Gaps)
	e.recordSync(start, &r)
	if r.idle() {
		return
	}
	if ctx.Err() == nil {
		e.logSync(ctx, &r, first)
	}
	if e.options.Hooks.Synced != nil {
		e.options.Hooks.Synced(r)
	}
}

// changedGaps returns the ports whose gaps may have changed though they have not, and has the states
// of their Services looked at: those that the data plane names, and all where it is another one or
// the host is.
func (e *Engine) changedGaps(named []model.PortID) (ids []model.PortID) {
	if e.states.recheck || e.full && e.status.Load().Syncs > 0 { // then all states are looked at anyway
		for _, s := range e.tracker.Services() {
			for _, p := range s.Ports {
				ids = append(ids, p.ID)
			}
		}
	}
	for _, id := range named {
		e.states.stale = append(e.states.stale, id.Service)
	}
	return append(ids, named...)
}

// write has the backend write what differs. Our own writes are excluded from the record of other writers.
func (e *Engine) write(ctx context.Context) (dataplane.Work, error) {
	e.mute(true)
	defer e.mute(false)
	return e.backend().Sync(ctx)
}

func (e *Engine) mute(on bool) {
	if e.options.Writers == nil {
		return
	}
	if err := e.options.Writers.Mute(on); err != nil {
		e.options.Log.Debug("suspending the record of other writers failed; drift may lack their names", "err", err)
	}
}

// logSync logs a sync: the first one as a summary, later ones by Service.
func (e *Engine) logSync(ctx context.Context, r *Sync, first bool) {
	log := e.options.Log
	if r.Work.BatchErr != nil {
		log.Warn("transaction failed; retrying in smaller batches", "err", r.Work.BatchErr, "transactions", r.Work.Commits, "failed", r.Work.Failed)
	}
	if r.Work.Corrected > 0 {
		log.Info("recorded state corrected after failed writes", "objects", r.Work.Corrected)
	}
	if r.Err != nil {
		log.Error("sync failed in part; retrying", "err", r.Err, "done", r.Work.Ops, "failed", r.Work.Failed, "retry", e.backend().Next())
	}
	log.Debug("synced", "ports", r.Ports[0]+r.Ports[1], "ops", r.Work.Ops, "commits", r.Work.Commits, "took", r.Took)
	switch {
	case first:
		log.Info("services programmed", "services", e.tracker.Len(), "endpoints", e.endpoints,
			"mode", e.current.Load().Mode.Name, "took", time.Since(e.started))
	case log.Enabled(ctx, levelChange) && e.Status().Synced:
		e.logChanges(ctx, r)
	}
}

// levelChange is that of --v=2.
const levelChange = slog.Level(-2)

// logChanges logs the Services whose changes are in effect now.
func (e *Engine) logChanges(ctx context.Context, r *Sync) {
	var services model.Unique[model.ServiceName]
	more := 0
	for _, d := range r.Applied {
		name := d.ID().Service
		if !services.Add(name) {
			continue
		}
		if e.waiting[name] {
			continue
		}
		if !e.linesOf(name.Namespace).changes.Allow() {
			more++
			continue
		}
		s := e.tracker.Service(name)
		if len(s.Ports) == 0 {
			e.options.Log.Log(ctx, levelChange, "service removed", "service", name.String(), "took", r.Took)
			continue
		}
		endpoints := 0
		for _, p := range s.Ports {
			endpoints += p.Widest()
		}
		e.options.Log.Log(ctx, levelChange, "service programmed", "service", name.String(), "ports", len(s.Ports), "endpoints", endpoints, "took", r.Took)
	}
	if more > 0 {
		e.options.Log.Log(ctx, levelChange, "more services programmed", "services", more, "took", r.Took)
	}
}

// endpointCount is by how much changes have altered the number of endpoints, each
// port's own.
func endpointCount(deltas []model.Delta) (n int) {
	for _, d := range deltas {
		n += d.New.Widest() - d.Old.Widest()
	}
	return n
}

// account fills in the results of a sync for Services and for the senders of
// the changes.
func (e *Engine) account(r *Sync, deltas []model.Delta, failing failures) {
	for _, d := range deltas {
		r.Ports[d.ID().Family]++
	}
	r.Triggered = e.triggered(failing)
	r.StateChanges = e.stateChanges(failing)
	e.full = false
	if r.Err == nil && r.Work.Deferred == 0 {
		r.Repaired, e.drift = e.drift, 0
	}
}

// restored returns the ports that were damaged and are right again, as they are
// now, as if they were new.
func (e *Engine) restored(repaired []model.PortID) (deltas []model.Delta) {
	ids := make(map[model.PortID]struct{}, len(repaired))
	for _, id := range repaired {
		ids[id] = struct{}{}
	}
	var services model.Unique[model.ServiceName]
	for _, id := range repaired {
		if !services.Add(id.Service) {
			continue
		}
		for _, p := range e.tracker.Service(id.Service).Ports {
			if _, was := ids[p.ID]; was {
				deltas = append(deltas, model.Delta{New: p})
			}
		}
	}
	return deltas
}

// applied returns the changes that are in effect after a sync: those of it that
// did not fail, and earlier ones that fail no more.
func (e *Engine) applied(deltas []model.Delta, failing failures) []model.Delta {
	if !failing.unknown && len(failing.ports) == 0 && len(e.unapplied) == 0 {
		return deltas
	}
	e.notApplied(deltas)
	if failing.unknown {
		return nil
	}
	var applied []model.Delta
	for id, d := range e.unapplied {
		if failing.ports[id] == nil {
			applied = append(applied, d)
			delete(e.unapplied, id)
		}
	}
	return applied
}

// notApplied notes changes that are not in effect yet.
func (e *Engine) notApplied(deltas []model.Delta) {
	for _, d := range deltas {
		id := d.ID()
		if first, ok := e.unapplied[id]; ok {
			d.Old = first.Old
		}
		if d.Old == nil && d.New == nil { // deleted before it ever was in effect
			delete(e.unapplied, id)
			continue
		}
		e.unapplied[id] = d
	}
}

// record publishes a sync, and reports whether it is the first that succeeded. While
// it is stuck, what is queued stays queued; what is deferred is queued since this
// sync, which made progress.
func (e *Engine) record(end time.Time, r Sync, failing failures) (first bool) {
	stuck, more := e.stuck(r, failing), r.Work.Deferred > 0
	first = !e.status.Load().Synced && !stuck && !more
	e.publish(func(s *Status) {
		s.Syncs++
		s.Writes += uint64(r.Work.Ops)
		s.Err = cmp.Or(r.Err, failing.host)
		s.Services = e.states.counts(e.tracker.Len() - failing.deferred())
		s.Deferred = r.Work.Deferred
		switch {
		case stuck:
			s.QueuedAt = sleep.Earlier(s.QueuedAt, end)
		case more && r.Work.Ops == 0:
		case more:
			s.QueuedAt = end
		default:
			s.Synced, s.SyncedAt, s.QueuedAt = true, end, e.turns.oldest()
			if len(e.waiting) == 0 {
				s.Done = e.done
			}
		}
	})
	if first {
		close(e.first)
	}
	return first
}

// failures asks the backend, where there can be any.
func (e *Engine) failures(work dataplane.Work, err error) failures {
	if err == nil && work.Deferred == 0 && len(e.unapplied) == 0 && e.states.count[model.Failing] == 0 && !e.hostFails {
		return failures{}
	}
	h := e.backend().Health()
	host := h.Failures[model.PortID{}]
	f := newFailures(h.Failures, work.Held != nil || host != nil || err != nil && len(h.Failures) == 0 && h.Shared == nil && h.Left == nil)
	f.host, e.hostFails = host, host != nil
	return f
}

// stuck reports whether nothing of a sync could be done for lack of the data plane
// as a whole. A Service that is rejected while others work is that Service's own
// problem, and so are those that a start finds rejected with all others in place. But
// when a second one fails, of another namespace if there are several, and nothing was written in
// between, it is no longer the Services: one tenant's do not make the node unhealthy. An object of the host is of
// no Service, and all may depend on it.
func (e *Engine) stuck(r Sync, f failures) bool {
	failing := f.failed
	if f.host != nil {
		return true
	}
	if r.Err == nil || r.Work.Ops > 0 {
		e.failing = failing
		return false
	}
	if f.unknown || len(failing) > 0 && len(failing) >= e.tracker.Len() {
		return true
	}
	if !e.status.Load().Synced {
		e.failing = failing
	}
	more, of := 0, map[string]struct{}{}
	for name := range failing {
		if _, known := e.failing[name]; !known {
			of[name.Namespace] = struct{}{}
			more++
		}
	}
	return more > 1 && (len(of) > 1 || e.tracker.Namespaces(2) == 1)
}

// stateChanges returns the Services whose state a sync has changed. It looks at
// those that were flushed, that fail and that did, and those that sources have found
// problems with: no others can have changed.
func (e *Engine) stateChanges(f failures) (changed []StateChange) {
	defer clear(e.states.early)
	failing := f.failed
	look := func(name model.ServiceName, s track.View) {
		if f.unknown && failing[name] == nil && e.states.bad[name].is == model.Failing {
			return // it may fail still
		}
		if now, ok := e.states.set(e.stateOf(name, s, failing[name])); ok {
			changed = append(changed, now)
		}
	}
	if e.states.recheck {
		e.states.recheck = false
		for _, s := range e.tracker.Services() {
			look(s.Object.Name, *s)
		}
	}
	for name, s := range e.tracker.Flushed() {
		look(name, s)
	}
	for _, name := range e.states.stale {
		look(name, e.tracker.Service(name))
	}
	e.states.stale = nil
	for name := range failing {
		look(name, e.tracker.Service(name))
	}
	if e.states.count[model.Failing] == len(failing) {
		return changed
	}
	for name, state := range e.states.bad {
		if state.is == model.Failing && failing[name] == nil {
			look(name, e.tracker.Service(name))
		}
	}
	return changed
}

func (e *Engine) stateOf(name model.ServiceName, s track.View, failing error) StateChange {
	now := StateChange{Service: name, Gone: s.Object == nil}
	fault, faulty := e.faulty[name]
	faulty = faulty && !now.Gone
	var gaps []model.Gap
	for _, p := range s.Ports {
		gaps = append(gaps, model.OwnGaps(e.backend().Gaps(p.ID))...)
	}
	switch {
	case failing != nil:
		now.Detail = failing.Error()
	case len(s.Problems) > 0:
		now.Detail = s.Problems[0].Text()
	case faulty && fault.Of == name: // one of its EndpointSlices has it
		now.Detail = fault.Object + ": " + fault.Text()
	case faulty:
		now.Detail = fault.Text()
	case len(gaps) > 0:
		now.Detail = gaps[0].Detail
	}
	now.State = model.StateOf(failing != nil, faulty || len(s.Problems)+len(gaps) > 0)
	return now
}

// triggered returns the triggers whose changes are in effect now, and keeps
// those of Services that fail or wait for later.
func (e *Engine) triggered(f failures) []track.Trigger {
	all := append(e.lateTriggers, e.tracker.Triggered()...)
	e.lateTriggers = nil
	if len(all) == 0 {
		return nil
	}
	if f.unknown {
		e.lateTriggers = all[:min(len(all), track.MaxTriggers)]
		return nil
	}
	failing := f.services
	now := all[:0]
	for _, t := range all {
		if failing[t.Service] == nil && !e.waiting[t.Service] {
			now = append(now, t)
		} else if len(e.lateTriggers) < track.MaxTriggers {
			e.lateTriggers = append(e.lateTriggers, t)
		}
	}
	return now
}

// What the source delivers until it has delivered everything is one change, the
// initial list: a start must not use up the history.

// recordInput records an object that was set, or is gone. It comes before the tracker knows.
func (e *Engine) recordInput(o model.Object, gone bool, at int64) {
	if !e.sourceSynced {
		return
	}
	c := history.Change{At: at, Namespace: o.Key().Namespace, Name: o.Key().Name, Deleted: gone}
	switch o := o.(type) {
	case *model.Service:
		was := e.tracker.Service(o.Name).Object
		c.Kind, c.Service, c.Known = history.Service, o.Name.Name, was != nil
		if !gone {
			c.Version, c.Detail = o.Version, history.ServiceChange(was, o)
			if !c.Known {
				c.Age = age(o.Created, at)
			}
		}
	case *model.Slice:
		was := e.tracker.Slice(o.Name)
		c.Kind, c.Known = history.EndpointSlice, was != nil
		if was != nil {
			c.Service = was.Service
		}
		if gone {
			c.Detail = history.SliceChange(was, nil)
		} else {
			c.Version, c.Service, c.Age, c.Detail = o.Version, o.Service, age(o.Triggered, at), history.SliceChange(was, o)
		}
	case *model.Route:
		c.Kind, c.Known, c.Detail = history.Route, e.tracker.HasRoute(o.Name), o.Name.Kind()
		if !gone {
			c.Version = o.Version
			if len(o.Parents) > 0 {
				c.Service = o.Parents[0].Service
			}
		}
	case *model.Grant: // it may be for one Service
		c.Kind, c.Known = history.Grant, e.tracker.HasGrant(o.Name)
		if !gone && len(o.To) == 1 {
			c.Service = o.To[0]
		}
	}
	e.history.Arrived(c)
}

// age is how long before its arrival something happened in the cluster; 0 when
// unknown. Clocks may differ.
func age(happened time.Time, at int64) time.Duration {
	if happened.IsZero() {
		return 0
	}
	return max(0, time.Duration(at-happened.UnixNano()))
}

func (e *Engine) recordInitialList(since time.Time) {
	_, seen := e.arrivals.read()
	e.history.Arrived(history.Change{
		Kind: history.InitialList, At: since.UnixNano(), Count: e.tracker.Len(),
		Detail: fmt.Sprintf("%d changes of Services, %d of EndpointSlices", seen.Services, seen.Slices),
	})
}

// recordHost records that the host is another one, by a change of an object or of
// the machine.
func (e *Engine) recordHost(of history.Kind, name string, since time.Time) {
	if e.sourceSynced {
		e.history.Arrived(history.Change{Kind: of, At: since.UnixNano(), Name: name})
	}
}

// recordSync records a sync that had changes to apply, or did something.
func (e *Engine) recordSync(start time.Time, r *Sync) {
	if r.idle() && !e.history.Waiting() {
		return
	}
	s := history.Sync{
		At: start.UnixNano(), Stages: r.Stages, Ports: r.Ports[0] + r.Ports[1],
		Created: r.Work.Verbs[ledger.Create], Replaced: r.Work.Verbs[ledger.Replace], Deleted: r.Work.Verbs[ledger.Delete],
		Commits: r.Work.Commits, Failed: r.Work.Failed, Deferred: r.Work.Deferred, Repaired: r.Repaired, Full: r.Full,
	}
	if r.Err != nil {
		s.Err = r.Err.Error()
	}
	e.history.Synced(s)
}
