// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// balancer chooses endpoints: by session affinity, else by the scheduler. It is safe
// for concurrent use and outlives changes of the policy.
type balancer struct {
	port     model.PortID // whose it is
	affinity *affinity
	// next is per origin, since each may have other endpoints.
	next [model.Origins]atomic.Uint32
}

// choice is the order in which one client tries endpoints.
type choice struct {
	*balancer
	client    netip.AddrPort
	endpoints []netip.AddrPort
	timeout   time.Duration // of session affinity; 0 for none
	at        int
}

func (b *balancer) choose(from model.Origin, client netip.AddrPort, a Answer, timeout time.Duration, now time.Time) choice {
	c := choice{balancer: b, client: client, endpoints: a.Endpoints, timeout: timeout, at: -1}
	if timeout > 0 {
		if had, ok := b.affinity.get(client.Addr(), now); ok {
			c.at = slices.Index(c.endpoints, had)
		}
	}
	if c.at < 0 {
		c.at = a.endpointAt(b.slot(from, client, a))
		c.reserve(now)
	}
	return c
}

// slot chooses a slot for a new client.
func (b *balancer) slot(from model.Origin, client netip.AddrPort, a Answer) uint32 {
	switch a.Scheduler {
	case model.Maglev:
		return model.HashSlot(client, a.slots())
	case model.Random:
		return rand.Uint32N(a.slots())
	}
	return b.next[from].Add(1) % a.slots()
}

// endpoint returns the endpoint to try.
func (c *choice) endpoint() netip.AddrPort { return c.endpoints[c.at] }

// failed selects the next endpoint.
func (c *choice) failed(now time.Time) {
	c.forget()
	c.at = (c.at + 1) % len(c.endpoints)
	c.reserve(now)
}

// reserve has the other connections that the client makes meanwhile go to the same endpoint,
// or this one to the endpoint that another has reserved.
func (c *choice) reserve(now time.Time) {
	if c.timeout == 0 {
		return
	}
	had := c.affinity.reserve(c.client.Addr(), c.endpoint(), now.Add(reserveTime), now)
	if at := slices.Index(c.endpoints, had); at >= 0 {
		c.at = at
		return
	}
	c.affinity.set(c.client.Addr(), c.endpoint(), now.Add(reserveTime), now) // in place of one that is gone
}

// forget ends the client's affinity to the endpoint.
func (c *choice) forget() {
	if c.timeout > 0 {
		c.affinity.forget(c.client.Addr(), c.endpoint())
	}
}

// connected starts or extends the client's affinity to the endpoint.
func (c *choice) connected(now time.Time) {
	if c.timeout > 0 {
		c.affinity.set(c.client.Addr(), c.endpoint(), now.Add(c.timeout), now)
	}
}
