// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"time"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/sleep"
)

const (
	// adoptRetry is the time between attempts to read the data plane at start.
	adoptRetry = time.Second
	// adoptLog is the time after which the same failure is logged again.
	adoptLog = time.Minute
)

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

// turn does everything that is due and returns when the next work is due.
func (e *Engine) turn(ctx context.Context) (next time.Time) {
	e.processInbox()
	if !e.adopted {
		return e.adopt(ctx)
	}
	if wait := e.minGap - time.Since(e.syncedAt); e.minGap > 0 && wait > 0 && e.status.Load().Deferred == 0 && e.turns.idle() {
		return time.Now().Add(wait)
	}
	if e.begin(time.Now()); !e.sourceSynced {
		return time.Now().Add(checkEvery)
	}
	e.check(ctx)
	retry := e.backend().Next()
	if e.pending || len(e.turns.backlog.lots) > 0 || !retry.IsZero() && !time.Now().Before(retry) {
		e.sync(ctx)
	}
	e.reportLasting()
	if !e.turns.idle() || e.tracker.HasDue() {
		return time.Now()
	}
	return sleep.Earlier(sleep.Earlier(e.checkAt, e.held.next()), sleep.Earlier(e.backend().Next(), e.tracker.Next()))
}

// adopt opens the data plane where it is not open yet, reads back what an earlier run left, and
// returns when to look again. Until that works nothing is written: what cannot be read must not
// be taken for absent. It may take minutes, in which the engine answers.
func (e *Engine) adopt(ctx context.Context) (next time.Time) {
	now := time.Now()
	switch {
	case !e.status.Load().ReadingAt.IsZero():
		return now.Add(adoptRetry)
	case now.Before(e.adoptAt):
		return e.adoptAt
	}
	e.adoptAt = now.Add(adoptRetry)
	e.publish(func(s *Status) { s.ReadingAt = now })
	a, backend, open := &auditTask{start: now, done: make(chan struct{})}, e.backend(), e.options.Open
	e.reader = a
	go func() {
		var err error
		opened := false
		if open != nil {
			if backend, err = open(ctx); err == nil {
				opened = true
				e.current.Store(&DataPlane{e.options.Mode, backend}) // no other one: Switch waits for the first sync
			}
		}
		if err == nil {
			err = backend.Adopt(ctx)
		}
		close(a.done)
		e.inbox.post(func(time.Time) {
			if opened {
				e.options.Open = nil
				desired{host: e.tracker.Host(), incomplete: e.incomplete}.update(backend, desired{})
			}
			e.finishAdopt(ctx, err)
		})
	}()
	return now.Add(adoptRetry)
}

// finishAdopt takes the result of a read.
func (e *Engine) finishAdopt(ctx context.Context, err error) {
	e.publish(func(s *Status) { s.Adopted, s.ReadingAt, s.Err = err == nil, time.Time{}, err })
	if err != nil {
		if now := time.Now(); ctx.Err() == nil && (err.Error() != e.adoptErr || !now.Before(e.adoptLogAt)) {
			e.adoptErr, e.adoptLogAt = err.Error(), now.Add(adoptLog)
			e.options.Log.Error("reading the data plane failed; writes paused", "err", err, "retry", adoptRetry)
		}
		return
	}
	e.adopted, e.auditBefore = true, time.Now()
	e.recoverRanges(time.Now())
	e.tracker.KeepSlots(e.backend().Slots)
	now := time.Now()
	e.checkAt, e.auditAt = now.Add(checkEvery), now.Add(e.auditEvery)
}

// apply does what has arrived, as far as it fits the turn.
func (e *Engine) apply(queue []task, since time.Time) {
	if len(queue) == 0 && e.turns.idle() {
		return
	}
	do := func(t task, since time.Time) {
		t.do(since)
		e.done = e.done.plus(t.of)
	}
	if !e.status.Load().Synced { // the first sync is one turn, whatever is in it
		for _, t := range queue {
			do(t, since)
		}
		return
	}
	for _, t := range e.turns.next(queue, since, e.tracker) {
		do(t.task, t.since)
	}
}

// entailed returns, as tasks, Services to resolve although they did not change
// themselves: each is in a turn of its namespace.
func (e *Engine) entailed() (all []task) {
	for _, n := range e.tracker.Due(time.Now()) {
		all = append(all, task{about: model.Key{Kind: aTouch, Namespace: n.Namespace, Name: n.Name}, do: func(since time.Time) {
			e.tracker.Touch(n)
			e.change(since)
		}})
	}
	return all
}

// processInbox applies what is in the inbox and what earlier turns have entailed, as far as it fits the turn.
func (e *Engine) processInbox() {
	queue, since := e.inbox.take()
	if len(queue) == 0 {
		since = time.Now()
	}
	if entailed := e.entailed(); len(entailed) > 0 {
		queue = append(entailed, queue...)
	}
	e.apply(queue, since)
	if changed := e.tracker.ChangedSuspects(); len(changed) > 0 && e.options.Hooks.Suspects != nil {
		e.options.Hooks.Suspects(changed)
	}
	if !e.pending {
		return
	}
	e.publish(func(s *Status) { s.SourceSynced, s.QueuedAt = e.sourceSynced, sleep.Earlier(s.QueuedAt, e.since) })
}
