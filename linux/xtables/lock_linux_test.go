// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/ledger"
)

// A command that finds the lock of iptables taken waits for it, and reports when that
// takes too long.
func TestLockOfIPTablesIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locked := fmt.Errorf("another program holds the lock: %w", ledger.BusyError{After: time.Second})
		free := time.Now().Add(5 * time.Second)
		restore := func() error {
			if time.Now().Before(free) {
				return locked
			}
			return nil
		}
		if err := retryWhileBusy(t.Context(), time.Minute, restore); err != nil || time.Now().Before(free) {
			t.Errorf("got %v", err)
		}
		free = time.Now().Add(time.Hour)
		if err := retryWhileBusy(t.Context(), time.Minute, restore); err == nil || errors.As(err, new(ledger.BusyError)) {
			t.Errorf("a lock that is never free: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := retryWhileBusy(ctx, time.Minute, restore); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	})
}
