package relay

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// session is what a UDP client says to an endpoint, and what it hears.
type session struct {
	*datagrams
	client netip.AddrPort
	from   model.Origin
	choice choice
	up     *net.UDPConn
	in     reader
	idle   time.Duration
	last   atomic.Int64 // Unix nanoseconds of the last datagram of either side
}

func (s *session) touch(now time.Time) { s.last.Store(now.UnixNano()) }

// send passes a datagram to the endpoint. False says that the session is of no
// use any more: the endpoint has refused an earlier datagram, or time is over.
func (s *session) send(data []byte) bool {
	_, err := s.up.Write(data)
	if refused(err) {
		s.choice.forget()
		return false
	}
	s.touch(time.Now())
	return !errors.Is(err, net.ErrClosed)
}

// answer passes on what the endpoint says, until the session is idle, its
// endpoint refuses or somebody ends it.
func (s *session) answer() {
	defer s.server.stats.sessions.Add(-1)
	defer s.server.slots.free(&s.share)
	defer s.end(s)
	for s.lasts() {
		data, err := s.in.next()
		if err == nil || err == io.EOF { // which here is an empty datagram
			s.touch(time.Now())
			if _, err := s.socket.WriteToUDPAddrPort(data, s.client); err != nil {
				s.server.stats.dropped.Add(1)
			}
		}
		s.in.done()
		switch {
		case err == nil, err == io.EOF, errors.Is(err, os.ErrDeadlineExceeded):
		case refused(err):
			s.choice.forget()
			return
		default:
			return
		}
	}
}

// lasts sets the deadline of the next read. It is false when the session has
// been idle for its time; then the client's affinity counts from its last word.
func (s *session) lasts() bool {
	last := time.Unix(0, s.last.Load())
	end := last.Add(s.idle)
	if time.Now().Before(end) {
		return s.up.SetReadDeadline(end) == nil
	}
	s.choice.reached(last)
	return false
}

// refused reports whether the endpoint's host says that nobody listens. Windows
// has numbers of its own, and for UDP calls it a reset.
func refused(err error) bool {
	const wsaConnReset, wsaConnRefused = syscall.Errno(10054), syscall.Errno(10061)
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, wsaConnReset) || errors.Is(err, wsaConnRefused)
}
