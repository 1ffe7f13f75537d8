// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"errors"
	"fmt"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// The back-off between attempts at an op that fails: doubling, from firstRetry to
// lastRetry.
const (
	firstRetry = 200 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// lastBusy is the longest pause before what is busy is tried again: it may be free at any time,
// and to try costs little.
const lastBusy = 5 * time.Second

// BusyLimit is how long an op may be busy before it is a failure. An address that is checked for
// duplicates is ready after one or two seconds, and programs hold the xtables lock for less.
const BusyLimit = 10 * time.Second

// Record takes the result of a planned op, and reports whether the op is failing now.
func (l *Ledger[K, V]) Record(op Op[K, V], err error, now time.Time) (failing bool) {
	e := l.finish(op)
	if err != nil {
		var left LeftError[V]
		if errors.As(err, &left) {
			l.setInstalled(op.Key, e, installation[V]{left.Value, left.There})
		}
		return l.postpone(op, err, now)
	}
	l.setInstalled(op.Key, e, installation[V]{op.New, op.Verb != Delete})
	l.keep(op.Key, e)
	return false
}

// Hold takes back an op for which the data plane as a whole was busy: it is planned again at a
// time, and has not failed, however long that lasts.
func (l *Ledger[K, V]) Hold(op Op[K, V], until time.Time) {
	l.finish(op)
	d := l.waiting[op.Key]
	d.owner, d.until, d.err, d.untried, d.delayed = op.Owner, until, nil, false, false
	l.deferKey(op.Key, d)
}

// Return takes back an op that was not done: its key is planned again.
func (l *Ledger[K, V]) Return(op Op[K, V]) {
	e := l.finish(op)
	l.enqueue(e, op.Key, op.Owner)
}

// finish ends an op that was in flight, and returns its entry.
func (l *Ledger[K, V]) finish(op Op[K, V]) *entry[V] {
	if l.review != nil {
		l.review.written[op.Key] = struct{}{}
	}
	e := l.entry(op.Key)
	e.set(inFlight, false)
	return e
}

// keep ends the retries of a key that differs no more, and drops its entry if it
// is neither wanted nor installed.
func (l *Ledger[K, V]) keep(key K, e *entry[V]) {
	delete(l.waiting, key)
	if e.refs == 0 && !e.is(installed) && e.queuePos() == 0 {
		l.setFound(e, false)
		delete(l.entries, key)
	}
}

func (l *Ledger[K, V]) postpone(op Op[K, V], err error, now time.Time) (failing bool) {
	d := l.waiting[op.Key]
	d.owner, d.delayed = op.Owner, false
	var busy BusyError
	isBusy := errors.As(err, &busy)
	if isBusy && d.busy.IsZero() {
		d.busy = now
	}
	switch {
	case isBusy && now.Sub(d.busy) < BusyLimit:
		d.until, d.err, d.untried = now.Add(busy.After), nil, false
	case isBusy:
		wait := max(busy.After, min(backoff(d.attempts), lastBusy))
		d.until, d.err, d.untried = now.Add(wait), fmt.Errorf("busy for %s and longer: %w", BusyLimit, err), false
		d.attempts++
	case errors.Is(err, ErrDeferred):
		d.until, d.untried = now, true
		if d.err == nil { // else it has failed before, and may again
			d.err = err
		}
	default:
		d.until, d.err, d.untried, d.busy = now.Add(backoff(d.attempts)), err, false, time.Time{}
		d.attempts++
	}
	l.deferKey(op.Key, d)
	return d.failed()
}

func (l *Ledger[K, V]) deferKey(key K, d deferral) {
	l.waiting[key] = d
	l.wakeBy(d.until)
}

func (l *Ledger[K, V]) wakeBy(at time.Time) {
	if l.next.IsZero() || at.Before(l.next) {
		l.next = at
	}
}

func backoff(attempts int) time.Duration {
	if attempts > 7 {
		return lastRetry
	}
	return min(firstRetry<<attempts, lastRetry)
}

// Next returns when a deferred key is due, so that Plan should be called without
// a change; the zero time for never.
func (l *Ledger[K, V]) Next() time.Time {
	if len(l.waiting) == 0 {
		return time.Time{}
	}
	return l.next
}

// Failure is an op that failed and will be retried.
type Failure[K comparable] struct {
	Key   K
	Owner *model.PortID
	Err   error
	// Left means that the object is not wanted any more: deleting it fails.
	Left bool
}

// Failures lists what is failing, in no particular order.
func (l *Ledger[K, V]) Failures() []Failure[K] {
	var fs []Failure[K]
	for key, d := range l.waiting {
		if d.err != nil {
			fs = append(fs, Failure[K]{key, d.owner, d.err, l.entry(key).refs == 0})
		}
	}
	return fs
}
