// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/flows"
)

// All lists are read over one socket, opened for the first, also after one that was given up in
// the middle: while no file can be opened, each has all flows.
func TestListsAreReadOverOneSocket(t *testing.T) {
	const entries = 2000
	inNetns(t, func(*Table) {
		create(t, entries, func(i int) made { return udp(fmt.Sprintf("10.244.1.10:%d", 1000+i), "10.96.0.10:53", "") })
		r := NewReader()
		list := func() (n int) {
			t.Helper()
			if err := r.Each(t.Context(), func(flows.Flow) { n++ }); err != nil {
				t.Error(err)
			}
			return n
		}
		if n := list(); n != entries {
			t.Errorf("%d flows, want %d", n, entries)
		}
		withoutFiles(t, func() {
			for range 5 {
				ctx, giveUp := context.WithCancel(t.Context())
				if err := r.Each(ctx, func(flows.Flow) { giveUp() }); !errors.Is(err, context.Canceled) {
					t.Errorf("given up: %v", err)
				}
				if n := list(); n != entries {
					t.Errorf("%d flows after one that was given up, want %d", n, entries)
				}
			}
			if err := NewReader().Each(t.Context(), func(flows.Flow) {}); !errors.Is(err, unix.EMFILE) {
				t.Errorf("files could be opened: %v", err)
			}
		})
		if err := errors.Join(r.Close(), r.Close()); err != nil {
			t.Error(err)
		}
		if err := r.Each(t.Context(), func(flows.Flow) {}); !errors.Is(err, os.ErrClosed) {
			t.Errorf("closed: %v", err)
		}
	})
}

// A list waits for one that is read, and no longer than its own context lasts.
func TestAListWaitsNoLongerThanItsContext(t *testing.T) {
	inNetns(t, func(*Table) {
		create(t, 1, func(int) made { return udp("10.244.1.10:1000", "10.96.0.10:53", "") })
		r := NewReader()
		defer r.Close()
		if err := r.Each(t.Context(), func(flows.Flow) {}); err != nil { // on this thread, where the socket is opened
			t.Error(err)
			return
		}
		began, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() {
			ended <- r.Each(context.Background(), func(flows.Flow) { close(began); <-goOn })
		}()
		<-began
		ctx, giveUp := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer giveUp()
		waited := make(chan error, 1)
		go func() { waited <- r.Each(ctx, func(flows.Flow) {}) }()
		select {
		case err := <-waited:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("while another list is read: %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("a list still waits for another one, long after its context has ended")
		}
		close(goOn)
		if err := <-ended; err != nil {
			t.Errorf("the first list: %v", err)
		}
	})
}

// A first list without a socket is an error, and the next one tries again.
func TestAListAfterOneWithoutASocket(t *testing.T) {
	inNetns(t, func(*Table) {
		r := NewReader()
		defer r.Close()
		withoutFiles(t, func() {
			if err := r.Each(t.Context(), func(flows.Flow) {}); !errors.Is(err, unix.EMFILE) {
				t.Errorf("no file can be opened: %v", err)
			}
		})
		if err := r.Each(t.Context(), func(flows.Flow) {}); err != nil {
			t.Error(err)
		}
	})
}

// withoutFiles calls f while this process can open no file and no socket.
func withoutFiles(t *testing.T, f func()) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		t.Error(err)
		return
	}
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Max: before.Max}, nil); err != nil {
		t.Error(err)
		return
	}
	defer func() {
		if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &before, nil); err != nil {
			t.Error(err)
		}
	}()
	f()
}
