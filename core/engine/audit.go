package engine

import (
	"context"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
)

// The pace of audits.
const (
	lookEvery = 500 * time.Millisecond // how often a foreign write is looked for
	audits    = 3                      // failing in a row; then changes have to wait for one

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
	e.fills()
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

// fills tells what an audit has found to be full, and forgets what has room again.
func (e *Engine) fills() {
	f, ok := e.Backend.(dataplane.Filling)
	if !ok {
		return
	}
	const source = "data plane"
	var full []model.Problem
	for _, what := range f.Full() {
		full = append(full, model.Problem{Object: source, Why: model.WhyFull, Detail: what})
	}
	e.complain(full, e.problems[source])
	if e.problems[source] = full; full == nil {
		delete(e.problems, source)
	}
}
