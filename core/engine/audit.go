package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
)

// The pace of audits.
const (
	lookEvery = 500 * time.Millisecond // how often a foreign write is looked for
	audits    = 3                      // interrupted in a row; then changes have to wait for one

	auditGrace = 5 * time.Second // how long an audit may go on after its time is over

	// After an audit, one on suspicion waits auditAtMost times as long as that one
	// took, so that somebody who writes all the time does not keep us reading. But
	// no longer than auditPatience, since damage is to be repaired within seconds;
	// unless audits take so long that they need auditAtLeast times as much.
	auditAtMost   = 20
	auditPatience = 1500 * time.Millisecond
	auditRetry    = 3 * time.Second // after one that failed
	auditAtLeast  = 4
)

// pause is how long the next audit on suspicion waits.
func pause(took time.Duration) time.Duration {
	return min(auditAtMost*took, max(auditPatience, auditAtLeast*took))
}

// look audits the data plane when the time has come, or when somebody else
// wrote to it.
func (e *Engine) look(ctx context.Context) {
	now := time.Now()
	if now.Before(e.lookAt) {
		return
	}
	e.lookAt = now.Add(lookEvery)
	e.checkFull()
	if e.auditing != nil {
		e.hurry(ctx, now)
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
	start, backend := time.Now(), e.Backend
	if e.reader != nil && !closed(e.reader.done) {
		e.audited(ctx, start, 0, errNoAnswer)
		return
	}
	if e.interrupted >= audits {
		drift, err := backend.Audit(ctx)
		e.audited(ctx, start, drift, err)
		return
	}
	a := &audit{begun: start, done: make(chan struct{})}
	e.auditing, e.reader = a, a
	go func() {
		drift, err := backend.Audit(ctx)
		close(a.done)
		e.inbox.post(func(e *Engine, _ time.Time) { e.conclude(ctx, a, drift, err) })
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

// audit is one that runs beside the changes.
type audit struct {
	begun time.Time
	done  chan struct{} // closed when it has returned
}

// conclude takes the result of an audit, unless that was given up before.
func (e *Engine) conclude(ctx context.Context, a *audit, drift int, err error) {
	if e.auditing == a {
		e.auditing = nil
		e.audited(ctx, a.begun, drift, err)
	}
}

var errNoAnswer = errors.New("the data plane does not answer")

// hurry gives an audit up that does not end: nothing waits for it any more. Until
// its goroutine ends there is no other.
func (e *Engine) hurry(ctx context.Context, now time.Time) {
	if now.Sub(e.auditing.begun) > dataplane.ReadLimit+auditGrace {
		e.conclude(ctx, e.auditing, 0, errNoAnswer)
	}
}

// stopAudit waits for the goroutine of an audit, but not for ever.
func (e *Engine) stopAudit() {
	if e.reader == nil {
		return
	}
	select {
	case <-e.reader.done:
	case <-time.After(auditGrace):
		e.Log.Warn("the data plane does not answer; its audit is abandoned")
	}
}

// audited takes the result of an audit.
func (e *Engine) audited(ctx context.Context, start time.Time, drift int, err error) {
	end := time.Now()
	wait := pause(end.Sub(start))
	if err != nil && !errors.Is(err, dataplane.ErrInterrupted) {
		wait = max(wait, auditRetry) // it leaves suspicion behind, however short it was
	}
	e.notAfter, e.auditAt = end.Add(wait), end.Add(e.AuditEvery)
	e.publish(func(s *Status) {
		s.Audits.Done++
		if err != nil {
			s.Audits.Failed++
		}
	})
	if errors.Is(err, dataplane.ErrInterrupted) {
		e.interrupted++
	} else {
		e.interrupted = 0
	}
	if err != nil {
		if ctx.Err() == nil {
			e.Log.Warn("cannot read the data plane back, its state stands as it is", "error", err)
		}
		return
	}
	e.checkFull()
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

// checkFull reports what has no room now, and forgets what has again.
func (e *Engine) checkFull() {
	const source = "data plane"
	full, before := e.Backend.Full(), e.problems[source]
	if slices.Equal(full, before) {
		return
	}
	e.complain(full, before)
	if e.problems[source] = full; full == nil {
		delete(e.problems, source)
	}
}
