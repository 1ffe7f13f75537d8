// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// countedRule is a rule whose packet counter is a metric.
type countedRule struct {
	chainID
	rule xtables.Rule
	add  func(*dataplane.Packets, uint64)
}

// countedRules returns the counted rules of some families; localhost says whether
// node ports answer on 127.0.0.1.
func countedRules(families []model.Family, localhost bool) (rules []countedRule) {
	for _, f := range families {
		rules = append(rules, countedRule{
			filter(f, chainForward),
			invalid(),
			func(p *dataplane.Packets, n uint64) { p.Invalid += n },
		})
		if f == model.IPv4 && localhost {
			rules = append(rules, countedRule{
				nat(f, chainPostrouting),
				toLocalhost(),
				func(p *dataplane.Packets, n uint64) { p.Localhost += n },
			})
		}
	}
	return rules
}

// packetCounter sums up the packet counters of some rules, also when a rule is
// rewritten, which resets its counter. It is safe for concurrent use.
type packetCounter struct {
	rules []countedRule
	read  func(context.Context, chainID, xtables.Rule) (uint64, error)

	mu       sync.Mutex
	sum      dataplane.Packets
	last     []uint64 // counter of each rule when it was last read
	readAt   time.Time
	readTook time.Duration
}

// The legacy variant copies a whole table to list one chain of it: with 10,000
// Services the nat table takes 80 ms. So counters are read for at most 1/packetsShare
// of the time, and within packetsWait; a caller in between gets the sums of the last
// reading.
const (
	packetsShare = 20
	packetsWait  = 2 * time.Second
)

func newPacketCounter(rules []countedRule, read func(context.Context, chainID, xtables.Rule) (uint64, error)) *packetCounter {
	return &packetCounter{rules: rules, read: read, last: make([]uint64, len(rules))}
}

// packets returns the sums, as of now or the last reading. A counter that cannot be
// read keeps its value.
func (c *packetCounter) packets() dataplane.Packets {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.readAt) < packetsShare*c.readTook {
		return c.sum
	}
	ctx, cancel := context.WithTimeout(context.Background(), packetsWait)
	defer cancel()
	start := time.Now()
	for i, r := range c.rules {
		if n, err := c.read(ctx, r.chainID, r.rule); err == nil {
			c.count(i, n)
		}
	}
	c.readAt, c.readTook = time.Now(), time.Since(start)
	return c.sum
}

// count adds the increase of a rule's counter since it was last read. A lower value
// means that it was reset.
func (c *packetCounter) count(i int, n uint64) {
	last := c.last[i]
	if n < last {
		last = 0
	}
	c.rules[i].add(&c.sum, n-last)
	c.last[i] = n
}
