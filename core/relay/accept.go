// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"net"
	"net/netip"
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
