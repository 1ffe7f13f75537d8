// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/engine"
)

// listeners counts those who listen.
type listeners struct{ now, all atomic.Int32 }

func (l *listeners) Listen(ctx context.Context) error {
	l.now.Add(1)
	l.all.Add(1)
	<-ctx.Done()
	l.now.Add(-1)
	return nil
}

func (*listeners) Since(time.Time) []engine.Writer { return nil }
func (*listeners) Close() error                    { return nil }

// Nobody listens to other writers, at the cost of all our changes, unless drift was found
// lately.
func TestWritersAreHeardAfterDrift(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &listeners{}
		p := &Proxy{writers: l, log: slog.New(slog.DiscardHandler), drifted: make(chan struct{}, 1)}
		ctx, stop := context.WithCancel(t.Context())
		go p.hearWriters(ctx)
		expect := func(when string, now, all int32) {
			t.Helper()
			if synctest.Wait(); l.now.Load() != now || l.all.Load() != all {
				t.Errorf("%s: %d listen, %d in all, want %d and %d", when, l.now.Load(), l.all.Load(), now, all)
			}
		}
		time.Sleep(time.Hour)
		expect("without drift", 0, 0)
		p.writersSince(time.Now())
		expect("after drift", 1, 1)
		time.Sleep(hearFor + time.Second)
		expect("later", 0, 1)
		p.writersSince(time.Now())
		expect("after more drift", 1, 2)
		stop()
		expect("at the end", 0, 2)
	})
}
