// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

var anyPort = netip.MustParseAddrPort("127.0.0.1:0")

// newServer returns a server that must leave neither goroutines nor
// descriptors behind.
func newServer(t *testing.T, o Options) *Server {
	t.Helper()
	return leavesNothing(t, func() *Server { return NewServer(o) })
}

// newGoroutines is newServer without an engine: goroutines serve all.
func newGoroutines(t *testing.T, o Options) *Server {
	t.Helper()
	return leavesNothing(t, func() *Server { return serve(newShared(o), nil) })
}

func leavesNothing(t *testing.T, start func() *Server) *Server {
	t.Helper()
	if l, err := net.Listen("tcp", "127.0.0.1:0"); err == nil { // the first one opens the runtime's poller, which stays
		l.Close()
	}
	goroutines, files := runtime.NumGoroutine(), descriptors()
	s := start()
	t.Cleanup(func() {
		if err := s.Close(0); err != nil {
			t.Error(err)
		}
		eventually(t, "no goroutine and no descriptor is left", func() error {
			if n := runtime.NumGoroutine(); n > goroutines {
				return fmt.Errorf("%d goroutines, %d before:\n%s", n, goroutines, stacks())
			}
			runtime.GC() // pipes of splice(2) are pooled
			if n := descriptors(); n > files {
				return fmt.Errorf("%d descriptors, %d before", n, files)
			}
			return nil
		})
		if st := s.Stats(); st.Open != 0 || st.Sessions != 0 {
			t.Errorf("after the end: %+v", st)
		}
	})
	return s
}

// starter makes a server for a test.
type starter func(*testing.T, Options) *Server

// eachWay runs a test with the engine that the system has, and without it.
func eachWay(t *testing.T, test func(*testing.T, starter)) {
	t.Run("system", func(t *testing.T) { test(t, newServer) })
	t.Run("goroutines", func(t *testing.T) { test(t, newGoroutines) })
}

func stacks() string {
	b := make([]byte, 1<<20)
	return string(b[:runtime.Stack(b, true)])
}

// descriptors is how many the process has, or 0 where that is unknown.
func descriptors() int {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil || runtime.GOOS != "linux" { // Wine shows what it does itself
		return 0
	}
	return len(all)
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	err := check()
	for ; err != nil && time.Now().Before(deadline); err = check() {
		time.Sleep(5 * time.Millisecond)
	}
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func listen(t *testing.T, s *Server, proto model.Proto, p Policy) *Relay {
	t.Helper()
	r, err := s.Listen(proto, anyPort, p)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// balance is the policy that balances over endpoints.
func balance(endpoints ...netip.AddrPort) Policy {
	return Same(Answer{Verdict: model.Balance, Endpoints: endpoints})
}

// backend is a TCP endpoint that serves each connection with a function.
type backend struct {
	at    netip.AddrPort
	l     net.Listener
	mu    sync.Mutex
	conns []net.Conn
	work  sync.WaitGroup
}

func newBackend(t *testing.T, serve func(*net.TCPConn)) *backend {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &backend{at: l.Addr().(*net.TCPAddr).AddrPort(), l: l}
	b.work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b.mu.Lock()
			b.conns = append(b.conns, c)
			b.mu.Unlock()
			b.work.Go(func() { defer c.Close(); serve(c.(*net.TCPConn)) })
		}
	})
	t.Cleanup(b.close)
	return b
}

func (b *backend) close() {
	b.l.Close()
	b.mu.Lock()
	for _, c := range b.conns {
		c.Close()
	}
	b.mu.Unlock()
	b.work.Wait()
}

// named is a backend that says its address and ends.
func named(t *testing.T) *backend {
	var b *backend
	ready := make(chan struct{})
	b = newBackend(t, func(c *net.TCPConn) {
		<-ready
		io.WriteString(c, b.at.String())
	})
	close(ready)
	return b
}

// echo is a backend that sends back what it gets.
func echo(t *testing.T) *backend {
	return newBackend(t, func(c *net.TCPConn) { io.Copy(c, c) })
}

// closedPort is an address without a listener.
func closedPort(t *testing.T) netip.AddrPort {
	b := named(t)
	b.close()
	return b.at
}

func dial(t *testing.T, at netip.AddrPort) *net.TCPConn {
	t.Helper()
	c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

// who connects and returns what the endpoint says.
func who(t *testing.T, at netip.AddrPort) (string, error) {
	t.Helper()
	c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(at))
	if err != nil { // a reset may come before connect(2) is done
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	b, err := io.ReadAll(c)
	return string(b), err
}

// needUDP skips a test where this system has no UDP for Go: Wine 8 lacks a call.
func needUDP(t *testing.T) {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(anyPort))
	if err != nil {
		t.Skipf("no UDP here: %v", err)
	}
	c.Close()
}

// names is an UDP endpoint that answers with its address and what it received.
func names(t *testing.T) (at netip.AddrPort, stop func()) {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(anyPort))
	if err != nil {
		t.Fatal(err)
	}
	at = c.LocalAddr().(*net.UDPAddr).AddrPort()
	var work sync.WaitGroup
	work.Go(func() {
		buf := make([]byte, 1<<16)
		for {
			n, peer, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			c.WriteToUDPAddrPort(slices.Concat([]byte(at.String()+" "), buf[:n]), peer)
		}
	})
	stop = sync.OnceFunc(func() { c.Close(); work.Wait() })
	t.Cleanup(stop)
	return at, stop
}

// asker is a UDP client.
type asker struct{ *net.UDPConn }

func newAsker(t *testing.T, at netip.AddrPort) asker {
	t.Helper()
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return asker{c}
}

// ask sends a datagram and returns the answer and its sender.
func (a asker) ask(text string, wait time.Duration) (server netip.AddrPort, received string, err error) {
	if _, err := a.Write([]byte(text)); err != nil {
		return server, "", err
	}
	a.SetReadDeadline(time.Now().Add(wait))
	buf := make([]byte, 1<<16)
	n, err := a.Read(buf)
	if err != nil {
		return server, "", err
	}
	name, received, _ := strings.Cut(string(buf[:n]), " ")
	server, err = netip.ParseAddrPort(name)
	return server, received, err
}

// must is an ask that is answered.
func (a asker) must(t *testing.T) netip.AddrPort {
	t.Helper()
	at, _, err := a.ask("hello", 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return at
}
