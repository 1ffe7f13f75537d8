package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// Options are what all relays of a Server share.
type Options struct {
	// Origin tells where a client is from. It is called for every connection,
	// from many goroutines. Nil is FromOutside for all.
	Origin func(netip.Addr) model.Origin

	// UDPIdle is how long a UDP session without a datagram lasts; 0 is a
	// minute.
	UDPIdle time.Duration

	// Mark is what packets to endpoints carry, on systems whose packets have
	// marks, so that rules can tell them from those of clients; 0 is none.
	Mark uint32

	Log *slog.Logger // nil for none
}

const defaultUDPIdle = time.Minute

// ballast is memory that is reserved and never touched, so that it takes none.
// The garbage collector counts it as living: it starts when garbage has grown to
// some share of what lives, which without ballast is next to nothing, and each
// connection leaves some. Collecting after every few hundred connections took a
// third of the processor time there is.
const ballast = 32 << 20

// Server owns relays and all that they carry. It is safe for concurrent use.
type Server struct {
	options Options
	ctx     context.Context // ends when everything must end
	cut     context.CancelFunc
	work    sync.WaitGroup // every goroutine and TCP connection, but the engine
	engine  engine         // nil for none
	present atomic.Int64   // TCP connections that were admitted
	scarce  scarcity
	places  places
	slots   slots
	buffers sync.Pool // of *[]byte with room for a chunk
	packets sync.Pool // the same for a datagram

	newStream, newDatagrams newReader

	ballast []byte // see there

	mu     sync.Mutex
	relays map[*Relay]struct{}
	conns  map[*net.TCPConn]struct{} // TCP connections of clients, but the engine's
	closed bool

	stats counters
}

// NewServer returns a server without relays. Close it after use.
func NewServer(o Options) *Server {
	if o.Origin == nil {
		o.Origin = func(netip.Addr) model.Origin { return model.FromOutside }
	}
	if o.UDPIdle == 0 {
		o.UDPIdle = defaultUDPIdle
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		options: o, slots: slots{most: room(maxDescriptors())},
		relays: map[*Relay]struct{}{}, conns: map[*net.TCPConn]struct{}{},
	}
	s.newStream, s.newDatagrams = readers()
	s.ballast = make([]byte, ballast)
	s.buffers.New = func() any { b := make([]byte, chunk); return &b }
	s.packets.New = func() any { b := make([]byte, datagram); return &b }
	s.ctx, s.cut = context.WithCancel(context.Background())
	var err error
	if s.engine, err = newEngine(s); err != nil {
		o.Log.Warn("connections are served by goroutines only", "error", err)
	}
	return s
}

// Relay is one listening address. It is safe for concurrent use.
type Relay struct {
	server   *Server
	policy   atomic.Pointer[Policy]
	balancer balancer
	share    share
	proto    model.Proto
	at       netip.AddrPort
	close    func() error
	moved    func() // after a change of the policy; nil for TCP
}

// ErrClosed is the result of using a Server after Close.
var ErrClosed = errors.New("the relay server is closed")

// Listen opens a relay. With port 0 the system chooses one.
func (s *Server) Listen(proto model.Proto, at netip.AddrPort, p Policy) (*Relay, error) {
	r := &Relay{server: s, proto: proto}
	r.policy.Store(&p)
	serve, err := r.open(proto, at)
	if err != nil {
		return nil, fmt.Errorf("listen on %s %s: %w", proto, at, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.Join(ErrClosed, r.close())
	}
	s.relays[r] = struct{}{}
	s.places.add(r.place(), r)
	s.work.Go(serve)
	return r, nil
}

func (r *Relay) open(proto model.Proto, at netip.AddrPort) (serve func(), err error) {
	switch proto {
	case model.TCP:
		return r.listenTCP(at)
	case model.UDP:
		return r.listenUDP(at)
	}
	return nil, errors.New("relays carry TCP and UDP only")
}

func (r *Relay) place() place { return place{r.proto, r.at} }

// Addr returns where the relay listens.
func (r *Relay) Addr() netip.AddrPort { return r.at }

// Update changes the policy. TCP connections stay with their endpoints; UDP
// sessions whose endpoint may no longer serve them end, and their clients'
// next datagrams go elsewhere.
func (r *Relay) Update(p Policy) {
	r.policy.Store(&p)
	if r.moved != nil {
		r.moved()
	}
}

// Close stops listening. TCP connections go on until their own end.
func (r *Relay) Close() error {
	r.server.mu.Lock()
	_, open := r.server.relays[r]
	delete(r.server.relays, r)
	r.server.mu.Unlock()
	if !open {
		return nil
	}
	err := r.close()
	r.server.places.remove(r.place(), r)
	return err
}

// Close stops listening at once, gives connections the grace to end by
// themselves, cuts the rest, and returns when nothing of the server is left.
func (s *Server) Close(grace time.Duration) error {
	s.mu.Lock()
	s.closed = true
	relays := s.relays
	s.relays = nil
	s.mu.Unlock()
	var errs []error
	for r := range relays {
		errs = append(errs, r.close())
	}
	done := make(chan struct{})
	go func() { s.work.Wait(); close(done) }()
	patience := time.NewTimer(grace)
	defer patience.Stop()
	select {
	case <-done:
	case <-patience.C:
	}
	s.cut()
	s.resetAll()
	<-done
	if s.engine != nil {
		s.engine.Close()
	}
	return errors.Join(errs...)
}

// resetAll ends all TCP connections, and tells both ends.
func (s *Server) resetAll() {
	if s.engine != nil {
		s.engine.resetAll() // first: it may give connections to goroutines
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		reset(c) // its goroutines end by that
	}
}

// hold keeps a client's connection until release, so that it can be cut.
func (s *Server) hold(c *net.TCPConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[c] = struct{}{}
	if s.ctx.Err() != nil {
		reset(c)
	}
}

func (s *Server) release(c *net.TCPConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}
