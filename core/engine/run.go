package engine

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
)

// The pace of the work that no event asks for.
const (
	lookEvery  = 500 * time.Millisecond // how often a foreign write is looked for
	adoptAgain = time.Second            // between attempts to read the data plane at start
	audits     = 3                      // failing in a row; then changes have to wait for one

	// After an audit, one on suspicion waits auditAtMost times as long as that one
	// took, so that somebody who writes all the time does not keep us reading. But
	// no longer than auditPatience, since damage is to be repaired within seconds;
	// unless audits take so long that they need auditAtLeast times as much.
	auditAtMost   = 20
	auditPatience = 3 * time.Second
	auditAtLeast  = 4
)

// pause is how long the next audit on suspicion waits.
func pause(took time.Duration) time.Duration {
	return min(auditAtMost*took, max(auditPatience, auditAtLeast*took))
}

// Run works until ctx ends, once. The data plane is left as it is.
func (e *Engine) Run(ctx context.Context) error {
	e.setHost(time.Now())
	defer e.stopAudit()
	defer close(e.ended)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.inbox.wake:
		case <-timer.C:
		}
		next := e.turn(ctx)
		timer.Reset(time.Until(next))
	}
}

// turn does everything that is due and returns when there will be more.
func (e *Engine) turn(ctx context.Context) (next time.Time) {
	e.drain()
	if !e.adopted && !e.adopt(ctx) {
		return e.adoptAt
	}
	if wait := e.MinGap - time.Since(e.syncedAt); e.MinGap > 0 && wait > 0 {
		return time.Now().Add(wait)
	}
	if !e.told {
		return time.Now().Add(lookEvery)
	}
	e.look(ctx)
	retry := e.Backend.Next()
	if e.pending || !retry.IsZero() && !time.Now().Before(retry) {
		e.sync(ctx)
	}
	next = e.lookAt
	if retry = e.Backend.Next(); !retry.IsZero() && retry.Before(next) {
		next = retry
	}
	return next
}

// adopt reads back what an earlier run left. Until that works nothing is
// written: what cannot be read must not be taken for absent.
func (e *Engine) adopt(ctx context.Context) bool {
	if time.Now().Before(e.adoptAt) {
		return false
	}
	e.adoptAt = time.Now().Add(adoptAgain)
	if err := e.Backend.Adopt(ctx); err != nil {
		if ctx.Err() == nil {
			e.Log.Error("cannot read the data plane, nothing is changed until that works", "error", err, "retry", adoptAgain)
		}
		e.publish(func(s *Status) { s.Err = err })
		return false
	}
	e.adopted = true
	e.tracker.KeepSlots(e.Backend.Slots)
	now := time.Now()
	e.lookAt, e.auditAt = now.Add(lookEvery), now.Add(e.AuditEvery)
	e.publish(func(s *Status) { s.Adopted, s.Err = true, nil })
	return true
}

// drain applies what is in the inbox.
func (e *Engine) drain() {
	queue, since := e.inbox.take()
	if len(queue) == 0 {
		return
	}
	for _, t := range queue {
		t.do(e, since)
		e.done = e.done.plus(t.of)
	}
	if !e.pending {
		return
	}
	e.publish(func(s *Status) { s.Told, s.QueuedAt = e.told, e.since })
}

// look audits the data plane when the time has come, or when somebody else
// wrote to it.
func (e *Engine) look(ctx context.Context) {
	now := time.Now()
	if now.Before(e.lookAt) {
		return
	}
	e.lookAt = now.Add(lookEvery)
	if e.auditing {
		return
	}
	suspicious, err := e.Backend.Disturbed(ctx)
	if err != nil {
		e.Log.Warn("cannot tell whether the data plane was changed by others", "error", err)
		suspicious = true
	}
	if suspicious && now.After(e.notAfter) || now.After(e.auditAt) {
		e.audit(ctx)
	}
}

// audit reads the data plane back beside the changes, which go on. Where they
// leave no moment to read it, they have to wait for once.
func (e *Engine) audit(ctx context.Context) {
	start := time.Now()
	if e.failed >= audits {
		drift, err := e.Backend.Audit(ctx)
		e.audited(ctx, start, drift, err)
		return
	}
	inspection := e.Backend.Inspect()
	e.auditing, e.inspection = true, inspection
	e.auditor.Go(func() {
		inspection.Read(ctx)
		e.inbox.post(func(e *Engine, _ time.Time) { e.compare(ctx, start) })
	})
}

// compare looks at some of what an audit has read, and queues up for the rest
// behind the changes that have arrived meanwhile.
func (e *Engine) compare(ctx context.Context, start time.Time) {
	drift, more, err := e.inspection.Compare()
	if more {
		e.inbox.post(func(e *Engine, _ time.Time) { e.compare(ctx, start) })
		return
	}
	e.auditing = false
	e.audited(ctx, start, drift, err)
}

// stopAudit waits for an audit's reading, and gives up comparing.
func (e *Engine) stopAudit() {
	e.auditor.Wait()
	if e.inspection != nil {
		e.inspection.Close()
	}
}

// audited takes the result of an audit.
func (e *Engine) audited(ctx context.Context, start time.Time, drift int, err error) {
	end := time.Now()
	e.notAfter, e.auditAt = end.Add(pause(end.Sub(start))), end.Add(e.AuditEvery)
	e.publish(func(s *Status) {
		s.Audits.Done++
		if err != nil {
			s.Audits.Failed++
		}
	})
	if err != nil {
		e.failed++
		if ctx.Err() == nil {
			e.Log.Warn("cannot read the data plane back, its state stands as it is", "error", err)
		}
		return
	}
	e.failed = 0
	if drift == 0 {
		return
	}
	e.change(end)
	e.drift += drift
	e.Log.Warn("the data plane was changed by others, repairing", "objects", drift)
	e.publish(func(s *Status) { s.Drift += uint64(drift) })
	if e.Hooks.Drifted != nil {
		e.Hooks.Drifted(drift)
	}
}

// sync brings the data plane to the desired state.
func (e *Engine) sync(ctx context.Context) {
	start := time.Now()
	r := Sync{Full: e.full}
	if e.pending {
		r.Waiting = start.Sub(e.since)
	}
	deltas := e.tracker.Flush()
	e.Backend.Update(deltas)
	r.Work, r.Err = e.Backend.Sync(ctx)
	end := time.Now()
	r.Host, r.Took = e.tracker.Host(), end.Sub(start)
	failing := e.failures(r.Err)
	r.Settled = e.settle(deltas, failing, r.Err)
	e.account(&r, deltas, failing)
	e.pending, e.syncedAt = false, end
	e.record(end, r)
	e.tell(deltas)
	if len(deltas)+len(r.Settled)+len(r.Triggered)+len(r.Standings)+r.Repaired == 0 && r.Work == (dataplane.Work{}) && r.Err == nil {
		return
	}
	if r.Work.Refused != nil && ctx.Err() == nil {
		e.Log.Warn("a transaction was refused as a whole and done in parts", "error", r.Work.Refused, "transactions", r.Work.Commits, "failed", r.Work.Failed)
	}
	if r.Err != nil && ctx.Err() == nil {
		e.Log.Error("not everything could be programmed", "error", r.Err, "done", r.Work.Ops, "failed", r.Work.Failed, "retry", e.Backend.Next())
	}
	e.Log.Debug("synced", "ports", len(deltas), "ops", r.Work.Ops, "commits", r.Work.Commits, "took", r.Took)
	if e.Hooks.Synced != nil {
		e.Hooks.Synced(r)
	}
}

// account fills in what a sync means for the Services and for those who asked for
// the changes.
func (e *Engine) account(r *Sync, deltas []model.Delta, failing failures) {
	for _, d := range deltas {
		r.Ports[d.ID().Family]++
	}
	r.Triggered = e.triggered(failing)
	r.Standings = e.judge(failing)
	e.full = false
	if r.Err == nil {
		r.Repaired, e.drift = e.drift, 0
	}
}

// settle returns the changes that are in effect after a sync: those of it that
// did not fail, and earlier ones that fail no more.
func (e *Engine) settle(deltas []model.Delta, failing failures, err error) []model.Delta {
	if err == nil && len(e.owed) == 0 {
		return deltas
	}
	for _, d := range deltas {
		if first, ok := e.owed[d.ID()]; ok {
			d.Old = first.Old
		}
		e.owed[d.ID()] = d
	}
	if failing.blind {
		return nil // the base, or everything
	}
	var settled []model.Delta
	for id, d := range e.owed {
		if failing.ports[id] == nil {
			settled = append(settled, d)
			delete(e.owed, id)
		}
	}
	return settled
}

// tell reports what is newly wrong with the ports that changed.
func (e *Engine) tell(deltas []model.Delta) {
	for _, p := range e.tracker.NewProblems() {
		e.problem(p)
	}
	for _, d := range deltas {
		id := d.ID()
		gaps := e.Backend.Gaps(id)
		if slices.Equal(gaps, e.said[id]) {
			continue
		}
		delete(e.said, id)
		if len(gaps) > 0 {
			e.said[id] = gaps
		}
		for _, g := range gaps {
			if g.Source {
				e.tellOfMode(g)
				continue
			}
			e.problem(model.Problem{Object: "Service " + id.Service.String(), Why: model.WhyUnsupported, Detail: id.String() + ": " + g.Detail})
		}
	}
}

// tellOfMode reports, once, what the whole mode cannot do. It is said of the port
// that there is not.
func (e *Engine) tellOfMode(g model.Gap) {
	if said := e.said[model.PortID{}]; !slices.Contains(said, g) {
		e.said[model.PortID{}] = append(said, g)
		e.problem(model.Problem{Object: "data plane", Why: model.WhyUnsupported, Detail: g.Detail})
	}
}

// complain reports the problems that were not there before.
func (e *Engine) complain(ps, before []model.Problem) {
	known := make(map[model.Problem]bool, len(before))
	for _, p := range before {
		known[p] = true
	}
	for _, p := range ps {
		if !known[p] {
			e.problem(p)
		}
	}
}

func (e *Engine) problem(p model.Problem) {
	e.Log.Warn("refused, skipped or impossible", "object", p.Object, "reason", p.Why.String(), "detail", p.Detail, "where", p.Where)
	if e.Hooks.Problem != nil {
		e.Hooks.Problem(p)
	}
}

// record publishes a sync. Single Services that fail are their own affair; when
// nothing at all could be done, what waits is waiting still.
func (e *Engine) record(end time.Time, r Sync) {
	stuck := r.Err != nil && r.Work.Ops == 0
	e.publish(func(s *Status) {
		s.Syncs++
		s.Writes += uint64(r.Work.Ops)
		s.Err = r.Err
		s.Services = e.standing.census(e.tracker.Len())
		if !stuck {
			s.Synced, s.SyncedAt, s.QueuedAt, s.Done = true, end, time.Time{}, e.done
		}
	})
}

// change notes that there is something to sync, since a moment unless there was
// something before.
func (e *Engine) change(since time.Time) {
	if !e.pending {
		e.pending, e.since = true, since
	}
}

// publish replaces the status by a changed copy.
func (e *Engine) publish(change func(*Status)) {
	s := *e.status.Load()
	change(&s)
	e.status.Store(&s)
}
