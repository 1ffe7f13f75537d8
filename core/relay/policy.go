// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/suspect"
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

	// Restricted relays serve only clients inside Allow, which is canonical; others are reset.
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
	if p.Restricted && !model.Within(p.Allow, client) {
		return Answer{Verdict: model.Drop}
	}
	return p.On[from]
}

// lasting finds out which UDP sessions a policy lets go on, in constant time for each.
type lasting struct {
	policy   *Policy
	on       [model.Origins]endpointSet // of the answers that balance
	draining endpointSet
}

type endpointSet map[netip.AddrPort]struct{}

func newEndpointSet(all []netip.AddrPort) endpointSet {
	s := make(endpointSet, len(all))
	for _, e := range all {
		s[e] = struct{}{}
	}
	return s
}

func (s endpointSet) has(e netip.AddrPort) bool {
	_, has := s[e]
	return has
}

func lastingUnder(p *Policy) *lasting {
	l := &lasting{policy: p, draining: newEndpointSet(p.Draining)}
	for from, a := range p.On {
		if same := slices.IndexFunc(p.On[:from], a.equal); same >= 0 { // as with one pool
			l.on[from] = l.on[same]
		} else if a.Verdict == model.Balance {
			l.on[from] = newEndpointSet(a.Endpoints)
		}
	}
	return l
}

// has reports whether a session with an endpoint may go on.
func (l *lasting) has(from model.Origin, client netip.Addr, endpoint netip.AddrPort) bool {
	return l.policy.Answer(from, client).Verdict == model.Balance && l.on[from].has(endpoint) || l.draining.has(endpoint)
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
	failures  int
	first     int // that failed, once one has
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

// failed selects another endpoint, each once: the first at random, so that the clients of one
// that is silent spread over all others, and from there in order.
func (c *choice) failed(now time.Time) {
	c.forget()
	n := len(c.endpoints)
	switch c.failures++; {
	case n == 1:
	case c.failures == 1:
		c.first, c.at = c.at, (c.at+1+rand.IntN(n-1))%n
	default:
		if c.at = (c.at + 1) % n; c.at == c.first {
			c.at = (c.at + 1) % n
		}
	}
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

// attempts remember the latest tries to reach endpoints, for core/suspect, once a caller
// has asked for them. Namespaces share the places: when all are taken, the one with the most
// loses its earliest. They are safe for concurrent use.
type attempts struct {
	on   atomic.Bool
	news chan struct{} // holds a token after a try, once it is made

	mu     sync.Mutex
	last   uint32         // the number of the latest one
	latest []attempt      // at most maxAttempts, the latest last
	of     map[string]int // how many of these each namespace has
	told   uint32         // the number of the last one that New has shown
	lost   bool           // one that New has not shown
}

type attempt struct {
	flow     suspect.Flow
	at       time.Time // when it ended
	answered bool
}

const (
	maxAttempts = 512
	// silentFor is how long an attempt counts as one that waits, though the relay has
	// gone on to another endpoint.
	silentFor = 5 * time.Second
)

// note remembers a try of the endpoint that a client is at. Refusal is an answer.
func (a *attempts) note(to *choice, answered bool) {
	if !a.on.Load() {
		return
	}
	port := to.port
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last++
	if len(a.latest) == maxAttempts {
		a.forgetOne(port.Service.Namespace)
	}
	a.latest = append(a.latest, attempt{suspect.Flow{ID: a.last, Client: to.client, Port: &port, Endpoint: to.endpoint()}, time.Now(), answered})
	if a.of == nil {
		a.of = map[string]int{}
	}
	a.of[port.Service.Namespace]++
	select {
	case a.news <- struct{}{}:
	default: // already signalled, or no reader
	}
}

// forgetOne makes room for a try of a namespace: that gives one up itself, unless another has more.
func (a *attempts) forgetOne(asks string) {
	most := model.Largest(a.of, asks)
	i := slices.IndexFunc(a.latest, func(one attempt) bool { return one.flow.Port.Service.Namespace == most })
	a.lost = a.lost || a.after(a.latest[i].flow.ID, a.told)
	a.latest = slices.Delete(a.latest, i, i+1)
	if a.of[most]--; a.of[most] == 0 {
		delete(a.of, most)
	}
}

// after reports whether a number is later than another one; they may have wrapped around.
func (*attempts) after(n, other uint32) bool { return int32(n-other) > 0 }

// Attempts are the latest tries of a Server to reach endpoints. They are remembered
// from the first call on.
type Attempts struct{ *attempts }

// New calls each for the tries that have ended since the last call, with since when the endpoint has been
// asked, and tells whether those are all of them.
func (a *Attempts) New(_ context.Context, each func(f suspect.Flow, s suspect.State, since time.Time)) (all bool, err error) {
	first := !a.on.Swap(true)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.news == nil {
		a.news = make(chan struct{}, 1)
	}
	for _, one := range a.latest {
		switch {
		case !a.after(one.flow.ID, a.told):
		case one.answered:
			each(one.flow, suspect.Answered, one.at)
		default:
			each(one.flow, suspect.Waiting, one.at.Add(-dialTimeouts[0]))
		}
	}
	all = !first && !a.lost
	a.told, a.lost = a.last, false
	return all, nil
}

// States calls each for tries that had no answer, by their place. They count as ones that wait for
// some seconds.
func (a *Attempts) States(_ context.Context, flows []suspect.Flow, each func(i int, s suspect.State)) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, f := range flows {
		state := suspect.Gone
		at, known := slices.BinarySearchFunc(a.latest, f.ID, func(one attempt, id uint32) int { return int(int32(one.flow.ID - id)) })
		if known && time.Since(a.latest[at].at) < silentFor {
			state = suspect.Waiting
		}
		each(i, state)
	}
	return nil
}

// Prior returns nothing: of earlier tries nothing is known.
func (*Attempts) Prior(context.Context, func(netip.Addr) bool, int) ([]netip.AddrPort, []suspect.Flow, error) {
	return nil, nil, nil
}

// Waiting returns nothing: New has shown all tries that are known.
func (*Attempts) Waiting(context.Context, int) ([]suspect.Flow, error) { return nil, nil }

// Wait waits until a try has ended since the last New, or before it, or ctx ends.
func (a *Attempts) Wait(ctx context.Context) {
	a.mu.Lock()
	news := a.news
	a.mu.Unlock()
	select {
	case <-news:
	case <-ctx.Done():
	}
}

// Spent is 0: looking costs next to nothing.
func (*Attempts) Spent() time.Duration { return 0 }

// dialTimeouts limit each attempt to reach an endpoint. After a refusal the next
// endpoint is tried at once.
var dialTimeouts = [...]time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}

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
