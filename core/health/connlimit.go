// SPDX-License-Identifier: Apache-2.0

package health

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"sync"
)

// connLimiter bounds how many connections a server has. It is safe for concurrent use.
type connLimiter struct {
	max int

	mu  sync.Mutex
	all list.List // of *conn, the longest idle one first
}

// conn is a connection that counts towards a limit.
type conn struct {
	net.Conn
	limiter *connLimiter
	owner   any // whose listener it came by; nil for a server of one listener

	// Guarded by limiter.mu:
	elem *list.Element // nil once it is closed
	busy bool          // a request is being answered
}

// add counts a connection. At the limit the longest idle connection is
// closed for it; it returns nil, and closes c, when all are busy.
func (w *connLimiter) add(c net.Conn, owner any) *conn {
	n := &conn{Conn: c, limiter: w, owner: owner}
	w.mu.Lock()
	var out *conn
	if w.all.Len() >= w.max {
		if out = w.idle(); out != nil { // at once: others who add must not choose it, too
			w.all.Remove(out.elem)
			out.elem = nil
		}
	}
	full := w.all.Len() >= w.max && out == nil
	if !full {
		n.elem = w.all.PushBack(n)
	}
	w.mu.Unlock()
	if out != nil {
		_ = out.Close()
	}
	if full {
		_ = c.Close()
		return nil
	}
	return n
}

// idle returns the connection that has been idle for longest, or nil.
func (w *connLimiter) idle() *conn {
	for e := w.all.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*conn); !c.busy {
			return c
		}
	}
	return nil
}

// closeAll closes the connections that came by an owner's listeners.
func (w *connLimiter) closeAll(owner any) {
	var out []*conn
	w.mu.Lock()
	for e := w.all.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*conn); c.owner == owner {
			out = append(out, c)
		}
	}
	w.mu.Unlock()
	for _, c := range out {
		_ = c.Close()
	}
}

// Close closes a connection, which counts no longer.
func (c *conn) Close() error {
	c.limiter.mu.Lock()
	if c.elem != nil {
		c.limiter.all.Remove(c.elem)
		c.elem = nil
	}
	c.limiter.mu.Unlock()
	return c.Conn.Close()
}

// answering notes that a request is being answered, or has been.
func (c *conn) answering(busy bool) {
	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()
	c.busy = busy
	if !busy && c.elem != nil {
		c.limiter.all.MoveToBack(c.elem)
	}
}

// limitedListener is a listener with a limit of connections.
type limitedListener struct {
	net.Listener
	limiter *connLimiter
	owner   any
	admit   func(net.Conn) bool // nil for all
}

// Accept implements net.Listener.
func (g limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if g.admit != nil && !g.admit(c) {
			reset(c)
			continue
		}
		if n := g.limiter.add(c, g.owner); n != nil {
			return n, nil
		}
	}
}

// reset closes a connection with a reset, like a closed port.
func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}

type connKey struct{}

// withConn is an http.Server's ConnContext.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// connOf returns the connection of a request; nil in tests without one.
func connOf(r *http.Request) *conn {
	c, _ := r.Context().Value(connKey{}).(*conn)
	return c
}

// ownerOf returns the owner of the listener that a request came by.
func ownerOf(r *http.Request) any {
	if c := connOf(r); c != nil {
		return c.owner
	}
	return nil
}
