// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// packetCounter sums up the packets that the rule for invalid ones has dropped in each family, also when
// the rule is rewritten, which resets its counter. It is safe for concurrent use.
type packetCounter struct {
	families []model.Family
	read     func(context.Context, chainID, xtables.Rule) (uint64, error)
	log      *slog.Logger

	mu       sync.Mutex
	sum      uint64
	last     [2]uint64 // by family: the rule's counter when it was last read
	readAt   time.Time
	readTook time.Duration
	failing  bool // the last reading
}

// The legacy variant copies a whole table to list one chain of it: with 10,000
// Services the nat table takes 80 ms. So counters are read for at most 1/packetsShare
// of the time, and within packetsWait; a caller in between gets the sums of the last
// reading.
const (
	packetsShare = 20
	packetsWait  = 2 * time.Second
)

// packets returns the sums, as of now or the last reading. A counter that cannot be
// read keeps its value; the first failure is logged.
func (c *packetCounter) packets() dataplane.Packets {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.readAt) < packetsShare*c.readTook {
		return dataplane.Packets{Invalid: c.sum}
	}
	ctx, cancel := context.WithTimeout(context.Background(), packetsWait)
	defer cancel()
	start := time.Now()
	var failed error
	for _, f := range c.families {
		n, err := c.read(ctx, filter(f, chainForward), invalid())
		if err == nil {
			c.count(f, n)
		}
		failed = errors.Join(failed, err)
	}
	if failed != nil && !c.failing {
		c.log.Warn("reading packet counters failed; their metric keeps its value", "mode", Name, "err", failed)
	}
	c.failing = failed != nil
	c.readAt, c.readTook = time.Now(), time.Since(start)
	return dataplane.Packets{Invalid: c.sum}
}

// count adds the increase of a rule's counter since it was last read. A lower value
// means that it was reset.
func (c *packetCounter) count(f model.Family, n uint64) {
	last := c.last[f]
	if n < last {
		last = 0
	}
	c.sum += n - last
	c.last[f] = n
}
