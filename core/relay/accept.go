package relay

import (
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// keepAlive lets the system notice ends that have gone without a word, at its
// own pace (2 hours on Linux).
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: -1, Interval: -1, Count: -1}

func (r *Relay) listenTCP(at netip.AddrPort) (serve func(), err error) {
	config := net.ListenConfig{KeepAliveConfig: keepAlive}
	config.SetMultipathTCP(false) // splice(2) is for plain TCP
	l, err := config.Listen(r.server.ctx, "tcp", at.String())
	if err != nil {
		return nil, err
	}
	r.at, r.close = plain(l.Addr().(*net.TCPAddr).AddrPort()), l.Close
	return func() { r.accept(l.(*net.TCPListener)) }, nil
}

// accept takes clients until the listener is closed. It waits for nothing that
// a client or an endpoint does.
func (r *Relay) accept(l *net.TCPListener) {
	s := r.server
	for s.ctx.Err() == nil {
		s.scarce.pass(s.ctx)
		c, err := l.AcceptTCP()
		switch {
		case err == nil:
			s.stats.accepted.Add(1)
			if !s.admit() {
				reset(c)
				return
			}
			s.hold(c)
			s.work.Go(func() { r.connect(c) })
		case errors.Is(err, net.ErrClosed):
			return
		default: // out of descriptors, or a client that went while it waited
			s.stats.scarce.Add(1)
			if s.scarce.notice(time.Now()) {
				s.options.Log.Warn("accepting pauses", "listener", r.at, "error", err)
			}
		}
	}
}

// admit waits until there is room for a connection. It is false at the end.
func (s *Server) admit() bool {
	if s.slots.try() {
		return true
	}
	s.stats.scarce.Add(1)
	if s.scarce.notice(time.Now()) {
		s.options.Log.Warn("accepting waits until connections end", "open", s.stats.open.Load())
	}
	return s.slots.take(s.ctx)
}

// connect serves one client. Its goroutine goes on with one of the two
// directions: to start a third costs more than the stack that it keeps.
func (r *Relay) connect(c *net.TCPConn) {
	s := r.server
	client := plain(c.RemoteAddr().(*net.TCPAddr).AddrPort()).Addr()
	from := s.options.Origin(client)
	p := r.policy.Load()
	a := p.Answer(from, client)
	if a.Verdict != model.Balance || len(a.Endpoints) == 0 {
		s.stats.refused.Add(1)
		s.turnAway(c)
		return
	}
	choice := r.balancer.choose(from, client, a.Endpoints, p.Sticky, time.Now())
	up, err := s.dial(&choice)
	if err != nil {
		s.stats.failed.Add(1)
		s.options.Log.Debug("no endpoint answers", "listener", r.at, "client", client, "error", err)
		s.turnAway(c)
		return
	}
	s.transfer(c, up)
}

// turnAway ends the connection of a client that gets no endpoint.
func (s *Server) turnAway(c *net.TCPConn) {
	reset(c)
	s.release(c)
	s.slots.free()
}

// reset ends a connection in a way that tells the other end it failed.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// plain undoes the mapping of IPv4 addresses into IPv6.
func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
