package relay

import (
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// After keepIdle of silence the system asks whether the other end is still there,
// keepCount times, and then ends the connection: a peer that went without a word
// holds two descriptors for 15 minutes, and not for the 2 hours and 11 minutes that
// are Linux' default. 10,000 idle connections cost 33 packets a second. It is well
// below the day for which conntrack keeps them (kube-proxy's
// conntrack.tcpEstablishedTimeout), so those that work are never forgotten on their
// way.
const (
	keepIdle     = 10 * time.Minute
	keepInterval = time.Minute
	keepCount    = 5
)

// keepAlive is that for sockets of net.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: keepIdle, Interval: keepInterval, Count: keepCount}
}

func (r *Relay) listenTCP(at netip.AddrPort) (serve func(), err error) {
	s := r.server
	config := net.ListenConfig{KeepAliveConfig: keepAlive()}
	config.SetMultipathTCP(false) // splice(2) is for plain TCP
	socket, err := config.Listen(s.ctx, "tcp", at.String())
	if err != nil {
		return nil, err
	}
	r.at = plain(socket.Addr().(*net.TCPAddr).AddrPort())
	l, err := s.listener(socket.(*net.TCPListener))
	if err != nil {
		return nil, err
	}
	r.close = l.Close
	return func() { r.accept(l) }, nil
}

// listener returns where clients come whom the engine serves, or goroutines
// where there is none.
func (s *Server) listener(l *net.TCPListener) (listener, error) {
	if s.engine == nil {
		return plainListener{l, s}, nil
	}
	return s.engine.listener(l)
}

// accept takes clients until the listener is closed. It waits for nothing that
// a client or an endpoint does.
func (r *Relay) accept(l listener) {
	s := r.server
	for s.ctx.Err() == nil {
		s.scarce.pass(s.ctx)
		c, err := l.accept()
		switch {
		case err == nil:
			s.stats.accepted.Add(1)
			if !s.admit(r) {
				c.reset()
				return
			}
			r.greet(c)
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

// greet gives a client what the policy has for it.
func (r *Relay) greet(c client) {
	s := r.server
	addr := c.from()
	from := s.options.Origin(addr)
	p := r.policy.Load()
	a := p.Answer(from, addr)
	if a.Verdict != model.Balance || len(a.Endpoints) == 0 {
		s.stats.refused.Add(1)
		c.reset()
		s.leave(&r.share)
		return
	}
	to := r.balancer.choose(from, addr, a.Endpoints, p.Sticky, time.Now())
	to.share = &r.share
	c.serve(to)
}

// admit waits until a relay has room for a TCP connection. It is false at the end.
func (s *Server) admit(r *Relay) bool {
	if !s.slots.try(&r.share) {
		s.noRoom(r)
		if !s.slots.take(s.ctx, &r.share) {
			return false
		}
	}
	s.work.Add(1)
	s.present.Add(1)
	return true
}

// noRoom tells that a relay has as many connections as it may.
func (s *Server) noRoom(r *Relay) {
	s.stats.scarce.Add(1)
	if news, held, most := s.slots.waits(&r.share); news {
		s.options.Log.Warn("too many connections to one Service port; new ones must wait until others end",
			"listener", r.at, "protocol", r.proto, "connections", held, "limit", most)
	}
}

// leave is the end of a TCP connection that was admitted.
func (s *Server) leave(by *share) {
	s.slots.free(by)
	s.present.Add(-1)
	s.work.Done()
}

// connect serves one client by goroutines: its own goes on with one of the two
// directions. To start a third costs more than the stack that it keeps. The
// first tries to reach an endpoint may have been made already.
func (s *Server) connect(c *net.TCPConn, to choice, tries int) {
	up, err := s.dial(&to, tries)
	if err != nil {
		s.stats.failed.Add(1)
		s.options.Log.Debug("no endpoint answers", "client", to.client, "error", err)
		reset(c)
		s.release(c)
		s.leave(to.share)
		return
	}
	s.transfer(c, up, to.share, nil, nil)
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
