// SPDX-License-Identifier: Apache-2.0

package events

import (
	"container/list"
	"time"

	"golang.org/x/time/rate"
)

// limits are the budgets of a queue.
type limits struct {
	waiting int // records that wait to be written
	known   int // Events that are remembered, to merge equal ones
	objects int // objects whose budget is remembered

	perObject, overall           rate.Limit // records a second
	perObjectBurst, overallBurst int

	again  time.Duration // between two records of one Event
	forget time.Duration // after which an equal Event is a new one
	tries  int           // to write a record
	pause  time.Duration // after the first failure; doubled after each
}

// standard are the budgets in use: a flapping Service gets a dozen records in
// ten minutes, a cluster in trouble one a second from each node.
func standard() limits {
	return limits{
		waiting: 256, known: 4096, objects: 4096,
		perObject: rate.Every(5 * time.Minute), perObjectBurst: 10, overall: 1, overallBurst: 25,
		again: time.Minute, forget: 10 * time.Minute,
		tries: 6, pause: time.Second,
	}
}

// queue holds the Events to be written. It is pure: the time is an argument. It is
// not safe for concurrent use.
type queue struct {
	limits
	entries map[Event]*list.Element
	recent  list.List // of *entry: the one that came again last is last
	waiting list.List // of *entry, in order of arrival
	budgets map[Object]*list.Element
	spent   list.List // of *budget: the one that was used last is last
	overall *rate.Limiter
}

// entry is an Event and its state.
type entry struct {
	record  Record
	elem    *list.Element // in waiting; nil when it is not
	taken   bool          // it is being written
	due     time.Time     // not written before
	written time.Time
	tries   int
}

// budget is how many records an object may still cause.
type budget struct {
	of      Object
	limiter *rate.Limiter
}

func newQueue(l limits) *queue {
	return &queue{
		limits: l, entries: map[Event]*list.Element{}, budgets: map[Object]*list.Element{},
		overall: rate.NewLimiter(l.overall, l.overallBurst),
	}
}

// add takes an Event and reports whether it, or its count, will be written.
func (j *queue) add(now time.Time, e Event) bool {
	if at := j.entries[e]; at != nil {
		known := at.Value.(*entry)
		if known.elem != nil || known.taken || now.Sub(known.record.Last) < j.forget {
			return j.repeat(now, at)
		}
		j.drop(at)
	}
	if j.waiting.Len() >= j.limits.waiting || !j.budget(e.About).AllowN(now, 1) {
		return false
	}
	n := &entry{record: Record{Event: e, Count: 1, First: now, Last: now}, due: now}
	n.elem = j.waiting.PushBack(n)
	j.entries[e] = j.recent.PushBack(n)
	j.shrink()
	return true
}

// repeat counts an Event that is known. Its new count is written after a while.
func (j *queue) repeat(now time.Time, at *list.Element) bool {
	n := at.Value.(*entry)
	n.record.Count++
	n.record.Last = now
	j.recent.MoveToBack(at)
	if n.elem != nil || n.taken {
		return true
	}
	if j.waiting.Len() >= j.limits.waiting || !j.budget(n.record.About).AllowN(now, 1) {
		return false
	}
	n.due = n.written.Add(j.again)
	n.elem = j.waiting.PushBack(n)
	return true
}

// take returns the next record to write, or how long to wait for one: forever
// when wait is negative. After it comes done.
func (j *queue) take(now time.Time) (n *entry, wait time.Duration) {
	wait = -1
	for at := j.waiting.Front(); at != nil; at = at.Next() {
		e := at.Value.(*entry)
		if d := e.due.Sub(now); d > 0 {
			if wait < 0 || d < wait {
				wait = d
			}
			continue
		}
		r := j.overall.ReserveN(now, 1)
		if d := r.DelayFrom(now); d > 0 {
			r.CancelAt(now)
			return nil, d
		}
		j.waiting.Remove(at)
		e.elem, e.taken = nil, true
		return e, 0
	}
	return nil, wait
}

// done handles the result of a record that was taken with this count, and reports
// whether it was written or dropped. final means that a retry is useless.
func (j *queue) done(now time.Time, n *entry, written int, err error, final bool) (over bool) {
	n.taken = false
	if err == nil {
		n.written, n.tries, n.record.Written = now, 0, true
		if n.record.Count > written {
			n.due = now.Add(j.again)
			n.elem = j.waiting.PushBack(n)
		}
		return true
	}
	n.tries++
	if final || n.tries >= j.limits.tries {
		n.tries, n.written = 0, now
		return true
	}
	n.due = now.Add(j.pause << (n.tries - 1))
	n.elem = j.waiting.PushBack(n)
	return false
}

// shrink drops the Events that were not repeated for the longest time.
func (j *queue) shrink() {
	for at := j.recent.Front(); at != nil && j.recent.Len() > j.known; {
		next := at.Next()
		if n := at.Value.(*entry); n.elem == nil && !n.taken {
			j.drop(at)
		}
		at = next
	}
}

func (j *queue) drop(at *list.Element) {
	delete(j.entries, at.Value.(*entry).record.Event)
	j.recent.Remove(at)
}

func (j *queue) budget(of Object) *rate.Limiter {
	if at := j.budgets[of]; at != nil {
		j.spent.MoveToBack(at)
		return at.Value.(*budget).limiter
	}
	b := &budget{of, rate.NewLimiter(j.perObject, j.perObjectBurst)}
	j.budgets[of] = j.spent.PushBack(b)
	if j.spent.Len() > j.objects {
		oldest := j.spent.Front()
		delete(j.budgets, oldest.Value.(*budget).of)
		j.spent.Remove(oldest)
	}
	return b.limiter
}
