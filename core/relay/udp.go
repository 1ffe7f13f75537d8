package relay

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// datagrams is a Relay for UDP.
type datagrams struct {
	*Relay
	socket *net.UDPConn

	mu       sync.Mutex
	sessions map[netip.AddrPort]*session // by client; nil when closed
}

func (r *Relay) listenUDP(at netip.AddrPort) (serve func(), err error) {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, err
	}
	d := &datagrams{Relay: r, socket: c, sessions: map[netip.AddrPort]*session{}}
	r.at, r.close, r.moved = plain(c.LocalAddr().(*net.UDPAddr).AddrPort()), d.shut, d.move
	return d.receive, nil
}

// shut ends the relay and all its sessions: without its socket nobody can
// answer.
func (d *datagrams) shut() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.sessions {
		_ = s.up.Close()
	}
	d.sessions = nil
	return d.socket.Close()
}

// manyFailures in a row are worth a word and a pause.
const manyFailures = 1000

// receive takes datagrams of clients until the socket is closed.
func (d *datagrams) receive() {
	buf := make([]byte, datagram)
	failed := 0 // in a row
	for d.server.ctx.Err() == nil {
		n, client, err := d.socket.ReadFromUDPAddrPort(buf)
		switch {
		case err == nil:
			failed = 0
			if !d.deliver(client, buf[:n]) {
				d.server.stats.dropped.Add(1)
			}
		case errors.Is(err, net.ErrClosed):
			return
		default: // an answer that could not be delivered, which Windows reports here
			d.server.stats.dropped.Add(1)
			if failed++; failed%manyFailures == 0 { // or a socket that does not work any more
				d.server.options.Log.Warn("datagrams cannot be read", "listener", d.socket.LocalAddr(), "error", err)
				sleep(d.server.ctx, time.Second)
			}
		}
	}
}

// deliver sends a datagram to the endpoint of its client's session. A session
// whose endpoint has refused is given up for another one.
func (d *datagrams) deliver(client netip.AddrPort, data []byte) bool {
	for range patience {
		s, err := d.session(client)
		if err != nil {
			return false
		}
		if s == nil {
			d.server.stats.refused.Add(1)
			return true // as it was meant
		}
		if s.send(data) {
			return true
		}
		d.end(s)
	}
	return false
}

// session returns the client's session, a new one if there is none, or nil if
// the client must get no answer.
func (d *datagrams) session(client netip.AddrPort) (*session, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.sessions[client]; s != nil {
		return s, nil
	}
	if d.sessions == nil {
		return nil, net.ErrClosed
	}
	addr := client.Addr().Unmap()
	from := d.server.options.Origin(addr)
	p := d.policy.Load()
	a := p.Answer(from, addr)
	if a.Verdict != model.Balance || len(a.Endpoints) == 0 {
		return nil, nil
	}
	s, err := d.begin(client, from, d.balancer.choose(from, addr, a.Endpoints, p.Sticky, time.Now()))
	if err != nil {
		return nil, err
	}
	d.sessions[client] = s
	return s, nil
}

// begin opens a session with an endpoint. mu is held.
func (d *datagrams) begin(client netip.AddrPort, from model.Origin, c choice) (*session, error) {
	if !d.server.slots.try(&d.share) {
		d.server.noRoom(d.Relay)
		return nil, errNoRoom
	}
	for range patience {
		if d.server.foreign(model.UDP, c.endpoint()) == nil {
			break
		}
		d.server.missed(&c)
	}
	up, in, err := d.server.dialUDP(c.endpoint())
	if err != nil {
		d.server.slots.free(&d.share)
		return nil, err
	}
	s := &session{datagrams: d, client: client, from: from, choice: c, up: up, in: in, idle: d.server.options.UDPIdle}
	s.touch(time.Now())
	c.reached(time.Now())
	d.server.stats.sessions.Add(1)
	d.server.work.Go(s.answer)
	return s, nil
}

var errNoRoom = errors.New("too many connections and sessions for the limit on descriptors")

func (s *Server) dialUDP(endpoint netip.AddrPort) (*net.UDPConn, reader, error) {
	if err := s.foreign(model.UDP, endpoint); err != nil {
		return nil, nil, err
	}
	dialer := net.Dialer{Control: s.control()}
	c, err := dialer.DialContext(s.ctx, "udp", endpoint.String())
	if err != nil {
		if lacking(err) {
			s.stats.scarce.Add(1)
		}
		return nil, nil, err
	}
	up := c.(*net.UDPConn)
	in, err := s.newDatagrams(up, &s.packets)
	if err != nil {
		return nil, nil, errors.Join(err, up.Close())
	}
	return up, in, nil
}

// end forgets a session and ends its goroutine.
func (d *datagrams) end(s *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sessions[s.client] == s {
		delete(d.sessions, s.client)
	}
	_ = s.up.Close()
}

// move ends the sessions that the policy no longer allows.
func (d *datagrams) move() {
	p := d.policy.Load()
	d.mu.Lock()
	defer d.mu.Unlock()
	for client, s := range d.sessions {
		if !p.keeps(s.from, client.Addr().Unmap(), s.choice.endpoint()) {
			delete(d.sessions, client)
			_ = s.up.Close()
		}
	}
}
