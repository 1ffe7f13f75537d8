// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/monitor"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/sleep"
)

// shared is what all parts of a Server use. It is safe for concurrent use.
type shared struct {
	options   Options
	created   time.Time
	ctx       context.Context // ends when everything must end
	stop      context.CancelFunc
	work      sync.WaitGroup // goroutines and TCP connections that end by themselves
	admitted  atomic.Int64   // TCP connections that hold a slot
	slots     slots
	udpSlots  *slots               // those of UDP sessions: slots, or fewer where each has a buffer, or a port of the system's
	ports     map[portSpace]*slots // on which relays listen; never changed
	backoff   backoff
	lostAt    atomic.Pointer[time.Time] // when a lost connection was logged; nil for never
	listeners listeners
	stats     counters
	attempts  attempts
	watched   atomic.Pointer[watched] // nil without a monitor
	clients   *clients                // with session affinity

	newStream, newDatagrams newReader
	buffers                 sync.Pool // of *[]byte of chunkSize
	packets                 sync.Pool // of *[]byte of maxDatagram

	mu      sync.Mutex
	conns   map[connection]struct{} // TCP connections served by goroutines
	closing bool                    // no more work may be added from outside
}

func newShared(o Options) *shared {
	s := &shared{
		options: o.withDefaults(), created: time.Now(), slots: slots{limit: connectionLimit(maxDescriptors())}, conns: map[connection]struct{}{}, clients: newClients(maxClients), ports: map[portSpace]*slots{},
		buffers: sync.Pool{New: func() any { b := make([]byte, chunkSize); return &b }},
		packets: sync.Pool{New: func() any { b := make([]byte, maxDatagram); return &b }},
	}
	s.udpSlots = &s.slots
	for _, family := range model.Families() {
		for _, proto := range []model.Proto{model.TCP, model.UDP, model.SCTP} {
			s.ports[portSpace{proto, family}] = &slots{limit: o.Ports}
		}
	}
	s.newStream, s.newDatagrams = systemReaders()
	switch {
	case !pooledDatagrams:
		s.bufferDatagrams()
	case o.Ports > 0:
		s.limitSessions(o.Ports)
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// bufferDatagrams gives each UDP session a buffer of its own, and limits their number by that.
func (s *shared) bufferDatagrams() {
	s.newDatagrams = newBufferedDatagrams
	s.udpSlots = &slots{limit: maxBufferedSessions}
}

// limitSessions has UDP sessions, each of which has one of the ports that the system chooses from, take no more than
// half of these: all programs of the node choose from them, a resolver for each of its questions. They
// have their part of the descriptors, too.
func (s *shared) limitSessions(ports int) {
	limit := max(1, ports/2)
	if all := s.slots.limit; all > 0 {
		limit = max(1, min(limit, all/2))
		s.slots.limit = max(1, all-limit)
	}
	s.udpSlots = &slots{limit: limit}
}

// portSpace is where a port is one relay's alone: they all listen on one address, or share few.
type portSpace struct {
	proto  model.Proto
	family model.Family
}

func (s *shared) portsOf(proto model.Proto, at netip.Addr) *slots {
	return s.ports[portSpace{proto, model.FamilyOf(at.Unmap())}]
}

// moment returns a time as it is stored: in nanoseconds since the server was created, which do
// not change when the clock is set.
func (s *shared) moment(t time.Time) int64 { return int64(t.Sub(s.created)) }

// timeOf is the reverse of moment.
func (s *shared) timeOf(moment int64) time.Time { return s.created.Add(time.Duration(moment)) }

// connection is an open TCP connection, however it is served.
type connection interface {
	share() *share
	// activity returns how long the connection is idle; 0 before it is open.
	activity(now time.Time) (idle time.Duration, halfClosed bool)
	reset()
}

// admit waits until a relay may have one more TCP connection. It returns false
// when the server ends first.
func (s *shared) admit(by *share) bool {
	if !s.slots.try(by) {
		s.stats.limited.Add(1)
		if !s.slots.take(s.ctx, by) {
			return false
		}
	}
	s.work.Add(1)
	s.admitted.Add(1)
	return true
}

// dismiss ends a TCP connection that was admitted.
func (s *shared) dismiss(by *share) {
	s.slots.free(by)
	s.admitted.Add(-1)
	s.work.Done()
}

// exhausted notes that this host lacks descriptors or memory. It reports whether that
// begins now.
func (s *shared) exhausted() (begins bool) {
	s.stats.exhausted.Add(1)
	return s.backoff.start(time.Now())
}

// backoff slows down accepting while descriptors or memory are exhausted: open
// connections continue, and clients wait in the listener's queue. It is safe for
// concurrent use.
type backoff struct {
	until atomic.Pointer[time.Time] // accept nothing before; nil for no back-off
}

const backoffTime = 50 * time.Millisecond

// start begins or extends the back-off. It reports whether it begins.
func (b *backoff) start(now time.Time) (begins bool) {
	until := now.Add(backoffTime)
	return b.until.Swap(&until) == nil
}

// wait returns at the end of the back-off.
func (b *backoff) wait(ctx context.Context) {
	if until := b.until.Load(); until != nil {
		if left := time.Until(*until); left > 0 {
			sleep.For(ctx, left)
		} else {
			b.until.CompareAndSwap(until, nil)
		}
	}
}

// listeners are the addresses on which a server's relays listen. They are safe for
// concurrent use.
type listeners struct {
	mu sync.RWMutex
	at map[model.Destination]*ownListener
}

// ownListener is a listener of this server. That a Service has it as an endpoint
// is logged once.
type ownListener struct{ logged atomic.Bool }

func (l *listeners) add(a model.Destination) *ownListener {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at == nil {
		l.at = map[model.Destination]*ownListener{}
	}
	own := &ownListener{}
	l.at[a] = own
	return own
}

// remove leaves an address alone that another listener has by now.
func (l *listeners) remove(a model.Destination, own *ownListener) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at[a] == own {
		delete(l.at, a)
	}
}

// errLoop is the error for an endpoint that is a relay of the same server: a
// connection to it would return, and two such Services would use up all slots with
// one connection.
var errLoop = errors.New("the endpoint is a listener of this proxy: forwarding loop")

// checkLoop returns errLoop for an endpoint that is a relay of this server.
func (s *shared) checkLoop(proto model.Proto, endpoint netip.AddrPort) error {
	endpoint = unmapped(endpoint)
	s.listeners.mu.RLock()
	own := s.listeners.at[model.Destination{Proto: proto, At: endpoint}]
	s.listeners.mu.RUnlock()
	if own == nil {
		return nil
	}
	if !own.logged.Swap(true) {
		s.options.Log.Warn("endpoint skipped", "endpoint", endpoint, "protocol", proto, "err", errLoop)
	}
	return errLoop
}

// Stats are a Server's counters since its start, and gauges: Open, Sessions, Limit.
type Stats struct {
	Accepted  uint64 // TCP connections of clients
	Open      int64  // TCP connections with an endpoint
	Sessions  int64  // of UDP
	Limit     int    // of connections, by descriptors; also of sessions where these have no buffers of their own; 0 is none
	Refused   uint64 // by policy
	Retried   uint64 // attempts to reach an endpoint that failed
	Failed    uint64 // connections for which no endpoint was reached
	Limited   uint64 // connections that waited for their relay's share, and sessions that had no free slot in it
	Exhausted uint64 // how often descriptors, ports or memory of this host had run out
	Dropped   uint64 // UDP datagrams that could not be delivered

	IdleTimeouts, HalfClosedTimeouts uint64 // TCP connections reset after Timeouts

	Listeners      [2]int    // that are open, by family
	ListenFailures [2]uint64 // attempts to open one
}

// Backend is what backends with relays have besides dataplane.Backend. It is safe for
// concurrent use, also after the backend was closed.
type Backend interface {
	Relays() Stats       // for metrics
	Attempts() *Attempts // for failover: what clients have seen of endpoints
	Watch() monitor.Source
}

type counters struct {
	accepted, refused, retried, failed, limited, exhausted, dropped atomic.Uint64
	idleTimeouts, halfClosedTimeouts                                atomic.Uint64
	open, sessions                                                  atomic.Int64
}

// Attempts returns the latest tries to reach endpoints.
func (s *shared) Attempts() *Attempts { return &Attempts{&s.attempts} }

// Stats returns the counters.
func (s *shared) Stats() Stats {
	c := &s.stats
	return Stats{
		Accepted: c.accepted.Load(), Open: c.open.Load(), Sessions: c.sessions.Load(), Limit: s.slots.limit,
		Refused: c.refused.Load(), Retried: c.retried.Load(), Failed: c.failed.Load(), Limited: c.limited.Load(),
		Exhausted: c.exhausted.Load(), Dropped: c.dropped.Load(),
		IdleTimeouts: c.idleTimeouts.Load(), HalfClosedTimeouts: c.halfClosedTimeouts.Load(),
	}
}

// engine serves TCP connections without goroutines, on systems that have one. It
// is safe for concurrent use.
type engine interface {
	listener(*net.TCPListener) (listener, error) // owns the listener afterwards
	open() []connection
	Close() // when no connection is left
}

// listener accepts the TCP clients of a relay.
type listener interface {
	accept() (client, error) // waits for one; net.ErrClosed is the end
	SyscallConn() (syscall.RawConn, error)
	Close() error
}

// client is a connection that was accepted and is not served yet.
type client interface {
	from() netip.AddrPort
	serve(choice, *share) // owns the client afterwards; does not wait
	reset()
}

// slots limit the open connections and sessions. Each connection needs two
// descriptors: a client is only accepted if there is one for its endpoint, too. They
// are safe for concurrent use.
type slots struct {
	limit int // 0 is no limit

	mu      sync.Mutex
	used    int
	freed   chan struct{}       // closed when a slot is freed; nil while no client waits
	limited map[*share]struct{} // shares that lacked a slot; see recent
	tenants map[string]*holding // that hold some, by namespace
	holders indexed[*holding]   // those with shares that can give a slot way, and hold some
}

// holding is what the shares of a namespace hold, together: however many Service ports it has, it has no more room.
type holding struct {
	held   int             // by all of its shares
	gives  int             // the part held by shares that can give way
	shares indexed[*share] // the latter, that hold some
	place  int             // in slots.holders, while it is there
}

// share is what one Relay holds of the slots, whose mu guards it.
type share struct {
	port    model.PortID
	taken   atomic.Uint64 // TCP connections and UDP sessions since it listens; not guarded
	giveWay func() bool   // ends the session that is idle longest; false where there is none; nil for TCP. Not guarded
	held    int
	place   int       // in holding.shares, while it is there
	waiting bool      // a client waits for a slot
	lacked  time.Time // when a slot was last lacking
}

// connectionLimit returns how many connections a limit on descriptors allows, with
// a reserve for the rest of the process; 0 is no limit.
func connectionLimit(descriptors int) int {
	if descriptors <= 0 {
		return 0
	}
	reserve := 64 + descriptors/8
	return max(1, (descriptors-reserve)/2)
}

// try takes a slot if the share may grow. A share may hold as many slots as it
// leaves free: alone half of all, n shares that want all 1/(n+1) each, so that one
// more always finds room (dynamic thresholds, as in switches with shared buffers:
// Choudhury and Hahne, 1998). So may all shares of a namespace together.
func (s *slots) try(by *share) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ok := s.grant(by)
	if !ok {
		s.lack(by)
	}
	return ok
}

func (s *slots) grant(by *share) bool {
	if free := s.limit - s.used; s.limit > 0 && (by.held >= free || s.heldBeside(by) >= free) {
		return false
	}
	s.hold(by, 1)
	return true
}

// errNoPort is the error for a relay of a namespace that has its share of the ports.
var errNoPort = errors.New("no port for another relay")

// place has a relay take one of the ports, if its namespace may have another one. One that is
// the relay's by its number, since an earlier process had it, counts only.
func (s *slots) place(by *share, asks bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !asks {
		s.hold(by, 1)
		return nil
	}
	if !s.grant(by) {
		return fmt.Errorf("%w: %d of %d ports that the system chooses from are in use, %d of them by namespace %q", errNoPort, s.used, s.limit, s.heldBeside(by), by.port.Service.Namespace)
	}
	return nil
}

// heldBeside returns how many slots the namespace of a share holds; 0 for one of no Service. mu is held.
func (s *slots) heldBeside(by *share) int {
	if t := s.tenants[by.port.Service.Namespace]; t != nil && by.port.Service.Namespace != "" {
		return t.held
	}
	return 0
}

// hold changes by how many slots a share holds. mu is held.
func (s *slots) hold(by *share, more int) {
	name := by.port.Service.Namespace
	t := s.tenants[name]
	if t == nil {
		if s.tenants == nil {
			s.tenants = map[string]*holding{}
		}
		t = &holding{}
		s.tenants[name] = t
	}
	s.used += more
	by.held += more
	if t.held += more; t.held == 0 {
		delete(s.tenants, name)
	}
	if by.giveWay == nil {
		return
	}
	keep(&t.shares, by, by.place, by.held, more)
	t.gives += more
	keep(&s.holders, t, t.place, t.gives, more)
}

// keep has something at its place in a heap of what holds slots, once it holds some more.
func keep[T item[T]](all *indexed[T], one T, place, held, more int) {
	switch {
	case held == 0:
		heap.Remove(all, place)
	case held == 1 && more > 0:
		heap.Push(all, one)
	default:
		heap.Fix(all, place)
	}
}

// giver returns the share that makes room for one that may not grow; nil if it has to do so itself, or no share can.
// A share without a session gets one of the namespace with the most, but not the last of another namespace. In its own
// namespace a share gives way to one that has at least two fewer: so shares get even, and do not take each other's
// last. Each time it is the share with the most that gives. mu is held.
func (s *slots) giver(by *share) *share {
	own := s.tenants[by.port.Service.Namespace]
	if by.held == 0 && len(s.holders) > 0 && s.holders[0] != own && s.holders[0].gives > 1 {
		return s.holders[0].shares[0]
	}
	if own != nil && len(own.shares) > 0 && own.shares[0].held > by.held+1 {
		return own.shares[0]
	}
	return nil
}

// othersGive reports whether makeRoomFor would free a slot for a share.
func (s *slots) othersGive(by *share) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.giver(by) != nil
}

// makeRoomFor frees a slot for a share, and reports whether it did: while old sessions of others hold the slots, its
// clients would be refused until some expire, or end each other's sessions before they are answered. It costs
// O(log n) of n shares.
func (s *slots) makeRoomFor(by *share) bool {
	s.mu.Lock()
	giver := s.giver(by)
	s.mu.Unlock()
	return giver != nil && giver.giveWay()
}

// exceeds reports whether a share has more than it may have, by more than rounding: others
// have grown since.
func (s *slots) exceeds(by *share) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	free := s.limit - s.used
	return s.limit > 0 && (by.held > free+1 || s.heldBeside(by) > free+1)
}

func (s *slots) lack(by *share) {
	if s.limited == nil {
		s.limited = map[*share]struct{}{}
	}
	s.limited[by] = struct{}{}
	by.lacked = time.Now()
}

// take waits for a slot. It returns false if ctx ends first.
func (s *slots) take(ctx context.Context, by *share) bool {
	for {
		s.mu.Lock()
		if by.waiting = !s.grant(by); !by.waiting {
			s.mu.Unlock()
			return true
		}
		s.lack(by)
		if s.freed == nil {
			s.freed = make(chan struct{})
		}
		freed := s.freed
		s.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return false
		}
	}
}

func (s *slots) free(by *share) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold(by, -1)
	if s.freed != nil {
		close(s.freed)
		s.freed = nil
	}
}

// limitedFor is how long a share counts as limited after it last lacked a slot:
// under load each slot that is freed is wanted again, and neither logs nor the
// shorter timeouts should follow every single one.
const limitedFor = time.Minute

// recent returns the shares that are limited, in no order.
func (s *slots) recent(now time.Time) map[*share]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	recent := make(map[*share]bool, len(s.limited))
	for by := range s.limited {
		if !by.waiting && now.Sub(by.lacked) > limitedFor {
			delete(s.limited, by)
			continue
		}
		recent[by] = true
	}
	return recent
}

// before implements item: the namespace with the most slots comes first.
func (t *holding) before(o *holding) bool { return t.gives > o.gives }

func (t *holding) moved(place int) { t.place = place }

// before implements item: the share with the most slots comes first.
func (s *share) before(o *share) bool { return s.held > o.held }

func (s *share) moved(place int) { s.place = place }

// watched collects the outcome of connections between two reads of the monitor: a monitor.Source.
type watched struct {
	shared *shared

	mu   sync.Mutex
	all  []monitor.Seen // monitor.Read of them at most
	more bool
}

// Watch shows what becomes of clients from now on, to the last caller.
func (s *shared) Watch() monitor.Source {
	w := &watched{shared: s}
	s.watched.Store(w)
	return w
}

// Look implements monitor.Source.
func (w *watched) Look(each func(monitor.Seen)) (more bool, err error) {
	w.mu.Lock()
	all, more := w.all, w.more
	w.all, w.more = nil, false
	w.mu.Unlock()
	for _, one := range all {
		each(one)
	}
	return more, nil
}

// Close implements monitor.Source.
func (w *watched) Close() error {
	w.shared.watched.CompareAndSwap(w, nil)
	return nil
}

// reached notes that a client has an endpoint.
func (s *shared) reached(to *choice) {
	to.connected(time.Now())
	s.saw(to.port, to.client, oracle.Forward, to.endpoint())
}

// saw shows what has become of a client.
func (s *shared) saw(of model.PortID, client netip.AddrPort, fate oracle.Fate, endpoint netip.AddrPort) {
	w := s.watched.Load()
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.more = w.more || len(w.all) == monitor.Read; w.more {
		return
	}
	w.all = append(w.all, monitor.Seen{At: time.Now(), Proto: of.Proto, Client: client, Port: of, Fate: fate, Endpoint: endpoint})
}

// rejectedBy is the fate of a client that gets no endpoint: without one it is rejected.
func rejectedBy(v model.Verdict) oracle.Fate {
	if v == model.Drop {
		return oracle.Drop
	}
	return oracle.Reject
}
