// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/sleep"
)

// listenTCP opens the socket; serve accepts its clients until it is closed.
func (r *Relay) listenTCP(at netip.AddrPort, e engine) (serve func(), err error) {
	socket, err := r.openTCP(at)
	if err != nil {
		return nil, err
	}
	r.at = unmapped(socket.Addr().(*net.TCPAddr).AddrPort())
	var l listener = goListener{socket, r.shared}
	if e != nil {
		if l, err = e.listener(socket); err != nil {
			return nil, err
		}
	}
	r.closeSocket, r.listening = l.Close, func() bool { return isListening(l) }
	r.keep(l)
	return func() { r.accept(l) }, nil
}

// openTCP returns a listening socket, a new one or one that is handed over.
func (r *Relay) openTCP(at netip.AddrPort) (*net.TCPListener, error) {
	if pass := r.options.Handover; pass != nil {
		if l := pass.Inherit(at); l != nil {
			return l, nil
		}
	}
	config := net.ListenConfig{KeepAliveConfig: keepAlive()}
	config.SetMultipathTCP(false) // splice(2) is for plain TCP
	socket, err := config.Listen(r.ctx, "tcp", at.String())
	if err != nil {
		return nil, err
	}
	return socket.(*net.TCPListener), nil
}

// accept accepts clients until the listener is closed. It never waits for a client or
// an endpoint.
func (r *Relay) accept(l listener) {
	for r.ctx.Err() == nil {
		r.backoff.wait(r.ctx)
		c, err := l.accept()
		switch {
		case err == nil:
			r.stats.accepted.Add(1)
			r.quota.taken.Add(1)
			if !r.admit(&r.quota) {
				c.reset()
				return
			}
			r.serve(c)
		case errors.Is(err, net.ErrClosed):
			return
		default: // out of descriptors, or a client that left while it waited
			if r.exhausted() {
				r.options.Log.Warn("accept failed; backing off", "port", r.quota.port, "listener", r.at, "err", err)
			}
		}
	}
}

// serve applies the policy to a client.
func (r *Relay) serve(c client) {
	_, to, ok := r.answer(c.from())
	if !ok {
		c.reset()
		r.dismiss(&r.quota)
		return
	}
	c.serve(to, &r.quota)
}

// goListener accepts clients that goroutines serve, on any system.
type goListener struct {
	*net.TCPListener
	*shared
}

func (l goListener) accept() (client, error) {
	c, err := l.AcceptTCP()
	if err != nil {
		return nil, err
	}
	return goClient{c, l.shared}, nil
}

type goClient struct {
	*net.TCPConn
	*shared
}

func (c goClient) from() netip.AddrPort {
	return unmapped(c.RemoteAddr().(*net.TCPAddr).AddrPort())
}

func (c goClient) reset() { reset(c.TCPConn) }

func (c goClient) serve(to choice, by *share) {
	k := c.newConn(c.TCPConn, by)
	c.work.Go(func() { k.dialAndTransfer(to, 0) })
}

// maxBackoffs is how often an attempt is repeated for which this host lacks a
// descriptor or memory.
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
			s.reached(to)
			s.attempts.note(to, true)
			return up, nil
		case s.ctx.Err() != nil:
			return nil, err
		case isExhausted(err) && backoffs < maxBackoffs: // not the endpoint's fault
			backoffs++
			s.exhausted()
			sleep.For(s.ctx, backoffTime)
		case lacksPort(err) && len(to.endpoints) == 1: // to search all ports again costs time
			return nil, err
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
	if slow, is := errors.AsType[net.Error](err); is && slow.Timeout() {
		s.attempts.note(to, false)
	} else if errors.Is(err, syscall.ECONNREFUSED) {
		s.attempts.note(to, true)
	}
}

// notePorts counts an endpoint to which no source port was free. It starts no back-off:
// connections to other endpoints have ports, and other Services wait for none of this one.
func (s *shared) notePorts(err error) {
	if lacksPort(err) {
		s.stats.exhausted.Add(1)
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
		s.notePorts(err)
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
		s.notePorts(err)
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

// conn is a TCP connection of a client that goroutines serve, and the one to its
// endpoint. It is safe for concurrent use.
type conn struct {
	*shared
	client     *net.TCPConn
	by         *share
	directions atomic.Int32 // that still run
	lastData   atomic.Int64 // a moment, where the system does not know; see silence

	mu    sync.Mutex
	up    *net.TCPConn // nil while it is dialled
	ended bool         // by a reset
}

// newConn registers a client's connection, so that it can be reset.
func (s *shared) newConn(client *net.TCPConn, by *share) *conn {
	c := &conn{shared: s, client: client, by: by}
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	if s.ctx.Err() != nil {
		c.reset()
	}
	return c
}

// close unregisters a connection whose sockets are closed.
func (c *conn) close() {
	c.shared.mu.Lock()
	delete(c.conns, c)
	c.shared.mu.Unlock()
	c.dismiss(c.by)
}

// reset closes both sockets with a reset: the goroutines end by that.
func (c *conn) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.ended = true
	reset(c.client)
	if c.up != nil {
		reset(c.up)
	}
}

// dialAndTransfer serves a client. The caller's goroutine continues with one of the
// two directions, which saves a third goroutine. The first tries to reach an endpoint
// may have been made already.
func (c *conn) dialAndTransfer(to choice, tries int) {
	up, err := c.dial(&to, tries)
	if err != nil {
		c.stats.failed.Add(1)
		c.options.Log.Debug("connection reset: no endpoint reached", "port", c.by.port, "client", to.client, "err", err)
		c.reset()
		c.close()
		return
	}
	c.transfer(up, nil, nil)
}

// transfer carries both directions until that of the endpoint has ended. It does
// not wait for the client's. Some data may have been read already.
func (c *conn) transfer(up *net.TCPConn, fromClient, fromUp []byte) {
	c.mu.Lock()
	c.up = up
	if c.ended {
		reset(up)
	}
	c.mu.Unlock()
	c.lastData.Store(c.moment(time.Now())) // before a sweep may see it
	c.directions.Store(2)
	c.stats.open.Add(1)
	c.work.Go(func() { c.direction(up, c.client, fromClient) })
	c.direction(c.client, up, fromUp)
}

// direction carries all data from src to dst. The end of src is passed on and
// leaves the other direction unchanged; an error ends both.
func (c *conn) direction(dst, src *net.TCPConn, data []byte) {
	var err error
	if len(data) > 0 {
		_, err = dst.Write(data)
	}
	if err == nil {
		err = c.copy(dst, src)
	}
	if err != nil {
		c.reset()
	}
	if c.directions.Add(-1) > 0 {
		_ = dst.CloseWrite() // the direction that ends last closes both instead
		return
	}
	_ = c.client.Close()
	_ = c.up.Close()
	c.stats.open.Add(-1)
	c.close()
}

// copy copies until src ends. It holds a buffer only while there is data, and
// splices what comes faster than it can be copied.
func (c *conn) copy(dst, src *net.TCPConn) error {
	in, err := c.newStream(src, &c.buffers)
	if err != nil {
		return err
	}
	for {
		data, err := in.next()
		if err == nil {
			_, err = dst.Write(data)
		}
		in.done()
		if err == nil && zeroCopy && len(data) == chunkSize {
			err = splice(dst, src)
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		c.lastData.Store(c.moment(time.Now()))
	}
}

// maxSplice is how much is spliced before returning to copying, if the stream is slow
// by then: splice(2) needs a pipe for each connection.
const maxSplice = 8 << 20

func splice(dst, src *net.TCPConn) error {
	if err := src.SetReadDeadline(time.Now().Add(maxPause)); err != nil {
		return err
	}
	_, err := dst.ReadFrom(&io.LimitedReader{R: src, N: maxSplice})
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return src.SetReadDeadline(time.Time{})
}

var _ connection = (*conn)(nil)

func (c *conn) share() *share { return c.by }

func (c *conn) activity(now time.Time) (idle time.Duration, halfClosed bool) {
	c.mu.Lock()
	up := c.up
	c.mu.Unlock()
	if up == nil || c.directions.Load() == 0 {
		return 0, false // being dialled, or about to be closed
	}
	halfClosed = c.directions.Load() == 1
	client, known := silence(c.client)
	endpoint, also := silence(up)
	if !known || !also {
		return now.Sub(c.timeOf(c.lastData.Load())), halfClosed
	}
	return min(client, endpoint), halfClosed
}
