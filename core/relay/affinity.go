package relay

import (
	"net/netip"
	"sync"
	"time"
)

// affinity remembers which endpoint a client had. It is safe for concurrent
// use.
type affinity struct {
	mu      sync.Mutex
	clients map[netip.Addr]seat
	sweepAt int // the size at which those whose time is over are looked for
}

// seat is the endpoint that a client had, and until when it is remembered.
type seat struct {
	endpoint netip.AddrPort
	until    time.Time
}

// minSweep is the number of clients below which it is not worth while to look
// for those whose time is over.
const minSweep = 1024

func (a *affinity) get(client netip.Addr, now time.Time) (endpoint netip.AddrPort, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, ok := a.clients[client]
	return s.endpoint, ok && now.Before(s.until)
}

// set remembers a client's endpoint, or starts its time anew.
func (a *affinity) set(client netip.Addr, endpoint netip.AddrPort, now time.Time, sticky time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.clients == nil {
		a.clients, a.sweepAt = map[netip.Addr]seat{}, minSweep
	}
	if len(a.clients) >= a.sweepAt {
		a.sweep(now)
	}
	a.clients[client] = seat{endpoint, now.Add(sticky)}
}

// sweep forgets whom it may. The next one is due when as many clients have come
// as are left, so that each costs the same however many there are.
func (a *affinity) sweep(now time.Time) {
	for client, s := range a.clients {
		if !now.Before(s.until) {
			delete(a.clients, client)
		}
	}
	a.sweepAt = max(minSweep, 2*len(a.clients))
}

// forget forgets a client, unless it has another endpoint by now.
func (a *affinity) forget(client netip.Addr, endpoint netip.AddrPort) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.clients[client].endpoint == endpoint {
		delete(a.clients, client)
	}
}
