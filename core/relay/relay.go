// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/sleep"
)

// Relay serves one address. It is safe for concurrent use.
type Relay struct {
	*shared
	policy   atomic.Pointer[Policy]
	balancer balancer
	quota    share
	place    share // of its namespace, among the ports of its protocol and family
	proto    model.Proto
	at       netip.AddrPort

	socket      syscall.Conn
	closeSocket func() error
	listening   func() bool // nil for UDP
	remove      func() bool // from the server; false if it was not there any more
	own         *ownListener
}

// Addr returns the address on which the relay listens.
func (r *Relay) Addr() netip.AddrPort { return r.at }

// Listening reports whether the system has the relay's socket listen still: others can
// end that (ss --kill). It is true where the system cannot be asked.
func (r *Relay) Listening() bool { return r.listening == nil || r.listening() }

// keep makes the socket known to those that it may be handed over to.
func (r *Relay) keep(socket syscall.Conn) {
	if r.socket = socket; r.options.Handover != nil {
		r.options.Handover.Keep(r.proto, r.at, socket)
	}
}

// Forget precedes the end of a relay that the next process does not need either
// (Options.Handover).
func (r *Relay) Forget() {
	if r.options.Handover != nil {
		r.options.Handover.Forget(r.proto, r.at, r.socket)
	}
}

// Update changes the policy, in constant time. TCP connections stay with their endpoints; a
// UDP session whose endpoint may no longer serve it ends with the next datagram of either side. An
// endpoint's is dropped, and a client's begins a session with another endpoint.
func (r *Relay) Update(p Policy) { r.policy.Store(&p) }

// Close stops listening. Existing TCP connections continue until they end.
func (r *Relay) Close() error {
	if !r.remove() {
		return nil
	}
	err := r.closeSocket()
	r.listeners.remove(model.Destination{Proto: r.proto, At: r.at}, r.own)
	return err
}

// Retire closes the relay after a delay, in which it still accepts clients whose
// packets were redirected before the rules were deleted. It returns at once.
func (r *Relay) Retire(after time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closing { // Server.Close has closed it and may be waiting for work
		return
	}
	r.work.Go(func() {
		sleep.For(r.ctx, after)
		if err := r.Close(); err != nil {
			r.options.Log.Warn("closing a listener failed", "port", r.quota.port, "listener", r.at, "err", err)
		}
	})
}

// answer returns the Answer for a client, with a choice of endpoints if there are
// any.
func (r *Relay) answer(client netip.AddrPort) (from model.Origin, to choice, ok bool) {
	from = r.options.Origin(client.Addr())
	p := r.policy.Load()
	a := p.Answer(from, client.Addr())
	if a.Verdict != model.Balance || len(a.Endpoints) == 0 {
		r.stats.refused.Add(1)
		r.saw(r.quota.port, client, rejectedBy(a.Verdict), netip.AddrPort{})
		return from, choice{}, false
	}
	return from, r.balancer.choose(from, client, a, p.SessionAffinity, time.Now()), true
}

// Options are common to all relays of a Server.
type Options struct {
	// Origin classifies a client. It is called for every connection, from many
	// goroutines. Nil is FromOutside for all.
	Origin func(netip.Addr) model.Origin

	// UDPIdle is how long a UDP session without a datagram lasts; 0 is a minute.
	UDPIdle time.Duration

	// TCP are the timeouts of connections; zero values are DefaultTimeouts.
	TCP Timeouts

	// Mark is the fwmark of packets to endpoints, on systems that have one, so that
	// rules can distinguish them from those of clients; 0 is none.
	Mark uint32

	// Ports is how many ports the system chooses one from for a relay that names none, and for each UDP
	// session, of each protocol and family: namespaces share them. 0 is no limit.
	Ports int

	// Handover, unless nil, passes sockets between the relays of several servers, and to the
	// next process.
	Handover Handover

	Log *slog.Logger // nil for none
}

// Handover lets two data planes of a process serve at one address while one follows the other,
// and keeps listening TCP sockets beyond the end of the process: clients wait in their
// accept queues instead of being refused. Each server has one of its own; what they share is
// safe for concurrent use.
type Handover interface {
	// Inherit returns a listener at an address: the previous process's, or another descriptor of
	// one that another server of this process uses. It is the caller's then; nil if there is
	// none.
	Inherit(at netip.AddrPort) *net.TCPListener
	// InheritUDP is the same for a UDP socket, of another server of this process alone.
	InheritUDP(at netip.AddrPort) *net.UDPConn
	// Keep is called with every socket that is in use, inherited ones included.
	Keep(proto model.Proto, at netip.AddrPort, socket syscall.Conn)
	// Forget is called with one that its server no longer needs. Where no other one does, neither
	// does the next process.
	Forget(proto model.Proto, at netip.AddrPort, socket syscall.Conn)
	// Release closes the listeners that no Inherit has asked for. It follows the first sync.
	Release()
}

const defaultUDPIdle = time.Minute

func (o Options) withDefaults() Options {
	if o.Origin == nil {
		o.Origin = func(netip.Addr) model.Origin { return model.FromOutside }
	}
	if o.UDPIdle == 0 {
		o.UDPIdle = defaultUDPIdle
	}
	o.TCP = o.TCP.withDefaults()
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Timeouts end idle TCP connections, without data in either direction. The
// keep-alive of the system ends those with a peer that has vanished; these end
// connections with a live peer that does not use them any more, since each holds two
// descriptors.
type Timeouts struct {
	Idle       time.Duration // of open connections
	HalfClosed time.Duration // of half-closed connections
}

// DefaultTimeouts are kube-proxy's conntrack.tcpEstablishedTimeout and
// conntrack.tcpCloseWaitTimeout: a kernel mode forgets the connection after the same
// time. Its userspace mode had neither timeout and kept such connections forever
// (kubernetes#14641, #17641); a minute for half-closed ones, Linux' default, has
// broken clients (kubernetes#32551).
func DefaultTimeouts() Timeouts { return Timeouts{Idle: 24 * time.Hour, HalfClosed: time.Hour} }

// TimeoutsOf returns the timeouts of a configuration. Where that leaves those of
// conntrack as they are, they are the defaults.
func TimeoutsOf(c *config.Config) (t Timeouts) {
	if d := c.Conntrack.TCPEstablished; d != nil {
		t.Idle = *d
	}
	if d := c.Conntrack.TCPCloseWait; d != nil {
		t.HalfClosed = *d
	}
	return t.withDefaults()
}

func (t Timeouts) withDefaults() Timeouts {
	d := DefaultTimeouts()
	if t.Idle > 0 {
		d.Idle = t.Idle
	}
	if t.HalfClosed > 0 {
		d.HalfClosed = t.HalfClosed
	}
	return d
}

// limited are the timeouts for connections of a Service port that has all the
// slots it may have, while its clients wait: Envoy's default for idle TCP
// connections (tcp_proxy.idle_timeout), and Linux' for half-closed ones
// (nf_conntrack_tcp_timeout_close_wait).
func (t Timeouts) limited() Timeouts {
	return Timeouts{Idle: min(t.Idle, time.Hour), HalfClosed: min(t.HalfClosed, time.Minute)}
}

// ballast is allocated but never written, so it is not resident. The garbage collector
// starts when garbage exceeds a share of the live heap, which is tiny without ballast:
// collections after every few hundred connections took a third of the CPU time. A server
// without relays has none: it would only let the garbage of the rest of the process grow.
const ballast = 32 << 20

// Server owns relays and all their connections. It is safe for concurrent use.
type Server struct {
	*shared
	engine  engine // nil for none
	sweeper sync.WaitGroup
	relays  map[*Relay]struct{} // guarded by shared.mu, and so is:
	ballast []byte              // nil without relays
}

// NewServer returns a server without relays. Close it after use.
func NewServer(o Options) *Server {
	all := newShared(o)
	e, err := newEngine(all)
	if err != nil {
		all.options.Log.Warn("epoll unavailable; each connection takes goroutines of its own", "err", err)
	}
	return serve(all, e)
}

// serve returns a server with an engine, or with nil for goroutines alone.
func serve(all *shared, e engine) *Server {
	s := &Server{shared: all, engine: e, relays: map[*Relay]struct{}{}}
	s.sweeper.Go(func() { s.sweep(s.connections) })
	return s
}

// ErrClosed is the result of using a Server after Close.
var ErrClosed = errors.New("the relay server is closed")

// Listen opens a relay. With port 0 the system chooses one, and fails where the namespace has as
// many as are free (Options.Ports).
func (s *Server) Listen(proto model.Proto, at netip.AddrPort, p Policy) (*Relay, error) {
	r := &Relay{shared: s.shared, proto: proto}
	r.quota.port, r.place.port = p.Port, p.Port
	r.balancer.port, r.balancer.affinity = p.Port, newAffinity(s.clients, p.Port)
	r.policy.Store(&p)
	r.remove = func() bool { return s.remove(r) }
	ports := s.portsOf(proto, at.Addr())
	if err := ports.place(&r.place, at.Port() == 0); err != nil {
		return nil, fmt.Errorf("listen on %s %s: %w", proto, at, err)
	}
	serve, err := s.listen(r, at)
	if err != nil {
		ports.free(&r.place)
		return nil, fmt.Errorf("listen on %s %s: %w", proto, at, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return nil, errors.Join(ErrClosed, r.closeSocket())
	}
	s.relays[r] = struct{}{}
	if s.ballast == nil {
		s.ballast = make([]byte, ballast)
	}
	r.own = s.listeners.add(model.Destination{Proto: proto, At: r.at})
	s.work.Go(serve)
	return r, nil
}

func (s *Server) listen(r *Relay, at netip.AddrPort) (serve func(), err error) {
	switch r.proto {
	case model.TCP:
		return r.listenTCP(at, s.engine)
	case model.UDP:
		return r.listenUDP(at)
	}
	return nil, errors.New("relays support TCP and UDP only")
}

func (s *Server) remove(r *Relay) bool {
	r.balancer.affinity.end()
	s.mu.Lock()
	defer s.mu.Unlock()
	_, open := s.relays[r]
	delete(s.relays, r)
	if open {
		s.portsOf(r.proto, r.at.Addr()).free(&r.place)
	}
	if len(s.relays) == 0 {
		s.ballast = nil
	}
	return open
}

// connections returns all TCP connections. A connection that the engine hands over
// meanwhile may be in it twice.
func (s *Server) connections() (all []connection) {
	if s.engine != nil {
		all = s.engine.open() // first, so that none is missed
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		all = append(all, c)
	}
	return all
}

func (s *Server) resetAll() {
	for _, c := range s.connections() {
		c.reset()
	}
}

// Limited returns a problem for each Service port of which connections have to wait or sessions
// make room, or had to within the last minute, since it has its share of the
// descriptors or buffers; and for each whose clients were forgotten lately for lack of room.
func (s *Server) Limited() []model.Problem {
	var problems []model.Problem
	recent := s.slots.recent(time.Now())
	maps.Copy(recent, s.udpSlots.recent(time.Now()))
	for by := range recent {
		effect := "new connections wait until others end"
		if by.port.Proto == model.UDP {
			effect = "a new client ends the session that is idle longest"
		}
		problems = append(problems, model.Problem{
			Object: "Service " + by.port.Service.String(), Why: model.WhyConnectionLimit,
			Detail: fmt.Sprintf("port %s %s: %s", cmp.Or(by.port.Name, "without name"), by.port.Proto, effect),
		})
	}
	for _, port := range s.clients.crowded(time.Now()) {
		problems = append(problems, model.Problem{
			Object: "Service " + port.Service.String(), Why: model.WhyFull,
			Detail: fmt.Sprintf("session affinity of port %s %s: too many clients; affinity of the clients idle longest is dropped", cmp.Or(port.Name, "without name"), port.Proto),
		})
	}
	slices.SortFunc(problems, func(a, b model.Problem) int { return cmp.Compare(a.String(), b.String()) })
	return slices.Compact(problems) // a port has a relay for each of its addresses
}

// Taken calls each with the TCP connections and UDP sessions that each open relay has taken.
// It may be called by any goroutine.
func (s *Server) Taken(each func(model.PortID, uint64)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.relays {
		each(r.quota.port, r.quota.taken.Load())
	}
}

// drainPoll is how often Drain looks whether connections have ended.
const drainPoll = 20 * time.Millisecond

// Drain waits until no relay is open and all TCP connections have ended. After the
// grace period, or when ctx ends, it resets the rest.
func (s *Server) Drain(ctx context.Context, grace time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	for s.busy() {
		if ctx.Err() != nil {
			s.resetAll()
			return
		}
		sleep.For(ctx, drainPoll)
	}
}

func (s *Server) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.relays) > 0 || s.admitted.Load() > 0
}

// lastAnswers is how long clients that come last may take.
const lastAnswers = 500 * time.Millisecond

// serveOn waits until the connections that there are have ended, with a limit. Clients that
// come meanwhile are served: the next process, to which they would have to wait, does not
// start before this one has ended.
func (s *Server) serveOn(limit time.Duration) {
	deadline := time.Now().Add(limit)
	for held := s.connections(); len(held) > 0 && time.Now().Before(deadline); sleep.For(s.ctx, drainPoll) {
		open := map[connection]bool{}
		for _, c := range s.connections() {
			open[c] = true
		}
		held = slices.DeleteFunc(held, func(c connection) bool { return !open[c] })
	}
}

// Close stops listening, waits for connections to end by themselves for a grace period,
// resets the rest, and returns when nothing of the server is left. It stops listening at
// once, or late in the grace period where the next process takes the listeners over (Options.Handover).
func (s *Server) Close(grace time.Duration) error {
	s.mu.Lock()
	s.closing = true
	relays := slices.Collect(maps.Keys(s.relays))
	clear(s.relays)
	s.mu.Unlock()
	if s.options.Handover != nil && grace > lastAnswers {
		s.serveOn(grace - lastAnswers)
		grace = lastAnswers
	}
	var errs []error
	for _, r := range relays {
		errs = append(errs, r.closeSocket())
	}
	done := make(chan struct{})
	go func() { s.work.Wait(); close(done) }()
	timeout := time.NewTimer(grace)
	defer timeout.Stop()
	select {
	case <-done:
	case <-timeout.C:
	}
	s.stop()
	s.resetAll()
	<-done
	s.sweeper.Wait()
	if s.engine != nil {
		s.engine.Close()
	}
	return errors.Join(errs...)
}

// The pace of sweeps. A sweep asks the kernel about each connection, which costs
// about 1 µs each.
const (
	sweepEvery        = time.Minute
	sweepEveryLimited = 5 * time.Second // while a Service port is limited
)

// sweep resets the connections whose timeout has passed, until the server ends.
func (s *shared) sweep(all func() []connection) {
	shortest := min(s.options.TCP.Idle, s.options.TCP.HalfClosed) / 4
	last := time.Now()
	for s.ctx.Err() == nil {
		sleep.For(s.ctx, min(sweepEveryLimited, shortest))
		now := time.Now()
		limited := s.slots.recent(now)
		if len(limited) > 0 || now.Sub(last) >= min(sweepEvery, shortest) {
			last = now
			s.expire(all(), limited, now)
		}
	}
}

// expire resets those connections whose timeout has passed.
func (s *shared) expire(all []connection, limited map[*share]bool, now time.Time) {
	normal, short := s.options.TCP, s.options.TCP.limited()
	for _, c := range all {
		timeouts := normal
		if limited[c.share()] {
			timeouts = short
		}
		switch idle, halfClosed := c.activity(now); {
		case halfClosed && idle >= timeouts.HalfClosed:
			s.stats.halfClosedTimeouts.Add(1)
			c.reset()
		case idle >= timeouts.Idle:
			s.stats.idleTimeouts.Add(1)
			c.reset()
		}
	}
}

// After keepIdle of silence the system probes the other end, keepCount times, and
// then ends the connection: a peer that vanished holds two descriptors for 15 minutes
// instead of Linux' default of 2 hours and 11 minutes. 10,000 idle connections cost
// 33 packets a second. keepIdle is well below the day for which conntrack keeps idle
// connections (kube-proxy's conntrack.tcpEstablishedTimeout), so that conntrack keeps
// the entries of those with a live peer.
const (
	keepIdle     = 10 * time.Minute
	keepInterval = time.Minute
	keepCount    = 5
)

// keepAlive is the same for sockets of package net.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: keepIdle, Interval: keepInterval, Count: keepCount}
}

// reset closes a connection with a reset, so that the other end sees it fail.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// unmapped converts an IPv4-mapped IPv6 address to IPv4.
func unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// The numbers of Windows' errors, which package syscall maps only on Windows.
const (
	wsaMFile        = syscall.Errno(10024)
	wsaAddrNotAvail = syscall.Errno(10049)
	wsaConnReset    = syscall.Errno(10054)
	wsaNoBufs       = syscall.Errno(10055)
	wsaConnRefused  = syscall.Errno(10061)
)

// isExhausted reports whether an error means that descriptors or memory of this host are
// exhausted.
func isExhausted(err error) bool {
	for _, e := range [...]error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, wsaMFile, wsaNoBufs} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Absent reports whether an error means that the address to listen on is not (yet) an
// address of this host.
func Absent(err error) bool { return isNotAvailable(err) }

// lacksPort reports whether a connection failed since no source port was free. For TCP each
// endpoint has all of them. For UDP, where all sockets share them, Linux reports EAGAIN.
func lacksPort(err error) bool { return isNotAvailable(err) || errors.Is(err, syscall.EAGAIN) }

func isNotAvailable(err error) bool {
	return errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, wsaAddrNotAvail)
}

// isRefused reports whether the endpoint's host answered a datagram with "port
// unreachable", which Windows calls a reset.
func isRefused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, wsaConnReset) || errors.Is(err, wsaConnRefused)
}

const (
	// chunkSize is as much of a stream as is read at once: more is spliced.
	chunkSize = 16 << 10
	// maxDatagram has room for the largest one of UDP.
	maxDatagram = 64 << 10
	// smallBuffer is for a stream that is idle.
	smallBuffer = 2 << 10
	// maxBufferedSessions limits the UDP sessions of a Server where each has a buffer for the
	// largest datagram: 256 MiB at most, and half of that for one port, whose new clients then
	// take the places of those that are idle longest.
	maxBufferedSessions = 256 << 20 / maxDatagram
	// maxPause is how long a pipe or a large buffer is kept for a stream that pauses.
	maxPause = time.Second
)

// reader reads from a connection. It is used by one goroutine.
type reader interface {
	// next waits for data, which is valid until done. io.EOF is the end of a
	// stream; a datagram may be empty, too.
	next() ([]byte, error)
	done()
}

// newReader makes a reader that may use buffers of the pool, which are *[]byte.
type newReader func(c net.Conn, pool *sync.Pool) (reader, error)

// bufferedReader works on any system: it reads a stream with a small buffer of its
// own, and with a large one of the pool while data fills that.
type bufferedReader struct {
	conn  net.Conn
	pool  *sync.Pool // of *[]byte
	small []byte
	large *[]byte
}

func newBufferedStream(c net.Conn, pool *sync.Pool) (reader, error) {
	return &bufferedReader{conn: c, pool: pool, small: make([]byte, smallBuffer)}, nil
}

// newBufferedDatagrams has room for any datagram: what does not fit would be lost.
func newBufferedDatagrams(c net.Conn, _ *sync.Pool) (reader, error) {
	return &bufferedReader{conn: c, small: make([]byte, maxDatagram)}, nil
}

func (r *bufferedReader) next() ([]byte, error) {
	if r.large != nil {
		if data, err := r.readLarge(); !errors.Is(err, os.ErrDeadlineExceeded) {
			return data, err
		}
	}
	n, err := r.conn.Read(r.small)
	if n == smallBuffer {
		r.large = r.pool.Get().(*[]byte)
	}
	return r.small[:n], err
}

// readLarge returns the large buffer to the pool when the stream pauses.
func (r *bufferedReader) readLarge() ([]byte, error) {
	if err := r.conn.SetReadDeadline(time.Now().Add(maxPause)); err != nil {
		return nil, err
	}
	n, err := r.conn.Read(*r.large)
	if err == nil {
		return (*r.large)[:n], nil
	}
	r.pool.Put(r.large)
	r.large = nil
	if clearErr := r.conn.SetReadDeadline(time.Time{}); clearErr != nil {
		return nil, clearErr
	}
	return nil, err
}

func (r *bufferedReader) done() {}
