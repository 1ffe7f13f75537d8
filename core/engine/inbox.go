// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"sync"
	"time"
)

// inbox is a queue from many senders to the engine, so that a source never waits
// for the kernel. Of several tasks about one object only the latest is kept once
// the queue is long, and of questions those whose callers still wait: it is bounded by the
// number of objects and of such callers.
type inbox struct {
	wake  chan struct{} // has an element when there may be something in queue
	ended chan struct{} // closed when tasks are no longer taken

	mu        sync.Mutex
	queue     []task
	compactAt int       // length of queue that is worth compacting; 0 is compactLength
	since     time.Time // arrival of the first in queue
}

func newInbox() *inbox {
	return &inbox{wake: make(chan struct{}, 1), ended: make(chan struct{})}
}

// compactLength is the least length of a queue that is worth compacting.
const compactLength = 4096

// task is one unit of work on the engine's goroutine.
type task struct {
	about subject
	of    Changes         // the changes of inputs that it includes
	asks  context.Context // of a question's caller; nil for what is done in any case
	in    any             // the object that it sets, where its size matters
	last  bool            // it comes after all that arrived before: it says something about that
	do    work
}

// work is given the arrival of the oldest task that it arrived with.
type work func(since time.Time)

// subject is what a task is about. Of tasks about the same one the latest counts;
// those about nothing, the zero subject, are all done.
type subject struct {
	kind            kind
	namespace, name string
}

type kind uint8

const (
	aService kind = iota + 1
	aSlice
	aServiceCIDR
	aRoute
	aGrant
	theNode
	otherNode
	theMachine
	problemsOf // a source
	theSuspects
	aTouch // a Service is resolved again
)

// post queues work that has to be done whatever comes later.
func (b *inbox) post(f work) { b.put(task{do: f}) }

func (b *inbox) put(t task) {
	b.mu.Lock()
	if len(b.queue) == 0 {
		b.since = time.Now()
	}
	b.queue = append(b.queue, t)
	if len(b.queue) >= max(b.compactAt, compactLength) {
		b.queue = compact(b.queue)
		b.compactAt = 2 * len(b.queue)
	}
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// compact leaves out the tasks that later ones supersede, and questions whose callers have gone.
// It reuses the queue.
func compact(queue []task) []task {
	index := map[subject]int{}
	free := len(queue) // from here on they are kept
	for i := len(queue) - 1; i >= 0; i-- {
		t := queue[i]
		if t.asks != nil && t.asks.Err() != nil {
			continue
		}
		if at, later := index[t.about]; later && t.about != (subject{}) {
			queue[at].of = queue[at].of.plus(t.of)
			continue
		}
		free--
		queue[free] = t
		index[t.about] = free
	}
	clear(queue[:free])
	return queue[free:]
}

func (b *inbox) take() (queue []task, since time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	queue, b.queue, b.compactAt = b.queue, nil, 0
	return queue, b.since
}

// oldest returns the earlier of t and the arrival of the first task in the queue.
func (b *inbox) oldest(t time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) > 0 && (t.IsZero() || b.since.Before(t)) {
		return b.since
	}
	return t
}

// ErrEnded means that the engine does not run any more.
var ErrEnded = errors.New("the proxy has stopped")

// ask runs f on the engine's goroutine and waits for its answer. After an error
// f may still run, unless that is ErrEnded. It is skipped once ctx has ended, so
// that callers whose ctx has ended cost a busy engine nothing.
func ask[T any](ctx context.Context, b *inbox, f func() T) (answer T, err error) {
	answers := make(chan T, 1)
	b.put(task{asks: ctx, do: func(time.Time) {
		if ctx.Err() == nil {
			answers <- f()
		}
	}})
	select {
	case answer = <-answers:
		return answer, nil
	case <-b.ended:
		select {
		case answer = <-answers: // from its last turn
			return answer, nil
		default:
			return answer, ErrEnded
		}
	case <-ctx.Done():
		return answer, ctx.Err()
	}
}
