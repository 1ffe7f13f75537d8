// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/sleep"
)

// ballast is memory that is allocated and never touched, so that it is not resident.
// The garbage collector starts when garbage exceeds a share of the live heap, which
// is tiny without ballast: collections after every few hundred connections took a
// third of the CPU time. A server without relays has none: it would only let the garbage
// of the rest of the process grow.
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
		all.options.Log.Warn("no epoll; connections are served by goroutines", "err", err)
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

// Listen opens a relay. With port 0 the system chooses one.
func (s *Server) Listen(proto model.Proto, at netip.AddrPort, p Policy) (*Relay, error) {
	r := &Relay{shared: s.shared, proto: proto}
	r.quota.port = p.Port
	r.balancer.port, r.balancer.affinity = p.Port, newAffinity(s.clients, p.Port)
	r.policy.Store(&p)
	r.remove = func() bool { return s.remove(r) }
	serve, err := s.listen(r, at)
	if err != nil {
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
	r.own = s.listeners.add(address{proto, r.at})
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
			Detail: fmt.Sprintf("session affinity of port %s %s: too many clients; those that are idle longest are forgotten", cmp.Or(port.Name, "without name"), port.Proto),
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
// once, or late in the grace period where the next process goes on (Options.Handover).
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
