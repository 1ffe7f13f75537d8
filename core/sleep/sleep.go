// SPDX-License-Identifier: Apache-2.0

// Package sleep waits for a time, or the end of a context.
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
