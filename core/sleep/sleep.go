// SPDX-License-Identifier: Apache-2.0

// Package sleep waits: until a duration has passed, or until it is one's turn, if no context ends before. It compares due
// times.
package sleep

import (
	"context"
	"time"
)

// For waits for a time, and reports whether it has passed before ctx ended.
func For(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Longer is the wait before the next attempt, after one that failed: twice the wait before that one, at least first
// and at most last.
func Longer(wait, first, last time.Duration) time.Duration {
	return min(max(2*wait, first), last)
}

// Earlier is the earlier of two times at which something is due; the zero one is never.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Turn lets as many at a time do something as it has capacity: with one it is a mutex for which a context can wait.
type Turn chan struct{}

// Take waits for a turn until ctx ends.
func (t Turn) Take(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Try takes a turn if one is free.
func (t Turn) Try() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

// Give ends a turn that was taken.
func (t Turn) Give() { <-t }
