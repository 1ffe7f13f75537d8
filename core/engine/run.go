// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"time"

	"github.com/tandem-proxy/tandem/core/history"
)

// adoptRetry is the time between attempts to read the data plane at start.
const adoptRetry = time.Second

// Run works until ctx ends, once. What is programmed stays.
func (e *Engine) Run(ctx context.Context) error {
	e.started = time.Now()
	e.setHost(history.Machine, "", e.started)
	defer e.stopAudit()
	defer close(e.inbox.ended)
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

// turn does everything that is due and returns when the next thing will be.
func (e *Engine) turn(ctx context.Context) (next time.Time) {
	e.processInbox()
	if !e.adopted && !e.adopt(ctx) {
		return e.adoptAt
	}
	if wait := e.minGap - time.Since(e.syncedAt); e.minGap > 0 && wait > 0 && e.status.Load().Deferred == 0 {
		return time.Now().Add(wait)
	}
	if !e.sourceSynced {
		return time.Now().Add(checkEvery)
	}
	e.check(ctx)
	if due := e.tracker.Next(); !due.IsZero() && !time.Now().Before(due) { // an endpoint gets more of its weight
		e.change(due)
	}
	retry := e.backend().Next()
	if e.pending || !retry.IsZero() && !time.Now().Before(retry) {
		e.sync(ctx)
	}
	next = e.checkAt
	if retry = e.backend().Next(); !retry.IsZero() && retry.Before(next) {
		next = retry
	}
	if due := e.tracker.Next(); !due.IsZero() && due.Before(next) {
		next = due
	}
	return next
}

// adopt reads back what an earlier run left. Until that works nothing is
// written: what cannot be read must not be taken for absent.
func (e *Engine) adopt(ctx context.Context) bool {
	if time.Now().Before(e.adoptAt) {
		return false
	}
	e.adoptAt = time.Now().Add(adoptRetry)
	if err := e.backend().Adopt(ctx); err != nil {
		if ctx.Err() == nil {
			e.options.Log.Error("reading the data plane failed; nothing is changed before that works", "err", err, "retry", adoptRetry)
		}
		e.publish(func(s *Status) { s.Err = err })
		return false
	}
	e.adopted = true
	e.tracker.KeepSlots(e.backend().Slots)
	now := time.Now()
	e.checkAt, e.auditAt = now.Add(checkEvery), now.Add(e.auditEvery)
	e.publish(func(s *Status) { s.Adopted, s.Err = true, nil })
	return true
}

// processInbox applies what is in the inbox.
func (e *Engine) processInbox() {
	queue, since := e.inbox.take()
	if len(queue) == 0 {
		return
	}
	for _, t := range queue {
		t.do(since)
		e.done = e.done.plus(t.of)
	}
	if trusted := e.tracker.Trusted(); len(trusted) > 0 && e.options.Hooks.Trusted != nil {
		e.options.Hooks.Trusted(trusted)
	}
	if !e.pending {
		return
	}
	e.publish(func(s *Status) { s.SourceSynced, s.QueuedAt = e.sourceSynced, e.since })
}
