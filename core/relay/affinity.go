// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"container/heap"
	"net/netip"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// maxClients bounds the clients with session affinity that a server remembers, about 20 MB: addresses of UDP
// clients can be forged. When there are more, the namespace that has the most gives room, of its
// relays the one that has the most, and of that one the client that was idle longest. So a
// namespace keeps what it has up to an equal share, and 16 that flood leave any other its
// model.AffinityNamespaceShare, as in data planes of the kernel.
const maxClients = 16 * model.AffinityNamespaceShare

// reserveTime is how long an endpoint is reserved for a client that has no connection yet: a
// second longer than all attempts to reach one may take, 250 ms to 2 s each.
const reserveTime = 5 * time.Second

// clients are the room for clients that all relays of a server share. It is safe for
// concurrent use.
type clients struct {
	limit int

	mu      sync.Mutex // guards all that follows, tenants and affinities
	n       int
	tenants indexed[*tenant] // that have clients, the largest first
	named   map[string]*tenant
	lacked  map[*affinity]time.Time // when a relay's client gave room to another
}

func newClients(limit int) *clients {
	return &clients{limit: limit, named: map[string]*tenant{}, lacked: map[*affinity]time.Time{}}
}

// tenant is what one namespace has of the room.
type tenant struct {
	namespace string
	n, place  int
	relays    indexed[*affinity] // the largest first
}

func (t *tenant) before(o *tenant) bool { return t.n > o.n }
func (t *tenant) moved(place int)       { t.place = place }

// affinity maps clients of one relay to endpoints. It is safe for concurrent use.
type affinity struct {
	room  *clients
	port  model.PortID
	known map[netip.Addr]*affineClient
	uses  affineClient // before the one that is idle longest, and behind the last one
	owner *tenant      // nil while there are no clients
	place int
	ended bool // the relay is closed: its connections, which go on, are not remembered
}

func (a *affinity) before(o *affinity) bool { return len(a.known) > len(o.known) }
func (a *affinity) moved(place int)         { a.place = place }

// affineClient is a client in a list by when it was last seen.
type affineClient struct {
	addr           netip.Addr
	endpoint       netip.AddrPort
	expires        time.Time
	earlier, later *affineClient
}

func (c *affineClient) unlink() { c.earlier.later, c.later.earlier = c.later, c.earlier }

func (c *affineClient) linkBefore(o *affineClient) {
	c.earlier, c.later = o.earlier, o
	c.earlier.later, o.earlier = c, c
}

func newAffinity(room *clients, port model.PortID) *affinity {
	a := &affinity{room: room, port: port, known: map[netip.Addr]*affineClient{}}
	a.uses.earlier, a.uses.later = &a.uses, &a.uses
	return a
}

func (a *affinity) get(client netip.Addr, now time.Time) (endpoint netip.AddrPort, ok bool) {
	a.room.mu.Lock()
	defer a.room.mu.Unlock()
	if c := a.known[client]; c != nil && now.Before(c.expires) {
		return c.endpoint, true
	}
	return netip.AddrPort{}, false
}

// reserve returns a client's endpoint, which is the given one if it has none.
func (a *affinity) reserve(client netip.Addr, endpoint netip.AddrPort, expires, now time.Time) netip.AddrPort {
	a.room.mu.Lock()
	defer a.room.mu.Unlock()
	if c := a.known[client]; c != nil && now.Before(c.expires) {
		return c.endpoint
	}
	a.put(client, endpoint, expires, now)
	return endpoint
}

func (a *affinity) set(client netip.Addr, endpoint netip.AddrPort, expires, now time.Time) {
	a.room.mu.Lock()
	defer a.room.mu.Unlock()
	a.put(client, endpoint, expires, now)
}

// forget removes a client's entry, unless it names another endpoint by now.
func (a *affinity) forget(client netip.Addr, endpoint netip.AddrPort) {
	a.room.mu.Lock()
	defer a.room.mu.Unlock()
	if c := a.known[client]; c != nil && c.endpoint == endpoint {
		a.remove(c)
	}
}

// end forgets all clients, and remembers no more.
func (a *affinity) end() {
	a.room.mu.Lock()
	defer a.room.mu.Unlock()
	a.ended = true
	for _, c := range a.known {
		a.remove(c)
	}
	delete(a.room.lacked, a)
}

// expireAtOnce is how many clients whose time is over make room when a new one comes.
const expireAtOnce = 16

// put remembers a client, in place of those whose time is over or, where there is no room, of one
// of the largest.
func (a *affinity) put(client netip.Addr, endpoint netip.AddrPort, expires, now time.Time) {
	if c := a.known[client]; c != nil {
		c.endpoint, c.expires = endpoint, expires
		c.unlink()
		c.linkBefore(&a.uses)
		return
	}
	if a.ended {
		return
	}
	for range expireAtOnce {
		c := a.uses.later
		if c == &a.uses || now.Before(c.expires) {
			break
		}
		a.remove(c)
	}
	if a.room.n >= a.room.limit {
		largest := a.room.tenants[0].relays[0]
		idle := largest.uses.later
		if largest.remove(idle); now.Before(idle.expires) {
			a.room.lacked[largest] = now
		}
	}
	c := &affineClient{addr: client, endpoint: endpoint, expires: expires}
	a.known[client] = c
	c.linkBefore(&a.uses)
	a.count(1)
}

func (a *affinity) remove(c *affineClient) {
	c.unlink()
	delete(a.known, c.addr)
	a.count(-1)
}

// count corrects the order of relays and namespaces after a client has come or gone.
func (a *affinity) count(change int) {
	room := a.room
	if a.owner == nil {
		name := a.port.Service.Namespace
		if a.owner = room.named[name]; a.owner == nil {
			a.owner = &tenant{namespace: name}
			room.named[name] = a.owner
			heap.Push(&room.tenants, a.owner)
		}
		heap.Push(&a.owner.relays, a)
	}
	t := a.owner
	room.n, t.n = room.n+change, t.n+change
	heap.Fix(&t.relays, a.place)
	heap.Fix(&room.tenants, t.place)
	if len(a.known) == 0 {
		heap.Remove(&t.relays, a.place)
		a.owner = nil
	}
	if t.n == 0 {
		heap.Remove(&room.tenants, t.place)
		delete(room.named, t.namespace)
	}
}

// crowdedFor is how long it is known that clients of a relay gave room.
const crowdedFor = 5 * time.Minute

// crowded returns the ports whose clients gave room lately.
func (r *clients) crowded(now time.Time) (ports []model.PortID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for a, at := range r.lacked {
		if now.Sub(at) > crowdedFor {
			delete(r.lacked, a)
			continue
		}
		ports = append(ports, a.port)
	}
	return ports
}

// indexed is a heap of items that know their place in it, so that any of them can be moved and
// removed. It implements heap.Interface.
type indexed[T item[T]] []T

type item[T any] interface {
	before(T) bool   // whether it comes first
	moved(place int) // notes its place
}

func (h indexed[T]) Len() int           { return len(h) }
func (h indexed[T]) Less(i, j int) bool { return h[i].before(h[j]) }

func (h indexed[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].moved(i)
	h[j].moved(j)
}

// Push implements heap.Interface.
func (h *indexed[T]) Push(x any) {
	one := x.(T)
	one.moved(len(*h))
	*h = append(*h, one)
}

// Pop implements heap.Interface.
func (h *indexed[T]) Pop() any {
	last := len(*h) - 1
	one := (*h)[last]
	clear((*h)[last:])
	*h = (*h)[:last]
	return one
}
