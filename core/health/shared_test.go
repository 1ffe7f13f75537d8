// SPDX-License-Identifier: Apache-2.0

package health_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/health"
)

// Callers share a result until it is too old; errors are not shared.
func TestShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, failing := 0, errors.New("busy")
		get := health.Shared(func(context.Context) (int, error) {
			asked++
			return asked, failing
		}, time.Second)
		if _, err := get(t.Context()); !errors.Is(err, failing) {
			t.Errorf("got %v", err)
		}
		failing = nil
		for range 5 {
			if n, err := get(t.Context()); n != 2 || err != nil {
				t.Errorf("result %d, %v", n, err)
			}
		}
		time.Sleep(time.Second + 1)
		if n, err := get(t.Context()); n != 3 || err != nil {
			t.Errorf("when it is too old: %d, %v", n, err)
		}
		time.Sleep(time.Second + 1)
	})
}

// A caller waits for its turn no longer than its context lasts.
func TestSharedWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		get := health.Shared(func(context.Context) (int, error) {
			<-release
			return 1, nil
		}, time.Second)
		go func() { _, _ = get(t.Context()) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := get(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		close(release)
		time.Sleep(time.Second + 1)
	})
}
