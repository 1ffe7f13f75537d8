// SPDX-License-Identifier: Apache-2.0

package sleep

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestEarlier(t *testing.T) {
	never, now := time.Time{}, time.Now()
	later := now.Add(time.Second)
	for _, c := range [][3]time.Time{{never, never, never}, {now, never, now}, {never, now, now}, {now, later, now}, {later, now, now}} {
		if got := Earlier(c[0], c[1]); got != c[2] {
			t.Errorf("of %v and %v: %v", c[0], c[1], got)
		}
	}
}

func TestTurn(t *testing.T) {
	turns := make(Turn, 1)
	if err := turns.Take(t.Context()); err != nil || turns.Try() {
		t.Errorf("taken: %v, and a second time", err)
	}
	turns.Give()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := turns.Take(ctx); !errors.Is(err, context.Canceled) || !turns.Try() {
		t.Errorf("taken after the end: %v", err)
	}
}
