// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// balancer chooses endpoints: by session affinity, else by the scheduler. It is safe
// for concurrent use and outlives changes of the policy.
type balancer struct {
	port     model.PortID // whose it is
	affinity affinity
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

// affinity maps clients to endpoints. It is safe for concurrent use.
type affinity struct {
	mu        sync.Mutex
	clients   map[netip.Addr]affinityEntry
	sweepAt   int       // the size at which expired entries are removed
	nextSweep time.Time // not before
}

type affinityEntry struct {
	endpoint netip.AddrPort
	expires  time.Time
}

// minSweep is the number of entries below which expired ones are not looked for.
// maxClients bounds the entries of a frontend, about 10 MB: addresses of UDP clients can
// be forged. Further clients are served and not remembered.
const (
	minSweep   = 1024
	maxClients = 1 << 16
	sweepPause = time.Second
)

// reserveTime is how long an endpoint is reserved for a client that has no connection yet: a
// second longer than all attempts to reach one may take, 250 ms to 2 s each.
const reserveTime = 5 * time.Second

func (a *affinity) get(client netip.Addr, now time.Time) (endpoint netip.AddrPort, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e, ok := a.clients[client]
	return e.endpoint, ok && now.Before(e.expires)
}

// reserve returns a client's endpoint, which is the given one if it has none.
func (a *affinity) reserve(client netip.Addr, endpoint netip.AddrPort, expires, now time.Time) netip.AddrPort {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e, ok := a.clients[client]; ok && now.Before(e.expires) {
		return e.endpoint
	}
	a.put(client, endpoint, expires, now)
	return endpoint
}

func (a *affinity) set(client netip.Addr, endpoint netip.AddrPort, expires, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.put(client, endpoint, expires, now)
}

func (a *affinity) put(client netip.Addr, endpoint netip.AddrPort, expires, now time.Time) {
	if a.clients == nil {
		a.clients, a.sweepAt = map[netip.Addr]affinityEntry{}, minSweep
	}
	if len(a.clients) >= a.sweepAt && !now.Before(a.nextSweep) {
		a.sweep(now)
	}
	if _, known := a.clients[client]; known || len(a.clients) < maxClients {
		a.clients[client] = affinityEntry{endpoint, expires}
	}
}

// sweep removes expired entries. The next sweep is due when the map has doubled or is
// full, and after a pause, so its amortised cost for each new client is small.
func (a *affinity) sweep(now time.Time) {
	for client, e := range a.clients {
		if !now.Before(e.expires) {
			delete(a.clients, client)
		}
	}
	a.sweepAt, a.nextSweep = min(max(minSweep, 2*len(a.clients)), maxClients), now.Add(sweepPause)
}

// forget removes a client's entry, unless it names another endpoint by now.
func (a *affinity) forget(client netip.Addr, endpoint netip.AddrPort) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.clients[client].endpoint == endpoint {
		delete(a.clients, client)
	}
}
