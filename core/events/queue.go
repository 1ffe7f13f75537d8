// SPDX-License-Identifier: Apache-2.0

package events

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
)

// limits are the budgets of a queue.
type limits struct {
	waiting int // records that wait to be written; namespaces share the places, and the rate
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
	lanes   map[string]*list.Element
	ring    list.List // of *lane, in the order of their turns
	waiting int       // in all lanes
	lost    int       // that waited and had to give way; the reader clears it
	budgets map[model.Key]*list.Element
	spent   list.List // of *budget: the one that was used last is last
	overall *rate.Limiter
}

// entry is an Event and its state.
type entry struct {
	record  Record
	elem    *list.Element // in its lane; nil when it does not wait
	taken   bool          // it is being written
	due     time.Time     // not written before
	written time.Time
	tries   int
}

// lane is what waits of a namespace, or of the whole node, in order of arrival.
type lane struct {
	namespace string
	entries   list.List // of *entry
	more      int       // events dropped for lack of room; the last event reports them
	last      Event
}

// budget is how many records an object may still cause.
type budget struct {
	of      model.Key
	limiter *rate.Limiter
}

func newQueue(l limits) *queue {
	return &queue{
		limits: l, entries: map[Event]*list.Element{}, lanes: map[string]*list.Element{}, budgets: map[model.Key]*list.Element{},
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
	if !j.budget(e.About).AllowN(now, 1) || !j.makeRoom(e) {
		return false
	}
	j.enter(now, e)
	return true
}

// enter has a new Event wait.
func (j *queue) enter(now time.Time, e Event) {
	n := &entry{record: Record{Event: e, Count: 1, First: now, Last: now}, due: now}
	j.wait(n)
	j.entries[e] = j.recent.PushBack(n)
	j.shrink()
}

// wait puts a record at the end of its lane.
func (j *queue) wait(n *entry) {
	namespace := n.record.About.Namespace
	at := j.lanes[namespace]
	if at == nil {
		at = j.ring.PushBack(&lane{namespace: namespace})
		j.lanes[namespace] = at
	}
	n.elem = at.Value.(*lane).entries.PushBack(n)
	j.waiting++
}

// makeRoom finds a place for an Event. When all are taken, the namespace with most of them loses its newest,
// and where that is the Event's own, the Event has no place.
func (j *queue) makeRoom(e Event) bool {
	if j.waiting < j.limits.waiting {
		return true
	}
	var most *lane
	for at := j.ring.Front(); at != nil; at = at.Next() {
		if l := at.Value.(*lane); most == nil || l.entries.Len() > most.entries.Len() {
			most = l
		}
	}
	own, has := j.lanes[e.About.Namespace], 1 // a last place is kept
	if own != nil {
		has = max(has, own.Value.(*lane).entries.Len())
	}
	if has >= most.entries.Len() {
		if own != nil {
			own.Value.(*lane).lose(e)
		}
		return false
	}
	newest := most.entries.Back()
	n := newest.Value.(*entry)
	most.entries.Remove(newest)
	most.lose(n.record.Event)
	j.waiting--
	j.lost++
	n.elem = nil
	if at := j.entries[n.record.Event]; at != nil && !n.record.Written {
		j.drop(at)
	}
	return true
}

func (l *lane) lose(e Event) { l.more, l.last = l.more+1, e }

// repeat counts an Event that is known. Its new count is written after a while.
func (j *queue) repeat(now time.Time, at *list.Element) bool {
	n := at.Value.(*entry)
	n.record.Count++
	n.record.Last = now
	j.recent.MoveToBack(at)
	if n.elem != nil || n.taken {
		return true
	}
	if !j.budget(n.record.About).AllowN(now, 1) || !j.makeRoom(n.record.Event) {
		return false
	}
	n.due = n.written.Add(j.again)
	j.wait(n)
	return true
}

// take returns the next record to write, or how long to wait for one: forever
// when wait is negative. After it comes done.
func (j *queue) take(now time.Time) (n *entry, wait time.Duration) {
	wait = -1
	for at := j.ring.Front(); at != nil; at = at.Next() {
		elem, d := at.Value.(*lane).due(now)
		if elem == nil {
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
		n = elem.Value.(*entry)
		n.elem, n.taken = nil, true
		j.leave(now, at, elem)
		return n, 0
	}
	return nil, wait
}

// due returns the first record that is due, or how long to wait for one.
func (l *lane) due(now time.Time) (at *list.Element, wait time.Duration) {
	wait = -1
	for at := l.entries.Front(); at != nil; at = at.Next() {
		d := at.Value.(*entry).due.Sub(now)
		if d <= 0 {
			return at, 0
		}
		if wait < 0 || d < wait {
			wait = d
		}
	}
	return nil, wait
}

// leave takes a record from its lane, which has its next turn after all others. Once a lane is empty,
// the last Event that had no place in it says how many there were.
func (j *queue) leave(now time.Time, at, elem *list.Element) {
	l := at.Value.(*lane)
	l.entries.Remove(elem)
	j.waiting--
	j.ring.MoveToBack(at)
	if l.entries.Len() > 0 {
		return
	}
	j.ring.Remove(at)
	delete(j.lanes, l.namespace)
	if l.more == 0 {
		return
	}
	if l.more > 1 {
		l.last.Note += fmt.Sprintf(" (and %d more Events about objects of this namespace: see the log of the node)", l.more-1)
	}
	if j.entries[l.last] == nil {
		j.enter(now, l.last)
	}
}

// done handles the result of a record that was taken with this count, and reports
// whether it was written or dropped. final means that a retry is useless.
func (j *queue) done(now time.Time, n *entry, written int, err error, final bool) (over bool) {
	n.taken = false
	if err == nil {
		n.written, n.tries, n.record.Written = now, 0, true
		if n.record.Count > written {
			n.due = now.Add(j.again)
			j.wait(n)
		}
		return true
	}
	n.tries++
	if final || n.tries >= j.limits.tries {
		n.tries, n.written = 0, now
		return true
	}
	n.due = now.Add(j.pause << (n.tries - 1))
	j.wait(n)
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

func (j *queue) budget(of model.Key) *rate.Limiter {
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

// Sink writes a record. ErrRejected, also wrapped, means that a retry is useless.
type Sink func(context.Context, Record) error

// ErrRejected is the error of a record that will never be accepted.
var ErrRejected = errors.New("rejected")

// ErrNamespaceGone is the error of a record whose namespace is deleted, or is being deleted: an
// ErrRejected that is no failure of Tandem's or the API server's.
var ErrNamespaceGone = fmt.Errorf("%w: the namespace is being deleted", ErrRejected)

// The results of an Event, for metrics.
const (
	Written = "written" // or merged into one that was
	Dropped = "dropped" // too many
	GivenUp = "given_up"
)

// writeTimeout bounds one attempt.
const writeTimeout = 10 * time.Second

// Recorder queues Events and writes them in Run. Its methods are safe for concurrent
// use.
type Recorder struct {
	counted func(outcome string)
	log     *slog.Logger
	wake    chan struct{} // holds one token when there may be something to write

	mu    sync.Mutex
	queue *queue
}

// NewRecorder returns a Recorder that holds nothing. counted, unless nil, is called
// with the result of each Event.
func NewRecorder(counted func(outcome string), log *slog.Logger) *Recorder {
	if counted == nil {
		counted = func(string) {}
	}
	return &Recorder{counted: counted, log: log, wake: make(chan struct{}, 1), queue: newQueue(standard())}
}

// Add queues an Event. It never blocks: Events beyond the limits are dropped.
func (r *Recorder) Add(e Event) {
	e.Note = printable.Text(e.Note) // errors and names of others
	r.mu.Lock()
	kept := r.queue.add(time.Now(), e)
	dropped := r.queue.lost
	r.queue.lost = 0
	r.mu.Unlock()
	if !kept {
		dropped++
	}
	for range dropped {
		r.counted(Dropped)
	}
	if !kept {
		return
	}
	select {
	case r.wake <- struct{}{}:
	default: // a token is there already
	}
}

// Run writes until ctx ends. Waiting Events are then lost.
func (r *Recorder) Run(ctx context.Context, sink Sink) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-timer.C:
		}
		for ctx.Err() == nil {
			n, record, wait := r.take()
			if n == nil {
				if wait >= 0 {
					timer.Reset(wait)
				}
				break
			}
			r.write(ctx, sink, n, record)
		}
	}
}

func (r *Recorder) take() (n *entry, record Record, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n, wait = r.queue.take(time.Now()); n != nil {
		record = n.record
	}
	return n, record, wait
}

func (r *Recorder) write(ctx context.Context, sink Sink, n *entry, record Record) {
	attempt, cancel := context.WithTimeout(ctx, writeTimeout)
	err := sink(attempt, record)
	cancel()
	if ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	over := r.queue.done(time.Now(), n, record.Count, err, errors.Is(err, ErrRejected))
	r.mu.Unlock()
	switch {
	case err == nil:
		r.counted(Written)
	case over:
		r.counted(GivenUp)
		level := slog.LevelWarn
		if errors.Is(err, ErrNamespaceGone) {
			level = slog.LevelDebug
		}
		r.log.Log(ctx, level, "writing Event failed; dropped", "object", record.About.String(), "reason", record.Reason, "err", err)
	}
}

// ToLog returns a Sink that logs, for use without an API server. The caller of Add
// has logged the cause already.
func ToLog(log *slog.Logger) Sink {
	return func(ctx context.Context, r Record) error {
		log.DebugContext(ctx, "event", "object", r.About.String(), "reason", r.Reason, "note", r.Note, "count", r.Count)
		return nil
	}
}
