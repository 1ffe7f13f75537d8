// SPDX-License-Identifier: Apache-2.0

package question_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/question"
)

func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		minutesAgo := now.Add(-2 * time.Minute)
		good := engine.Status{Adopted: true, SourceSynced: true, Synced: true, SyncedAt: now}
		with := func(change func(*engine.Status)) engine.Status {
			s := good
			change(&s)
			return s
		}
		for _, c := range []struct {
			name                  string
			status                engine.Status
			stale                 []string
			healthy, ready, alive bool
			why                   string
		}{
			{name: "good", status: good, healthy: true, ready: true, alive: true},
			{name: "one Service is refused", status: with(func(s *engine.Status) { s.Err, s.QueuedAt = errors.New("refused"), now }), healthy: true, ready: true, alive: true},
			{name: "unread", status: engine.Status{SourceSynced: true, Synced: true}, alive: true, why: "has not been read back"},
			{name: "untold", status: engine.Status{Adopted: true}, alive: true, why: "source is not synced"},
			{
				name: "untold for long", status: engine.Status{Adopted: true, QueuedAt: minutesAgo}, alive: true,
				why: "the source is not synced yet",
			},
			{name: "before the first sync", status: engine.Status{Adopted: true, SourceSynced: true}, alive: true, why: "nothing has been programmed yet"},
			{
				name: "stuck", status: with(func(s *engine.Status) { s.QueuedAt, s.Err = minutesAgo, errors.New("kernel says no") }),
				why: "not been programmed for 2m0s; kernel says no",
			},
			{
				name: "reading for long", status: engine.Status{SourceSynced: true, ReadingAt: minutesAgo, QueuedAt: minutesAgo}, alive: true,
				why: "has taken 2m0s so far",
			},
			{name: "leaving", status: with(func(s *engine.Status) { s.Leaving = true }), healthy: true, alive: true, why: "node is being deleted"},
			{name: "unfit", status: with(func(s *engine.Status) { s.Unfit = "clusterCIDR does not fit" }), healthy: true, alive: true, why: "clusterCIDR does not fit"},
			{name: "stale", status: good, stale: []string{"watch of Services is silent"}, healthy: true, ready: true, alive: true, why: "watch of Services is silent"},
		} {
			h := question.HealthOf(c.status, time.Minute, c.stale)
			if h.Healthy() != c.healthy || h.Ready() != c.ready || h.Alive() != c.alive {
				t.Errorf("%s: healthy %t, ready %t, alive %t", c.name, h.Healthy(), h.Ready(), h.Alive())
			}
			if got := strings.Join(h.Reasons, "; "); !strings.Contains(got, c.why) || c.why == "" && got != "" {
				t.Errorf("%s: %q, want %q", c.name, got, c.why)
			}
		}
	})
}
