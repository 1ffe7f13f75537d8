package relay

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// balancer chooses endpoints: the one that the client had, or the next in turn.
// It is safe for concurrent use, and outlives changes of the policy.
type balancer struct {
	affinity affinity
	// turns counts by origin, as each may have endpoints of its own.
	turns [model.Origins]atomic.Uint32
}

// choice are the endpoints that one client may try, one after the other.
type choice struct {
	*balancer
	client    netip.Addr
	endpoints []netip.AddrPort
	sticky    time.Duration
	at        int
	share     *share // whose slot the client has
}

func (b *balancer) choose(from model.Origin, client netip.Addr, endpoints []netip.AddrPort, sticky time.Duration, now time.Time) choice {
	c := choice{balancer: b, client: client, endpoints: endpoints, sticky: sticky, at: -1}
	if sticky > 0 {
		if had, ok := b.affinity.get(client, now); ok {
			c.at = slices.Index(endpoints, had)
		}
	}
	if c.at < 0 {
		c.at = int(b.turns[from].Add(1) % uint32(len(endpoints)))
	}
	return c
}

// endpoint is the one to try.
func (c *choice) endpoint() netip.AddrPort { return c.endpoints[c.at] }

// failed goes on to the next endpoint.
func (c *choice) failed() {
	c.forget()
	c.at = (c.at + 1) % len(c.endpoints)
}

// forget takes the endpoint from the client.
func (c *choice) forget() {
	if c.sticky > 0 {
		c.affinity.forget(c.client, c.endpoint())
	}
}

// reached keeps the client with its endpoint.
func (c *choice) reached(now time.Time) {
	if c.sticky > 0 {
		c.affinity.set(c.client, c.endpoint(), now, c.sticky)
	}
}
