package engine

import (
	"context"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
)

// adoptAgain is the time between attempts to read the data plane at start.
const adoptAgain = time.Second

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
	if wait := e.MinGap - time.Since(e.syncedAt); e.MinGap > 0 && wait > 0 && e.status.Load().Deferred == 0 {
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
	failing := e.failures(r.Work, r.Err)
	r.Settled = e.settle(deltas, failing)
	if r.Work.Held == nil {
		r.Restored = e.restored()
	}
	e.account(&r, deltas, failing)
	e.pending, e.syncedAt = false, end
	e.record(end, r, failing)
	e.tell(deltas)
	if len(deltas)+len(r.Settled)+len(r.Triggered)+len(r.Standings)+len(r.Restored)+r.Repaired == 0 && r.Work == (dataplane.Work{}) && r.Err == nil {
		return
	}
	if r.Work.Refused != nil && ctx.Err() == nil {
		e.Log.Warn("a transaction was refused as a whole and done in parts", "error", r.Work.Refused, "transactions", r.Work.Commits, "failed", r.Work.Failed)
	}
	if r.Work.Corrected > 0 {
		e.Log.Info("objects were not as recorded; read again", "objects", r.Work.Corrected)
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
	if r.Err == nil && r.Work.Deferred == 0 {
		r.Repaired, e.drift = e.drift, 0
	}
}

// restored returns the ports that were damaged and are right again, as they are
// now, as if they were new.
func (e *Engine) restored() (deltas []model.Delta) {
	repaired := e.Backend.Repaired()
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

// settle returns the changes that are in effect after a sync: those of it that
// did not fail, and earlier ones that fail no more.
func (e *Engine) settle(deltas []model.Delta, failing failures) []model.Delta {
	if !failing.blind && len(failing.ports) == 0 && len(e.owed) == 0 {
		return deltas
	}
	for _, d := range deltas {
		id := d.ID()
		if first, ok := e.owed[id]; ok {
			d.Old = first.Old
		}
		if d.Old == nil && d.New == nil { // it went before it ever was in effect
			delete(e.owed, id)
			continue
		}
		e.owed[id] = d
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

// record publishes a sync. While it is stuck, what waits is waiting still; what is
// deferred waits since this sync, which made progress.
func (e *Engine) record(end time.Time, r Sync, failing failures) {
	begun, stuck, more := e.status.Load().Synced, e.stuck(r, failing), r.Work.Deferred > 0
	e.publish(func(s *Status) {
		s.Syncs++
		s.Writes += uint64(r.Work.Ops)
		s.Err = r.Err
		s.Services = e.standing.census(e.tracker.Len() - failing.deferred())
		s.Deferred = r.Work.Deferred
		switch {
		case stuck:
		case more:
			s.QueuedAt = end
		default:
			s.Synced, s.SyncedAt, s.QueuedAt, s.Done = true, end, time.Time{}, e.done
		}
	})
	if !begun && !stuck && !more {
		close(e.first)
	}
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
