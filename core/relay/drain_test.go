// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// Late clients are still served, and open connections continue.
func TestDrain(t *testing.T) { eachWay(t, drain) }

func drain(t *testing.T, start starter) {
	s := start(t, Options{})
	r := listen(t, s, model.TCP, balance(echo(t).at))
	early := dial(t, r.Addr())
	says(t, early)
	r.Retire(time.Second) // time enough to dial, also on a busy machine
	late := dial(t, r.Addr())
	says(t, late)

	drained := make(chan struct{})
	go func() {
		defer close(drained)
		s.Drain(t.Context(), time.Minute)
	}()
	eventually(t, "the relay is closed", func() error {
		if s.listening() {
			return errors.New("it listens")
		}
		return nil
	})
	says(t, early)
	says(t, late)
	select {
	case <-drained:
		t.Error("connections were not awaited")
	default:
	}
	early.Close()
	late.Close()
	<-drained
}

// What does not end by itself is reset: its client sees the reset.
func TestDrainEnds(t *testing.T) { eachWay(t, drainEnds) }

func drainEnds(t *testing.T, start starter) {
	for name, end := range map[string]func(*Server){
		"grace": func(s *Server) { s.Drain(t.Context(), 50*time.Millisecond) },
		"context": func(s *Server) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			s.Drain(ctx, time.Minute)
		},
		"close": func(s *Server) {
			if err := s.Close(0); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, Options{})
			c := dial(t, listen(t, s, model.TCP, balance(echo(t).at)).Addr())
			says(t, c)
			end(s)
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the client got %v", err)
			}
		})
	}
}

func (s *Server) listening() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.relays) > 0
}

// says has a connection to an echo answered.
func says(t *testing.T, c io.ReadWriter) {
	t.Helper()
	b := []byte("x")
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, b); err != nil {
		t.Fatal(err)
	}
}

// While a process that ends waits for connections that are held, it serves new clients: the
// process after it, to which they would have to wait, starts only then.
func TestCloseServesOn(t *testing.T) { eachWay(t, closeServesOn) }

func closeServesOn(t *testing.T, start starter) {
	s := start(t, Options{Handover: noProcess{}})
	r := listen(t, s, model.TCP, balance(echo(t).at))
	held := dial(t, r.Addr())
	says(t, held)
	closed := make(chan error, 1)
	go func() { closed <- s.Close(time.Hour) }()
	eventually(t, "the server is closing", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.closing {
			return errors.New("not yet")
		}
		return nil
	})
	for range 3 {
		late := dial(t, r.Addr())
		says(t, late)
		late.Close()
	}
	says(t, held)
	held.Close()
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// noProcess is a Handover without another process.
type noProcess struct{}

func (noProcess) Inherit(netip.AddrPort) *net.TCPListener          { return nil }
func (noProcess) InheritUDP(netip.AddrPort) *net.UDPConn           { return nil }
func (noProcess) Keep(model.Proto, netip.AddrPort, syscall.Conn)   {}
func (noProcess) Forget(model.Proto, netip.AddrPort, syscall.Conn) {}
func (noProcess) Release()                                         {}
