package engine

import (
	"context"
	"errors"
	"sync"
	"time"
)

// inbox is a queue from many senders to the engine: a source is never made to
// wait for the kernel. What arrives while one sync runs is mostly little. Where
// that takes minutes, of several tasks about one object only the latest is kept:
// so it is bounded by the objects that there are.
type inbox struct {
	mu      sync.Mutex
	queue   []task
	crowded int       // how many tasks are too many; 0 is crowd
	since   time.Time // arrival of the first in queue
	wake    chan struct{}
}

// crowd is the size of a queue that is worth a look at what can be left out.
const crowd = 4096

// task is one thing to do on the engine's goroutine.
type task struct {
	about subject
	of    Changes // the changes of inputs that it stands for
	do    work
}

// work is told when the oldest task of its batch arrived.
type work func(e *Engine, since time.Time)

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
	theNode
	theMachine
	problemsOf // a source
)

// post queues what all has to be done, whatever comes later.
func (b *inbox) post(f work) { b.put(task{do: f}) }

func (b *inbox) put(t task) {
	b.mu.Lock()
	if len(b.queue) == 0 {
		b.since = time.Now()
	}
	b.queue = append(b.queue, t)
	if len(b.queue) >= max(b.crowded, crowd) {
		b.queue = latest(b.queue)
		b.crowded = 2 * len(b.queue)
	}
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// latest leaves out the tasks that later ones make up for. It reuses the queue.
func latest(queue []task) []task {
	place := map[subject]int{}
	free := len(queue) // from here on they are kept
	for i := len(queue) - 1; i >= 0; i-- {
		t := queue[i]
		if at, later := place[t.about]; later && t.about != (subject{}) {
			queue[at].of = queue[at].of.plus(t.of)
			continue
		}
		free--
		queue[free] = t
		place[t.about] = free
	}
	clear(queue[:free])
	return queue[free:]
}

func (b *inbox) take() (queue []task, since time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	queue, b.queue, b.crowded = b.queue, nil, 0
	return queue, b.since
}

// oldest returns the earlier of t and the arrival of what is queued.
func (b *inbox) oldest(t time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) > 0 && (t.IsZero() || b.since.Before(t)) {
		return b.since
	}
	return t
}

// ErrEnded says that the engine does not run any more.
var ErrEnded = errors.New("the proxy has ended")

// Ping returns nil once the engine has come round: what it was busy with is
// over. A watchdog that gets no answer in time knows that it hangs.
func (e *Engine) Ping(ctx context.Context) error {
	_, err := ask(ctx, e, func(*Engine) struct{} { return struct{}{} })
	return err
}

// ask runs f on the engine's goroutine and waits for its answer. After an error
// f may still run, unless that is ErrEnded. It does not once ctx has ended: who asks
// while the engine is busy, and gives up, shall not make it busier.
func ask[T any](ctx context.Context, e *Engine, f func(*Engine) T) (answer T, err error) {
	answers := make(chan T, 1)
	e.inbox.post(func(e *Engine, _ time.Time) {
		if ctx.Err() == nil {
			answers <- f(e)
		}
	})
	select {
	case answer = <-answers:
		return answer, nil
	case <-e.ended:
		select {
		case answer = <-answers: // with its last turn
			return answer, nil
		default:
			return answer, ErrEnded
		}
	case <-ctx.Done():
		return answer, ctx.Err()
	}
}
