// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
)

// idle is a backend that has nothing to do.
type idle struct {
	dataplane.Backend
	err error
}

func (p *idle) Sync(context.Context) (dataplane.Work, error) { return dataplane.Work{}, p.err }
func (p *idle) Next() time.Time                              { return time.Time{} }

// Leftover rules that could not be removed are tried again without any change.
func TestLeftoverRulesAreTriedAgain(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	tries, broken := 0, errors.New("no memory")
	inner := &idle{err: broken}
	b := &backend{
		Backend: inner, driver: &Driver{log: log, relays: newRelays(relay.Options{Log: log})},
		other: tableKind{open: func(context.Context) (table, error) {
			if tries++; tries == 1 {
				return nil, broken
			}
			return nil, dataplane.ErrAbsent
		}},
	}
	sync := func(want int, err error) {
		t.Helper()
		if _, got := b.Sync(t.Context()); !errors.Is(got, err) || tries != want {
			t.Errorf("%v after %d attempts, want %v after %d", got, tries, err, want)
		}
	}
	sync(0, broken) // not before everything is there
	if next := b.Next(); !next.IsZero() {
		t.Errorf("due at %v", next)
	}
	inner.err = nil
	sync(1, nil)
	if next := b.Next(); next.IsZero() || time.Until(next) > cleanRetry {
		t.Errorf("due at %v", next)
	}
	b.cleanAt = time.Now()
	sync(2, nil)
	if next := b.Next(); !next.IsZero() {
		t.Errorf("due again at %v", next)
	}
	sync(2, nil)
}

// Waiting for the route to the relay address ends with its context.
func TestWaitForTheAddressEnds(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	runtime.LockOSThread()                                  // and the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil { // lo is down in it
		t.Skipf("cannot make a network namespace: %v", err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := reachable(ended, model.IPv4); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
