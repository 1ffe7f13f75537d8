// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"container/heap"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/sleep"
)

// udpRelay is a Relay for UDP.
type udpRelay struct {
	*Relay
	socket *net.UDPConn

	mu       sync.Mutex
	sessions map[netip.AddrPort]*session // by client; nil when closed
	idle     idleSessions                // the same ones
	lasting  *lasting                    // under the policy of the latest look; nil before

	ending []*session // ended to make room, maybe not yet over; receive's alone
}

// listenUDP opens the socket; serve reads it until it is closed.
func (r *Relay) listenUDP(at netip.AddrPort) (serve func(), err error) {
	c, err := r.openUDP(at)
	if err != nil {
		return nil, err
	}
	u := &udpRelay{Relay: r, socket: c, sessions: map[netip.AddrPort]*session{}}
	r.at, r.closeSocket = unmapped(c.LocalAddr().(*net.UDPAddr).AddrPort()), u.close
	r.quota.giveWay = u.endLongestIdle
	r.keep(c)
	return u.receive, nil
}

// openUDP returns a socket, a new one or one that is handed over. Of a socket that two servers
// use each gets some of the datagrams: those of a client may have a session with both, and
// keep only the one that stays.
func (r *Relay) openUDP(at netip.AddrPort) (*net.UDPConn, error) {
	if pass := r.options.Handover; pass != nil {
		if c := pass.InheritUDP(at); c != nil {
			return c, nil
		}
	}
	return net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
}

// close ends all sessions, too: without the socket no answer can be sent.
func (u *udpRelay) close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, s := range u.sessions {
		u.remove(s)
	}
	u.sessions = nil
	return u.socket.Close()
}

// maxFailures in a row are logged, and followed by a pause.
const maxFailures = 1000

// receive takes datagrams of clients until the socket is closed. A relay without any holds no
// buffer, where the system tells that there is one.
func (u *udpRelay) receive() {
	await := datagrams(u.socket)
	failures := 0 // in a row
	for u.ctx.Err() == nil {
		err := await()
		if err == nil {
			err = u.receiveOne()
		}
		switch {
		case err == nil:
			failures = 0
		case errors.Is(err, net.ErrClosed):
			return
		default: // an answer that could not be delivered, which Windows reports here
			u.stats.dropped.Add(1)
			if failures++; failures%maxFailures == 0 { // or a socket that is broken
				u.options.Log.Warn("reading datagrams failed", "port", u.quota.port, "listener", u.at, "failures", failures, "err", err)
				sleep.For(u.ctx, time.Second)
			}
		}
	}
}

// receiveOne passes one datagram on.
func (u *udpRelay) receiveOne() error {
	buf := u.packets.Get().(*[]byte)
	defer u.packets.Put(buf)
	n, client, err := u.socket.ReadFromUDPAddrPort(*buf)
	if err == nil && !u.deliver(client, (*buf)[:n]) {
		u.stats.dropped.Add(1)
	}
	return err
}

// deliver sends a datagram to the endpoint of its client's session. After a refusal
// the client gets another session.
func (u *udpRelay) deliver(client netip.AddrPort, data []byte) bool {
	for range dialTimeouts {
		s, err := u.session(client)
		u.settle()
		if errors.Is(err, errLimited) && u.udpSlots.makeRoomFor(&u.quota) {
			continue
		}
		if err != nil {
			return false
		}
		if s == nil {
			return true // the policy refuses the client: not a failure
		}
		if s.send(data) {
			return true
		}
		u.end(s)
	}
	return false
}

// session returns the client's session, a new one if there is none that lasts, or nil if
// the policy refuses the client.
func (u *udpRelay) session(client netip.AddrPort) (*session, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if s := u.sessions[client]; s != nil {
		if u.lasts(s) {
			return s, nil
		}
		u.remove(s)
	}
	if u.sessions == nil {
		return nil, net.ErrClosed
	}
	under := u.policy.Load() // or a later one decides, and this one is looked at again
	from, to, ok := u.answer(netip.AddrPortFrom(client.Addr().Unmap(), client.Port()))
	if !ok {
		return nil, nil
	}
	s, err := u.newSession(client, from, to)
	if err != nil {
		return nil, err
	}
	s.under.Store(under)
	u.sessions[client] = s
	heap.Push(&u.idle, s)
	u.stats.sessions.Add(1)
	return s, nil
}

var errLimited = errors.New("the share of file descriptors, buffers or ports is in use")

// newSession opens a session with an endpoint. mu is held.
func (u *udpRelay) newSession(client netip.AddrPort, from model.Origin, to choice) (*session, error) {
	if !u.room() {
		return nil, errLimited
	}
	for range dialTimeouts {
		if u.checkLoop(model.UDP, to.endpoint()) == nil {
			break
		}
		u.retry(&to)
	}
	up, in, err := u.dialUDP(to.endpoint())
	if err != nil {
		u.udpSlots.free(&u.quota)
		return nil, err
	}
	s := &session{udpRelay: u, client: client, from: from, to: to, up: up, in: in, over: make(chan struct{})}
	s.touch(time.Now())
	s.since = s.last.Load()
	u.reached(&to)
	u.quota.taken.Add(1)
	u.work.Go(s.answers)
	return s, nil
}

// room takes a slot for a new session. Where the share may not grow, the session that is idle
// longest gives way: clients that use a new port for each query, as resolvers do, would be
// refused until sessions expire. A share beyond its limit, since others have grown, returns a
// second slot. room fails where another share makes room (makeRoomFor), which mu would be
// held for, and where a share has no session to give. mu is held.
func (u *udpRelay) room() bool {
	if u.udpSlots.try(&u.quota) {
		return true
	}
	u.stats.limited.Add(1)
	if u.udpSlots.othersGive(&u.quota) {
		return false
	}
	s := u.displace()
	if s == nil {
		return false
	}
	s.passed = true
	if u.udpSlots.exceeds(&u.quota) {
		u.displace()
	}
	return true
}

// displace ends the session that is idle longest, and returns it; nil if there is none. mu
// is held.
func (u *udpRelay) displace() *session {
	s := u.removeLongestIdle()
	if s != nil {
		u.ending = append(u.ending, s)
	}
	return s
}

// removeLongestIdle is displace for any goroutine. mu is held.
func (u *udpRelay) removeLongestIdle() *session {
	s := u.idle.longest()
	if s != nil {
		s.to.connected(s.used())
		u.remove(s)
	}
	return s
}

// endLongestIdle ends the session that is idle longest, and returns when its slot is free; false
// if there is none.
func (u *udpRelay) endLongestIdle() bool {
	u.mu.Lock()
	s := u.removeLongestIdle()
	u.mu.Unlock()
	if s == nil {
		return false
	}
	<-s.over
	return true
}

// settle waits until the sessions that made room are over: no more than these two have a
// descriptor and a buffer beyond the limit, however fast clients come.
func (u *udpRelay) settle() {
	for _, s := range u.ending {
		<-s.over
	}
	clear(u.ending)
	u.ending = u.ending[:0]
}

// end removes a session and ends its goroutine.
func (u *udpRelay) end(s *session) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.remove(s)
}

// remove is end. mu is held.
func (u *udpRelay) remove(s *session) {
	if u.sessions[s.client] == s {
		delete(u.sessions, s.client)
		heap.Remove(&u.idle, s.index)
		u.stats.sessions.Add(-1)
	}
	_ = s.up.Close()
}

// lasts reports whether the policy lets a session go on. mu is held.
func (u *udpRelay) lasts(s *session) bool {
	p := u.policy.Load()
	if s.under.Load() == p {
		return true
	}
	if u.lasting == nil || u.lasting.policy != p {
		u.lasting = lastingUnder(p)
	}
	if !u.lasting.has(s.from, s.client.Addr().Unmap(), s.to.endpoint()) {
		return false
	}
	s.under.Store(p)
	return true
}

// session carries the datagrams between a client and an endpoint.
type session struct {
	*udpRelay
	client netip.AddrPort
	from   model.Origin
	to     choice
	up     *net.UDPConn
	in     reader
	last   atomic.Int64           // the moment of the last datagram of either side
	over   chan struct{}          // closed at the end of its goroutine
	under  atomic.Pointer[Policy] // the latest one that is known to let it go on

	index  int   // in idle, as since
	since  int64 // a value of last
	passed bool  // another session has its slot; set with mu held
}

func (s *session) touch(now time.Time) { s.last.Store(s.moment(now)) }

// used returns when the last datagram of either side came.
func (s *session) used() time.Time { return s.timeOf(s.last.Load()) }

// send passes a datagram to the endpoint. It returns false when the session is
// over: the endpoint has refused an earlier datagram, or it was idle.
func (s *session) send(data []byte) bool {
	_, err := s.up.Write(data)
	if isRefused(err) {
		s.to.forget()
		return false
	}
	s.touch(time.Now())
	return !errors.Is(err, net.ErrClosed)
}

// answers passes on what the endpoint sends, until the session is idle, its
// endpoint refuses or the session is ended.
func (s *session) answers() {
	defer close(s.over)
	defer func() {
		if s.end(s); !s.passed {
			s.udpSlots.free(&s.quota)
		}
	}()
	for s.extend() {
		data, err := s.in.next()
		if err == nil || err == io.EOF { // for UDP an empty datagram
			if !s.goesOn() {
				s.in.done()
				return
			}
			s.touch(time.Now())
			if _, err := s.socket.WriteToUDPAddrPort(data, s.client); err != nil {
				s.stats.dropped.Add(1)
			}
		}
		s.in.done()
		switch {
		case err == nil, err == io.EOF, errors.Is(err, os.ErrDeadlineExceeded):
		case isRefused(err):
			s.to.forget()
			return
		default:
			return
		}
	}
}

// goesOn is lasts for the session's own goroutine.
func (s *session) goesOn() bool {
	if s.under.Load() == s.policy.Load() {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lasts(s)
}

// extend sets the deadline of the next read. It returns false when the session has
// been idle for its time; the client's affinity counts from its last datagram.
func (s *session) extend() bool {
	last := s.used()
	end := last.Add(s.options.UDPIdle)
	if time.Now().Before(end) {
		return s.up.SetReadDeadline(end) == nil
	}
	s.to.connected(last)
	return false
}

// idleSessions are the sessions of a relay, as a heap by when each was idle at the latest look: a
// datagram only notes its time, and who asks for the longest brings the order up to
// date. It is guarded by the relay's mu.
type idleSessions struct{ indexed[*session] }

// longest returns the session that is idle longest, or nil. Each step but the last is paid for by
// a datagram since the step before: O(log n) for each, and at most n at once.
func (h *idleSessions) longest() *session {
	for range h.indexed {
		s := h.indexed[0]
		last := s.last.Load()
		if last == s.since {
			break
		}
		s.since = last
		heap.Fix(h, 0)
	}
	if len(h.indexed) == 0 {
		return nil
	}
	return h.indexed[0]
}

// before implements item: the session that was idle longest comes first.
func (s *session) before(o *session) bool { return s.since < o.since }

func (s *session) moved(place int) { s.index = place }
