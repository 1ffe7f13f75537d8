// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
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
	udpSlots  *slots // those of UDP sessions: slots, or fewer where each has a buffer
	backoff   backoff
	lostAt    atomic.Pointer[time.Time] // when a lost connection was logged; nil for never
	listeners listeners
	stats     counters
	attempts  attempts
	clients   *clients // with session affinity

	newStream, newDatagrams newReader
	buffers                 sync.Pool // of *[]byte of chunkSize
	packets                 sync.Pool // of *[]byte of maxDatagram

	mu      sync.Mutex
	conns   map[connection]struct{} // TCP connections served by goroutines
	closing bool                    // no more work may be added from outside
}

func newShared(o Options) *shared {
	s := &shared{
		options: o.withDefaults(), created: time.Now(), slots: slots{limit: connectionLimit(maxDescriptors())}, conns: map[connection]struct{}{}, clients: newClients(maxClients),
		buffers: sync.Pool{New: func() any { b := make([]byte, chunkSize); return &b }},
		packets: sync.Pool{New: func() any { b := make([]byte, maxDatagram); return &b }},
	}
	s.udpSlots = &s.slots
	s.newStream, s.newDatagrams = systemReaders()
	if !pooledDatagrams {
		s.bufferDatagrams()
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// bufferDatagrams gives each UDP session a buffer of its own, and limits their number by that.
func (s *shared) bufferDatagrams() {
	s.newDatagrams = newBufferedDatagrams
	s.udpSlots = &slots{limit: maxBufferedSessions}
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

// exhausted notes that this host lacks descriptors, ports or memory. It reports
// whether that begins now.
func (s *shared) exhausted() (begins bool) {
	s.stats.exhausted.Add(1)
	return s.backoff.start(time.Now())
}

// backoff slows down accepting while descriptors or ports are exhausted: open
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
	at map[address]*ownListener
}

type address struct {
	proto model.Proto
	at    netip.AddrPort
}

// ownListener is a listener of this server. That a Service has it as an endpoint
// is logged once.
type ownListener struct{ logged atomic.Bool }

func (l *listeners) add(a address) *ownListener {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at == nil {
		l.at = map[address]*ownListener{}
	}
	own := &ownListener{}
	l.at[a] = own
	return own
}

// remove leaves an address alone that another listener has by now.
func (l *listeners) remove(a address, own *ownListener) {
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
	own := s.listeners.at[address{proto, endpoint}]
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

// Counter is implemented by backends with relays, for metrics. It is safe for
// concurrent use, also after the backend was closed.
type Counter interface{ Relays() Stats }

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
