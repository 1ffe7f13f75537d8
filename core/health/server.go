// SPDX-License-Identifier: Apache-2.0

package health

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/sleep"
)

// The limits that keep slow or hostile clients from harming others.
const (
	headerTimeout = 5 * time.Second // for a request to arrive
	answerTimeout = 30 * time.Second
	stallTimeout  = 5 * time.Second // for a client to read some of an answer
	writeStep     = 64 << 10        // bytes of it
	idleTimeout   = 2 * time.Minute // between two requests of a connection
	maxHeader     = 16 << 10        // bytes; net/http adds 4 KiB of slack
	maxConns      = 256             // of one server

	// What no page reads of a request is taken after its answer, up to this much: who closes a
	// connection with something unread resets it, and a client that is still writing loses the answer.
	mostUnread  = 256 << 10 // bytes
	readsUnread = 500 * time.Millisecond
)

// bindEvery is the pause between attempts to bind an address, as in kube-proxy.
const bindEvery = 5 * time.Second

// Listen opens a listening socket, as net.ListenConfig.Listen does. It decides
// in which network namespace.
type Listen func(ctx context.Context, network, address string) (net.Listener, error)

// Server serves one address for as long as a context lasts.
type Server struct {
	Name    string // for logs, such as "health"
	Address string // IP:port
	Handler http.Handler
	Listen  Listen // nil for the usual

	// HardFail makes an address that cannot be bound an error; otherwise it is
	// tried again every 5 s.
	HardFail bool
	// Failed, unless nil, is called when the address cannot be bound: once, until it
	// could be.
	Failed func(error)
	Log    *slog.Logger

	bound    net.Listener
	reported bool
}

// Open binds the address, so that its caller knows at once that it is in use, and
// Run then serves what was bound. Without HardFail there is no error: Run tries
// on.
func (s *Server) Open(ctx context.Context) error {
	listen := s.Listen
	if listen == nil {
		listen = new(net.ListenConfig).Listen
	}
	l, err := listen(ctx, "tcp", s.Address)
	if err == nil {
		s.bound, s.reported = l, false
		return nil
	}
	err = fmt.Errorf("%s address %s: %w", s.Name, s.Address, err)
	if !s.reported && s.Failed != nil {
		s.Failed(err)
	}
	if s.HardFail {
		return err
	}
	if !s.reported {
		s.Log.Error("listen failed; retrying", "server", s.Name, "address", s.Address, "err", err, "every", bindEvery)
	}
	s.reported = true
	return nil
}

// Addr returns the address that is bound, nil when none is.
func (s *Server) Addr() net.Addr {
	if s.bound == nil {
		return nil
	}
	return s.bound.Addr()
}

// Close closes what Open bound and Run does not serve.
func (s *Server) Close() error {
	if s.bound == nil {
		return nil
	}
	if err := s.bound.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if s.bound == nil {
			if err := s.Open(ctx); err != nil {
				return err
			}
		}
		if s.bound != nil {
			s.serve(ctx)
		}
		sleep.For(ctx, bindEvery)
	}
	return nil
}

func (s *Server) serve(ctx context.Context) {
	server := newServer(s.Handler, s.Log)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	err := server.Serve(limitedListener{Listener: s.bound, limiter: &connLimiter{max: maxConns}})
	_ = server.Close() // with all its connections
	s.bound = nil
	if ctx.Err() == nil {
		s.Log.Error("server stopped; restarting", "server", s.Name, "err", err)
	}
}

// newServer returns a server with our limits.
func newServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           drained(tracked(h)),
		ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, WriteTimeout: answerTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader,
		ConnContext:    withConn,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// tracked notes on connections which of them are being answered.
func tracked(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := connOf(r); c != nil {
			c.answering(true)
			defer c.answering(false)
		}
		h.ServeHTTP(w, r)
	})
}

// drained takes what an answer leaves unread of its request. The connection is idle meanwhile: it may be
// closed for another.
func drained(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r)
		if r.ContentLength == 0 {
			return
		}
		answer := http.NewResponseController(w)
		if answer.Flush() == nil && answer.SetReadDeadline(time.Now().Add(readsUnread)) == nil {
			_, _ = io.CopyN(io.Discard, r.Body, mostUnread)
		}
	})
}

// connLimiter bounds how many connections a server has, and shares them among the addresses of
// clients: at the limit a new connection replaces one of the address that has most, its own if
// none has more. It is safe for concurrent use.
type connLimiter struct {
	max int

	mu  sync.Mutex
	all list.List // of *conn, the longest idle one first
}

// conn is a connection that counts towards a limit.
type conn struct {
	net.Conn
	limiter *connLimiter
	from    netip.Addr // whose share it is
	owner   any        // whose listener it came by; nil for a server of one listener

	// Guarded by limiter.mu:
	elem  *list.Element // nil once it is closed
	busy  bool          // a request is being answered
	stuck time.Time     // since when the client has read nothing of an answer; zero when none is being written
	until time.Time     // the end of an answer's time
}

// clientOf is whose share a client's is, by its address and port. All of loopback is one, as
// this machine may use any of it, and so is a network of IPv6, of which one machine may use all.
func clientOf(address string) netip.Addr {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return netip.Addr{}
	}
	ip := at.Addr().Unmap().WithZone("")
	switch {
	case ip.IsLoopback():
		return netip.IPv6Loopback()
	case ip.Is6():
		return netip.PrefixFrom(ip, 64).Masked().Addr()
	}
	return ip
}

// add counts a connection. At the limit another is closed for it; it returns nil, and closes
// c, when there is none to close.
func (w *connLimiter) add(c net.Conn, owner any) *conn {
	n := &conn{Conn: c, limiter: w, from: clientOf(c.RemoteAddr().String()), owner: owner}
	w.mu.Lock()
	var out *conn
	if w.all.Len() >= w.max {
		if out = w.least(n.from); out != nil { // at once: others who add must not choose it, too
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

// least returns the connection that a new one of an address replaces, or nil. It is one of the
// address that has most: idle for longest, else with an answer that has not been read for
// longest, else, if it has still more without it, any. Where shares are equal it is the one that
// is the longest idle one of addresses that have more connections than the new client's address.
func (w *connLimiter) least(from netip.Addr) *conn {
	held, most := map[netip.Addr]int{}, from
	for e := w.all.Front(); e != nil; e = e.Next() {
		c := e.Value.(*conn)
		if held[c.from]++; held[c.from] > held[most] {
			most = c.from
		}
	}
	var idle, own, stuck, any *conn
	for e := w.all.Front(); e != nil; e = e.Next() {
		c := e.Value.(*conn)
		if !c.busy && idle == nil && held[c.from] > held[from] {
			idle = c
		}
		switch {
		case c.from != most:
		case !c.busy && own == nil:
			own = c
		case !c.stuck.IsZero() && (stuck == nil || c.stuck.Before(stuck.stuck)):
			stuck = c
		case any == nil && held[most] > held[from]+1:
			any = c
		}
	}
	return cmp.Or(own, stuck, any, idle)
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

// SetWriteDeadline implements net.Conn: it bounds the whole of an answer.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.limiter.mu.Lock()
	c.until = t
	c.limiter.mu.Unlock()
	return c.Conn.SetWriteDeadline(t)
}

// Write writes in steps, each of which the client must have read some of, so that one that
// reads nothing is given up long before an answer's whole time.
func (c *conn) Write(p []byte) (n int, err error) {
	until := c.moved(time.Now())
	defer c.moved(time.Time{})
	for err == nil && len(p) > 0 {
		end := time.Now().Add(stallTimeout)
		if !until.IsZero() && until.Before(end) {
			end = until
		}
		if err = c.Conn.SetWriteDeadline(end); err != nil {
			break
		}
		var m int
		m, err = c.Conn.Write(p[:min(len(p), writeStep)])
		n, p = n+m, p[m:]
		c.moved(time.Now())
	}
	return n, err
}

// moved notes when an answer last made progress, and returns the end of its time.
func (c *conn) moved(at time.Time) (until time.Time) {
	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()
	c.stuck = at
	return c.until
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
