// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"time"

	"github.com/tandem-proxy/tandem/core/sleep"
)

// The pace of sweeps. A sweep asks the kernel about each connection, which costs
// about 1 µs each.
const (
	sweepEvery        = time.Minute
	sweepEveryLimited = 5 * time.Second // while a Service port is limited
)

// sweep resets the connections whose timeout has passed, until the server ends.
func (s *shared) sweep(all func() []connection) {
	shortest := min(s.options.TCP.Idle, s.options.TCP.HalfClosed) / 4
	last := time.Now()
	for s.ctx.Err() == nil {
		sleep.For(s.ctx, min(sweepEveryLimited, shortest))
		now := time.Now()
		limited := s.slots.recent(now)
		if len(limited) > 0 || now.Sub(last) >= min(sweepEvery, shortest) {
			last = now
			s.expire(all(), limited, now)
		}
	}
}

// expire resets those connections whose timeout has passed.
func (s *shared) expire(all []connection, limited map[*share]bool, now time.Time) {
	normal, short := s.options.TCP, s.options.TCP.limited()
	for _, c := range all {
		timeouts := normal
		if limited[c.share()] {
			timeouts = short
		}
		switch idle, halfClosed := c.activity(now); {
		case halfClosed && idle >= timeouts.HalfClosed:
			s.stats.halfClosedTimeouts.Add(1)
			c.reset()
		case idle >= timeouts.Idle:
			s.stats.idleTimeouts.Add(1)
			c.reset()
		}
	}
}
