// SPDX-License-Identifier: Apache-2.0

// Package sleep waits until a duration has passed or a context ends, and compares due times.
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

// Earlier is the earlier of two times at which something is due; the zero one is never.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
