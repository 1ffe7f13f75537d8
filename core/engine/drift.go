// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
)

// maxDrifts is how many are remembered; the oldest is forgotten first.
const maxDrifts = 1000

// maxDriftLines is how many objects of one audit are logged.
const maxDriftLines = 10

// noteDrift remembers what an audit that began at a time has found, and logs it.
func (e *Engine) noteDrift(start, end time.Time, objects int) []Drift {
	var by Candidates
	if e.options.Writers != nil {
		by = e.options.Writers.Since(e.auditBefore)
	}
	var found []Drift
	for _, d := range e.backend().Drifted() {
		found = append(found, Drift{Difference: d, Found: end, By: by})
	}
	e.drifts = append(e.drifts, found...)
	e.drifts = slices.Delete(e.drifts, 0, max(0, len(e.drifts)-maxDrifts))
	e.history.Arrived(history.Change{Kind: history.Drift, At: end.UnixNano(), Count: objects, Detail: "by " + by.String()})
	e.options.Log.Warn("drift detected; repairing", "objects", objects, "by", by.String())
	for _, d := range found[:min(len(found), maxDriftLines)] {
		e.options.Log.Warn("object changed by another program", "object", d.Object, "state", string(d.State), "service", serviceOf(d.Owner))
	}
	e.auditBefore = start
	return found
}

// serviceOf is empty for objects that are no single Service's.
func serviceOf(id model.PortID) string {
	if id == (model.PortID{}) {
		return ""
	}
	return id.Service.String()
}

// noteRepairs marks what a sync has repaired.
func (e *Engine) noteRepairs(failing failures, end time.Time) {
	if failing.unknown {
		return
	}
	for i := len(e.drifts) - 1; i >= 0; i-- {
		if d := &e.drifts[i]; d.Repaired.IsZero() && failing.ports[d.Owner] == nil {
			d.Repaired = end
		}
	}
}

// Audit reads the data plane back now, and waits for the result, which is in the next
// Snapshot: the next sync repairs what was found. Where it is certain that no other program has
// written since the last audit, its result still holds. It returns when the data
// plane was read.
func (e *Engine) Audit(ctx context.Context) (readAt time.Time, err error) {
	w, err := ask(ctx, e.inbox, func() auditWaiter {
		w := auditWaiter{ctx, time.Now(), make(chan audited, 1)}
		switch {
		case !e.adopted || !e.sourceSynced:
			w.done <- audited{err: ErrNotReady}
		case e.auditing == nil && e.untouched(ctx):
			w.done <- audited{at: e.auditBefore}
		default:
			e.waiters = append(slices.DeleteFunc(e.waiters, auditWaiter.gone), w)
			e.checkAt = time.Time{}
		}
		return w
	})
	if err != nil {
		return readAt, err
	}
	select {
	case result := <-w.done:
		return result.at, result.err
	case <-e.inbox.ended:
		return readAt, ErrEnded
	case <-ctx.Done():
		return readAt, ctx.Err()
	}
}

// untouched reports that everything was read, and that it is certain that no other program has
// written since: an audit would find nothing.
func (e *Engine) untouched(ctx context.Context) bool {
	if !e.backend().Limits().Certain {
		return false
	}
	disturbed, err := e.backend().Disturbed(ctx)
	return !disturbed && err == nil
}

// gone reports that the caller waits no more.
func (w auditWaiter) gone() bool { return w.ctx.Err() != nil }

// notifyWaiters passes the result of an audit to callers who asked before it began. The
// others wait for the next audit.
func (e *Engine) notifyWaiters(start time.Time, err error) {
	e.waiters = slices.DeleteFunc(e.waiters, func(w auditWaiter) bool {
		if w.asked.After(start) {
			return false
		}
		w.done <- audited{start, err}
		return true
	})
	if len(e.waiters) > 0 {
		e.checkAt = time.Time{}
	}
}
