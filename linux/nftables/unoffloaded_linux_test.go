// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
)

// idle is a backend that has nothing to do.
type idle struct{ dataplane.Backend }

func (idle) Sync(context.Context) (dataplane.Work, error) { return dataplane.Work{}, nil }
func (idle) Next() time.Time                              { return time.Time{} }
func (idle) Close() error                                 { return nil }

// A flowtable that could not be removed is tried again without any change.
func TestLeftoverFlowtableIsTriedAgain(t *testing.T) {
	freshNamespace(t)
	b, err := withoutOffload(idle{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := b.Sync(ended); err != nil {
		t.Fatal(err)
	}
	if next := b.Next(); next.IsZero() || time.Until(next) > offloadRetry {
		t.Fatalf("due at %v", next)
	}
	b.(*unoffloaded).retryAt = time.Now()
	if _, err := b.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if next := b.Next(); !next.IsZero() {
		t.Errorf("due again at %v", next)
	}
}
