// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/printable"
)

// Sink writes a record. ErrRejected, also wrapped, means that a retry is useless.
type Sink func(context.Context, Record) error

// ErrRejected is the error of a record that will never be accepted.
var ErrRejected = errors.New("rejected")

// ErrNamespaceEnds is that of a record whose namespace is being deleted, which is no news.
var ErrNamespaceEnds = errors.New("namespace is being deleted")

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
		if errors.Is(err, ErrNamespaceEnds) {
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
