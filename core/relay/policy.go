// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
)

// Mode is the name of the mode whose data plane this package is. How connections
// get to the relays differs between systems.
const Mode config.Mode = "userspace"

// Policy is what a Relay does with its clients. It is immutable.
type Policy struct {
	// Port is the Service port that the Relay serves; it names the Relay in
	// problems and logs and does not change.
	Port model.PortID

	// On is the Answer for each origin.
	On [model.Origins]Answer

	// Restricted relays serve only clients inside Allow; others are reset.
	Restricted bool
	Allow      []netip.Prefix

	// SessionAffinity is the timeout of ClientIP affinity; 0 is no affinity.
	SessionAffinity time.Duration

	// Draining endpoints get no new UDP sessions and keep those they have.
	Draining []netip.AddrPort
}

// Answer is the action for clients of one origin. A relay has accepted the connection
// already: for both Drop and Reject a TCP client gets a reset and a UDP client no
// answer.
type Answer struct {
	Verdict   model.Verdict
	Endpoints []netip.AddrPort // for Balance: at least one
	Table     []uint16         // as that of model.Pool; nil for all in turn
	Scheduler model.Scheduler
}

// Balance returns the answer that balances over a pool. Endpoints are in address
// order, since slots mean nothing to a relay: so it is the same again after a restart.
func Balance(pool *model.Pool, s model.Scheduler) Answer {
	a := Answer{Verdict: model.Balance, Endpoints: make([]netip.AddrPort, len(pool.Endpoints)), Table: pool.Table, Scheduler: s}
	for i, e := range pool.Endpoints {
		a.Endpoints[i] = e.Addr
	}
	slices.SortFunc(a.Endpoints, netip.AddrPort.Compare)
	if pool.Table == nil {
		return a
	}
	a.Table = make([]uint16, len(pool.Table))
	counts := make([]int, len(a.Endpoints))
	for slot, i := range pool.Table {
		at, _ := slices.BinarySearchFunc(a.Endpoints, pool.Endpoints[i].Addr, netip.AddrPort.Compare)
		a.Table[slot] = uint16(at)
		counts[at]++
	}
	if s != model.Maglev { // the order of a pool's slots depends on its past
		a.Table = model.Interleave(counts)
	}
	return a
}

// Unscheduled reports which scheduler relays do not have for a port; empty for none.
func Unscheduled(s model.Scheduler) string {
	switch s {
	case model.LeastConnections, model.SourceHash:
		return "endpoints are chosen in turn: relays have no scheduler " + s.String()
	}
	return ""
}

func (a Answer) equal(o Answer) bool {
	return a.Verdict == o.Verdict && a.Scheduler == o.Scheduler && slices.Equal(a.Endpoints, o.Endpoints) && slices.Equal(a.Table, o.Table)
}

// Share is the share of new clients of an endpoint, by its index.
func (a Answer) Share(i int) float64 {
	n := 0
	for slot := range a.slots() {
		if a.endpointAt(slot) == i {
			n++
		}
	}
	return float64(n) / float64(a.slots())
}

// slots is how many slots an answer has.
func (a Answer) slots() uint32 {
	if a.Table != nil {
		return uint32(len(a.Table))
	}
	return uint32(len(a.Endpoints))
}

// endpointAt returns the index of the endpoint of a slot.
func (a Answer) endpointAt(slot uint32) int {
	if a.Table != nil {
		return int(a.Table[slot])
	}
	return int(slot)
}

// Same returns the policy that gives the same answer to every origin.
func Same(a Answer) Policy {
	return Policy{On: [model.Origins]Answer{a, a, a}}
}

// Answer returns the Answer for a client.
func (p *Policy) Answer(from model.Origin, client netip.Addr) Answer {
	if p.Restricted && !slices.ContainsFunc(p.Allow, func(r netip.Prefix) bool { return r.Contains(client) }) {
		return Answer{Verdict: model.Drop}
	}
	return p.On[from]
}

// keeps reports whether a UDP session with an endpoint may go on.
func (p *Policy) keeps(from model.Origin, client netip.Addr, endpoint netip.AddrPort) bool {
	a := p.Answer(from, client)
	return a.Verdict == model.Balance && slices.Contains(a.Endpoints, endpoint) || slices.Contains(p.Draining, endpoint)
}

// Equal reports whether two policies are the same.
func (p *Policy) Equal(o *Policy) bool {
	if p.Port != o.Port || p.Restricted != o.Restricted || p.SessionAffinity != o.SessionAffinity ||
		!slices.Equal(p.Allow, o.Allow) || !slices.Equal(p.Draining, o.Draining) {
		return false
	}
	for i := range p.On {
		if !p.On[i].equal(o.On[i]) {
			return false
		}
	}
	return true
}

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
