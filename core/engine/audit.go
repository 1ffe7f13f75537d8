// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/sleep"
)

// The pace of audits.
const (
	checkEvery       = 500 * time.Millisecond // how often a write by others is looked for
	checkAtRest      = 10 * time.Second       // the same where they are announced and nothing is written
	maxInterruptions = 3                      // by changes in a row; then these have to wait for an audit
	auditHold        = 5 * time.Second        // the longest that they wait: reading 100,000 Services takes half as long

	auditGrace = 5 * time.Second // how long an audit may go on after its time is over

	// After an audit, the next one on suspicion waits auditAtMost times as long as that one
	// took, so that a program that writes all the time does not cause permanent audits. But
	// no longer than auditPatience, because drift must be repaired within seconds; unless
	// audits take so long that they need auditAtLeast times as much.
	auditAtMost   = 20
	auditPatience = 1500 * time.Millisecond
	auditRetry    = 3 * time.Second // after one that failed
	auditAtLeast  = 4
)

// pause is how long the next audit on suspicion waits.
func pause(took time.Duration) time.Duration {
	return min(auditAtMost*took, max(auditPatience, auditAtLeast*took))
}

// check audits the data plane when the time has come, or when another program
// wrote to it.
func (e *Engine) check(ctx context.Context) {
	now := time.Now()
	if now.Before(e.checkAt) {
		return
	}
	e.checkedAt, e.checkAt = now, now.Add(checkEvery)
	e.reportDataPlane()
	e.logMore(now)
	if e.auditing != nil {
		e.abandonHungAudit(ctx, now)
		return
	}
	suspicious, err := e.backend().Disturbed(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		e.options.Log.Warn("detecting external changes failed; auditing", "err", err)
		suspicious = true
	}
	due := suspicious && now.After(e.notBefore) || now.After(e.auditAt)
	switch {
	case due || len(e.waiters) > 0:
		e.audit(ctx, due)
	case !suspicious && e.announced():
		e.checkAt = sleep.Earlier(now.Add(checkAtRest), e.auditAt)
	}
}

// announced reports whether Noticed is called when another program writes.
func (e *Engine) announced() bool {
	return e.listening.Load() && e.current.Load().Mode.Announced
}

// Listening states whether Noticed is called for each write of another program, but for those
// while Writers are mute. What is written then is looked for after each sync.
func (e *Engine) Listening(on bool) {
	e.listening.Store(on)
	e.Noticed()
}

// Noticed schedules a check of the data plane, as another program may have written to it, but
// not more often than checkEvery.
func (e *Engine) Noticed() {
	e.inbox.post(func(time.Time) { e.checkBy(e.checkedAt.Add(checkEvery)) })
}

// checkBy schedules the next check for external writes no later than at.
func (e *Engine) checkBy(at time.Time) {
	if at.Before(e.checkAt) {
		e.checkAt = at
	}
}

// audit reads the data plane back while changes continue. When they have
// interrupted it too often, it runs on the engine's goroutine and they wait, for a
// limited time and once in so many audits; but not when it is not due, and only a
// caller has asked.
func (e *Engine) audit(ctx context.Context, due bool) {
	if changed, err := e.tracker.Recheck(); err != nil {
		e.options.Log.Warn("listing the listening sockets failed; external IPs on node addresses are kept", "err", err)
	} else if changed {
		e.change(time.Now())
	}
	a, backend := &auditTask{start: time.Now(), due: due, done: make(chan struct{})}, e.backend()
	if e.reader != nil && !closed(e.reader.done) {
		e.recordAudit(ctx, a, 0, errNoAnswer)
		return
	}
	if due && e.interrupted >= maxInterruptions {
		hold, release := context.WithTimeout(ctx, auditHold)
		defer release()
		drift, err := backend.Audit(hold)
		if !errors.Is(err, dataplane.ErrReading) {
			e.interrupted = 0
		}
		if err != nil && hold.Err() != nil {
			err = fmt.Errorf("changes can wait for it no longer: %w", err)
		}
		e.recordAudit(ctx, a, drift, err)
		return
	}
	e.auditing, e.reader = a, a
	go func() {
		drift, err := backend.Audit(ctx)
		close(a.done)
		e.inbox.post(func(time.Time) { e.finishAudit(ctx, a, drift, err) })
	}()
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// finishAudit takes the result of an audit, unless that was abandoned before.
func (e *Engine) finishAudit(ctx context.Context, a *auditTask, drift int, err error) {
	if e.auditing == a {
		e.auditing = nil
		e.recordAudit(ctx, a, drift, err)
	}
}

var errNoAnswer = errors.New("the data plane does not answer")

// abandonHungAudit gives up an audit that does not end. Until its goroutine ends
// there is no other.
func (e *Engine) abandonHungAudit(ctx context.Context, now time.Time) {
	if now.Sub(e.auditing.start) > e.backend().Limits().Read+auditGrace {
		e.finishAudit(ctx, e.auditing, 0, errNoAnswer)
	}
}

// stopAudit waits for the goroutine of an audit, but not forever.
func (e *Engine) stopAudit() {
	if e.reader == nil {
		return
	}
	select {
	case <-e.reader.done:
	case <-time.After(auditGrace):
		e.options.Log.Warn("audit timed out; abandoned")
	}
}

// recordAudit takes the result of an audit.
func (e *Engine) recordAudit(ctx context.Context, a *auditTask, drift int, err error) {
	start, end := a.start, time.Now()
	if errors.Is(err, dataplane.ErrReading) { // another read, such as a trace, is in progress
		if a.due {
			e.auditAt = end.Add(checkEvery)
		}
		return
	}
	if e.options.Hooks.Audited != nil {
		defer e.options.Hooks.Audited()
	}
	e.publish(func(s *Status) {
		s.Audits.Done++
		if err != nil {
			s.Audits.Failed++
		}
	})
	if a.due || err == nil { // a failed audit that a caller asked for does not put off the regular one
		e.schedule(start, end, err)
	}
	defer e.notifyWaiters(start, err)
	if err != nil {
		if ctx.Err() == nil {
			e.options.Log.Warn("audit failed; keeping last known state", "err", err)
		}
		return
	}
	e.reportDataPlane()
	if drift == 0 {
		e.auditBefore = start
		return
	}
	e.change(end)
	e.drift += drift
	found := e.noteDrift(start, end, drift)
	e.publish(func(s *Status) { s.Drift += uint64(drift) })
	if e.options.Hooks.Drifted != nil {
		e.options.Hooks.Drifted(drift, found)
	}
}

// schedule sets when the next audits are, after one.
func (e *Engine) schedule(start, end time.Time, err error) {
	wait := pause(end.Sub(start))
	if err != nil && !errors.Is(err, dataplane.ErrInterrupted) {
		wait = max(wait, auditRetry) // it proved nothing, however short it was
	}
	e.notBefore, e.auditAt = end.Add(wait), end.Add(e.auditEvery)
	switch {
	case !errors.Is(err, dataplane.ErrInterrupted):
		e.interrupted = 0
	case e.syncedAt.After(start): // by Tandem's own writes; delaying them would not stop other programs' writes
		e.interrupted++
	}
}

// maxDrifts is how many are remembered; the oldest is forgotten first.
const maxDrifts = 1000

// maxDriftLines is how many objects of one audit are logged.
const maxDriftLines = 10

// noteDrift remembers what an audit that began at a time has found, and logs it.
func (e *Engine) noteDrift(start, end time.Time, objects int) []Drift {
	var by dataplane.Candidates
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
