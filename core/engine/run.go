package engine

import (
	"context"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
)

// The pace of the work that no event asks for.
const (
	lookEvery   = 500 * time.Millisecond // how often a foreign write is looked for
	adoptAgain  = time.Second            // between attempts to read the data plane at start
	auditAtMost = 20                     // an audit on suspicion waits this many times as long as the last one took
)

// Run works until ctx ends. The data plane is left as it is.
func (e *Engine) Run(ctx context.Context) error {
	e.setHost(e.Host(nil), time.Now())
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
		return time.Now().Add(adoptAgain)
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
	for _, f := range queue {
		f(e, since)
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
	suspicious, err := e.Backend.Disturbed(ctx)
	if err != nil {
		e.Log.Warn("cannot tell whether the data plane was changed by others", "error", err)
		suspicious = true
	}
	if suspicious && now.After(e.notAfter) || now.After(e.auditAt) {
		e.audit(ctx)
	}
}

func (e *Engine) audit(ctx context.Context) {
	start := time.Now()
	drift, err := e.Backend.Audit(ctx)
	end := time.Now()
	e.notAfter, e.auditAt = end.Add(auditAtMost*end.Sub(start)), end.Add(e.AuditEvery)
	if err != nil {
		e.Log.Warn("cannot read the data plane back, its state stands as it is", "error", err)
		return
	}
	if drift == 0 {
		return
	}
	e.change(end)
	e.Log.Warn("the data plane was changed by others, repairing", "objects", drift)
	e.publish(func(s *Status) { s.Drift += uint64(drift) })
	if e.Hooks.Drifted != nil {
		e.Hooks.Drifted(drift)
	}
}

// sync brings the data plane to the desired state.
func (e *Engine) sync(ctx context.Context) {
	start := time.Now()
	deltas := e.tracker.Flush()
	e.Backend.Update(deltas)
	work, err := e.Backend.Sync(ctx)
	end := time.Now()
	e.pending, e.syncedAt = false, end
	e.record(start, end, work.Ops, err)
	if len(deltas) == 0 && work == (dataplane.Work{}) && err == nil {
		return
	}
	if err != nil && ctx.Err() == nil {
		e.Log.Error("not everything could be programmed, the rest is", "error", err, "failed", work.Failed, "retry", e.Backend.Next())
	}
	e.Log.Debug("synced", "ports", len(deltas), "ops", work.Ops, "commits", work.Commits, "took", end.Sub(start))
	if e.Hooks.Synced != nil {
		e.Hooks.Synced(Sync{Host: e.tracker.Host(), Deltas: deltas, Work: work, Err: err, Waiting: start.Sub(e.since), Took: end.Sub(start)})
	}
}

func (e *Engine) record(start, end time.Time, writes int, err error) {
	e.publish(func(s *Status) {
		s.Syncs++
		s.Writes += uint64(writes)
		s.Err = err
		if err != nil {
			if s.FailingAt.IsZero() {
				s.FailingAt = start
			}
			return
		}
		s.Synced, s.SyncedAt, s.FailingAt, s.QueuedAt = true, end, time.Time{}, time.Time{}
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
