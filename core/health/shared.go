// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"sync"
	"time"
)

// Shared returns a function whose callers share the result of get for some time, and
// get it one at a time. A caller waits for its turn no longer than its context lasts:
// an engine that is busy for minutes must not collect clients until none gets an
// answer. Afterwards the result, which may be tens of megabytes, is dropped. Errors
// are not shared.
func Shared[T any](get func(context.Context) (T, error), age time.Duration) func(context.Context) (T, error) {
	s := shared[T]{turn: make(chan struct{}, 1)}
	return func(ctx context.Context) (result T, err error) {
		select {
		case s.turn <- struct{}{}:
			defer func() { <-s.turn }()
		case <-ctx.Done():
			return result, ctx.Err()
		}
		if last := s.latest(); last != nil {
			return *last, nil
		}
		if result, err = get(ctx); err == nil {
			s.keep(&result)
			time.AfterFunc(age, func() { s.keep(nil) })
		}
		return result, err
	}
}

// shared is the latest result, nil if it is too old.
type shared[T any] struct {
	turn chan struct{} // holds a token while get runs

	mu   sync.Mutex
	last *T
}

func (s *shared[T]) latest() *T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

func (s *shared[T]) keep(result *T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = result
}
