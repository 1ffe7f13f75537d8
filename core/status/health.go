// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"time"

	"github.com/tandem-proxy/tandem/core/engine"
)

// Health is the state of a running Tandem at one moment.
type Health struct {
	At       time.Time
	SyncedAt time.Time // the end of the last sync that succeeded; zero before the first
	Synced   bool      // the data plane was read back, and all that the source delivered was programmed once
	Stuck    bool      // changes have been waiting for too long
	Leaving  bool      // the node is being deleted, or marked for it by the cluster autoscaler
	Unfit    bool      // the configuration does not fit the node: see model.Problem

	// Reasons states what is wrong, for people. It may also name conditions that set none of the
	// above, such as an API server that does not answer: the last known state is kept,
	// and traffic stays on the node.
	Reasons []string
}

// Healthy reports whether the programmed state can be relied on.
func (h Health) Healthy() bool { return h.Synced && !h.Stuck }

// Ready reports whether load balancers may send traffic to this node.
func (h Health) Ready() bool { return h.Healthy() && !h.Leaving && !h.Unfit }

// Alive reports whether changes make progress: a restart would help nothing else.
func (h Health) Alive() bool { return !h.Stuck }

// HealthOf judges a status. Patience is how long a change may wait for being
// programmed before the whole proxy counts as unhealthy: twice the sync period in
// kube-proxy. A Service that the data plane rejects while others work is reported in
// its own state. Stale states which inputs are out of date, in words.
func HealthOf(s engine.Status, patience time.Duration, stale []string) Health {
	h := Health{At: time.Now(), SyncedAt: s.SyncedAt, Synced: s.Adopted && s.SourceSynced && s.Synced, Leaving: s.Leaving, Unfit: s.Unfit != ""}
	add := func(format string, args ...any) { h.Reasons = append(h.Reasons, fmt.Sprintf(format, args...)) }
	reading := !s.ReadingAt.IsZero()
	switch {
	case reading:
		add("reading back the data plane has taken %s so far", h.At.Sub(s.ReadingAt).Round(time.Second))
	case !s.Adopted:
		add("the data plane has not been read back yet")
	}
	if s.Awaited != "" {
		add("unknown yet: %s; keeping what is installed", s.Awaited)
	} else if !s.SourceSynced {
		add("the source is not synced yet")
	} else if !s.Synced {
		add("nothing has been programmed yet")
	}
	if s.Deferred > 0 {
		add("objects still to be programmed: %d", s.Deferred)
	}
	// Waiting for the source is not stuck: the API server may be unreachable. Nor is a
	// read of the data plane: its driver bounds it, and another would begin it again.
	if waits := h.At.Sub(s.QueuedAt); !reading && s.SourceSynced && !s.QueuedAt.IsZero() && waits > patience {
		h.Stuck = true
		add("changes have not been programmed for %s", waits.Round(time.Second))
	}
	if s.Err != nil && !h.Healthy() {
		add("%v", s.Err)
	}
	if h.Leaving {
		add("the node is being deleted or marked for it")
	}
	if h.Unfit {
		add("%s", s.Unfit)
	}
	h.Reasons = append(h.Reasons, stale...)
	return h
}
