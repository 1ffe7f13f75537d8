package relay

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// patience is how long each attempt to reach an endpoint may take. What is
// refused goes on to the next at once.
var patience = [...]time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}

// pauses is how often an attempt is repeated that this host itself lacks the
// means for.
const pauses = 20

// dial reaches one of the endpoints, or returns the last error. The first tries
// may have been made already.
func (s *Server) dial(c *choice, tries int) (*net.TCPConn, error) {
	var err error
	for try, lacks := tries, 0; try < len(patience); {
		var up *net.TCPConn
		up, err = s.attempt(c.endpoint(), patience[try])
		switch {
		case err == nil:
			c.reached(time.Now())
			return up, nil
		case s.ctx.Err() != nil:
			return nil, err
		case lacking(err) && lacks < pauses: // no endpoint's fault
			lacks++
			s.stats.scarce.Add(1)
			s.scarce.notice(time.Now())
			sleep(s.ctx, breath)
		default:
			try++
			s.missed(c)
		}
	}
	return nil, errors.Join(errors.New("all attempts failed"), err)
}

// missed goes on to the next endpoint, after one that does not answer.
func (s *Server) missed(c *choice) {
	s.stats.retried.Add(1)
	c.failed()
}

// attempt tries one endpoint. Dialer.DialTCP will not do: it binds the socket
// before it connects, so that all endpoints share the ports there are for one.
func (s *Server) attempt(endpoint netip.AddrPort, wait time.Duration) (*net.TCPConn, error) {
	if err := s.foreign(model.TCP, endpoint); err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: wait, KeepAliveConfig: keepAlive(), Control: s.control()}
	c, err := d.DialContext(s.ctx, "tcp", endpoint.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// control is what a net.Dialer calls for each socket, or nil.
func (s *Server) control() func(network, address string, c syscall.RawConn) error {
	if s.options.Mark == 0 {
		return nil
	}
	return func(_, _ string, c syscall.RawConn) (err error) {
		failed := c.Control(func(fd uintptr) { err = setMark(int(fd), s.options.Mark) })
		return errors.Join(err, failed)
	}
}
