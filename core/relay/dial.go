// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/sleep"
)

// maxBackoffs is how often an attempt is repeated for which this host lacks a
// descriptor or port.
const maxBackoffs = 20

// dial connects to one of the endpoints, or returns the last error. The first
// tries may have been made already.
func (s *shared) dial(to *choice, tries int) (*net.TCPConn, error) {
	var err error
	for try, backoffs := tries, 0; try < len(dialTimeouts); {
		var up *net.TCPConn
		up, err = s.dialTCP(to.endpoint(), dialTimeouts[try])
		switch {
		case err == nil:
			to.connected(time.Now())
			s.attempts.note(to, true)
			return up, nil
		case s.ctx.Err() != nil:
			return nil, err
		case isExhausted(err) && backoffs < maxBackoffs: // not the endpoint's fault
			backoffs++
			s.exhausted()
			sleep.For(s.ctx, backoffTime)
		default:
			try++
			s.noteFailed(to, err)
			s.retry(to)
		}
	}
	return nil, errors.Join(errors.New("no endpoint reached"), err)
}

// noteFailed remembers a try that timed out or was refused. Other errors say
// nothing about the endpoint.
func (s *shared) noteFailed(to *choice, err error) {
	var slow net.Error
	if errors.As(err, &slow) && slow.Timeout() {
		s.attempts.note(to, false)
	} else if errors.Is(err, syscall.ECONNREFUSED) {
		s.attempts.note(to, true)
	}
}

// retry tries the next endpoint, after one that failed.
func (s *shared) retry(to *choice) {
	s.stats.retried.Add(1)
	to.failed(time.Now())
}

// dialTCP tries one endpoint. It uses DialContext because Dialer.DialTCP binds the
// socket before it connects, so that all endpoints would share one range of ports.
func (s *shared) dialTCP(endpoint netip.AddrPort, timeout time.Duration) (*net.TCPConn, error) {
	if err := s.checkLoop(model.TCP, endpoint); err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: timeout, KeepAliveConfig: keepAlive(), Control: s.control()}
	c, err := d.DialContext(s.ctx, "tcp", endpoint.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// dialUDP opens a socket to an endpoint.
func (s *shared) dialUDP(endpoint netip.AddrPort) (*net.UDPConn, reader, error) {
	if err := s.checkLoop(model.UDP, endpoint); err != nil {
		return nil, nil, err
	}
	dialer := net.Dialer{Control: s.control()}
	c, err := dialer.DialContext(s.ctx, "udp", endpoint.String())
	if err != nil {
		if isExhausted(err) {
			s.stats.exhausted.Add(1)
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

// control sets the fwmark of a net.Dialer's sockets; nil for none.
func (s *shared) control() func(network, address string, c syscall.RawConn) error {
	if s.options.Mark == 0 {
		return nil
	}
	return func(_, _ string, c syscall.RawConn) (err error) {
		controlErr := c.Control(func(fd uintptr) { err = setMark(int(fd), s.options.Mark) })
		return errors.Join(err, controlErr)
	}
}
