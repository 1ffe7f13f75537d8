// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// network is a network in memory. It is safe for concurrent use.
type network struct {
	mu        sync.Mutex
	listeners map[string]*listener
	links     map[*link]bool
	dead      bool // packets are lost: connections stay and carry nothing
	lostAt    time.Time
}

func newNetwork() *network {
	return &network{listeners: map[string]*listener{}, links: map[*link]bool{}}
}

// listen implements the Listen of a platform.Simulation.
func (n *network) listen(_ context.Context, _, address string) (net.Listener, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		at, err = netip.ParseAddrPort("0.0.0.0" + address)
	}
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[at.String()] != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Err: syscall.EADDRINUSE}
	}
	l := &listener{network: n, at: at, arriving: make(chan net.Conn), closed: make(chan struct{})}
	n.listeners[at.String()] = l
	return l, nil
}

// dialTimeout is how long a SYN is sent again, at most.
const dialTimeout = 30 * time.Second

// dial implements watch.Dialer.
func (n *network) dial(ctx context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	l, dead := n.listeners[address], n.dead
	n.mu.Unlock()
	if dead {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(dialTimeout): // net/http's dial outlives its request, but not this
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ETIMEDOUT}
		}
	}
	if l == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	near, far := net.Pipe()
	k := &link{lost: make(chan struct{}), closed: make(chan struct{}), near: near, far: far}
	client := &conn{Conn: near, network: n, link: k, local: netip.MustParseAddrPort("192.0.2.1:40000"), remote: l.at}
	server := &conn{Conn: far, network: n, link: k, local: l.at, remote: client.local}
	n.mu.Lock()
	n.links[k] = true
	n.mu.Unlock()
	select {
	case l.arriving <- server:
		return client, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// lose makes the connections that there are half-open forever: each end thinks that
// it is there. Until it is called with false none is made.
func (n *network) lose(dead bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dead = dead
	if !dead {
		return
	}
	n.lostAt = time.Now()
	for k := range n.links {
		k.loss.Do(func() { close(k.lost) })
		k.near.Close() // wakes up the reader; see conn.Read
		k.far.Close()
	}
}

// lost returns when connections last became half-open; zero if none did.
func (n *network) lost() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lostAt
}

type listener struct {
	network  *network
	at       netip.AddrPort
	arriving chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.arriving:
		return c, nil
	case <-l.closed:
		return nil, fmt.Errorf("accept: %w", net.ErrClosed)
	}
}

func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.network.mu.Lock()
		defer l.network.mu.Unlock()
		delete(l.network.listeners, l.at.String())
	})
	return nil
}

func (l *listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.at) }

// link is one connection.
type link struct {
	near, far net.Conn
	loss, end sync.Once
	lost      chan struct{} // closed when it carries nothing any more
	closed    chan struct{} // closed when either end has closed it
}

// conn is one end of a link.
type conn struct {
	net.Conn
	network       *network
	link          *link
	local, remote netip.AddrPort
}

func (c *conn) LocalAddr() net.Addr  { return net.TCPAddrFromAddrPort(c.local) }
func (c *conn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.remote) }

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	select {
	case <-c.link.lost:
		<-c.link.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	select {
	case <-c.link.lost:
		return len(p), nil
	default:
		return n, err
	}
}

func (c *conn) Close() error {
	c.link.end.Do(func() {
		close(c.link.closed)
		c.network.mu.Lock()
		defer c.network.mu.Unlock()
		delete(c.network.links, c.link)
	})
	return c.Conn.Close()
}

// A dial ends, whatever becomes of the network and of what asked for it: net/http dials on
// for a request that has ended.
func TestDialsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		n.lose(true)
		if _, err := n.dial(context.Background(), "tcp", apiServer.String()); !errors.Is(err, syscall.ETIMEDOUT) {
			t.Error(err)
		}
	})
}
