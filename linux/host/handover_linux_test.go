// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/linux/host"
)

// greeter says a text to each client, and sends datagrams back.
func greeter(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().(*net.TCPAddr).AddrPort()
	u, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); u.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "here")
			c.Close()
		}
	}()
	go func() {
		b := make([]byte, 64)
		for {
			n, from, err := u.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = u.WriteToUDPAddrPort(b[:n], from)
		}
	}()
	return at
}

// server is a server of relays with one user of a Handover.
func server(t *testing.T, h *host.Handover) *relay.Server {
	t.Helper()
	s := relay.NewServer(relay.Options{Handover: h.User()})
	t.Cleanup(func() { _ = s.Close(0) })
	return s
}

func policy(to netip.AddrPort) relay.Policy {
	a := relay.Balance(&model.Pool{Endpoints: []model.Endpoint{{Addr: to}}}, 0)
	return relay.Policy{On: [...]relay.Answer{a, a, a}}
}

func reached(proto model.Proto, at netip.AddrPort) error {
	c, err := net.DialTimeout(proto.String(), at.String(), 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if proto == model.UDP {
		if _, err := io.WriteString(c, "here"); err != nil {
			return err
		}
	}
	b := make([]byte, 4)
	if _, err := io.ReadFull(c, b); err != nil {
		return err
	}
	return nil
}

// One server of relays follows the other at one address, as modes do in a switch: while both have
// it, and when the first one leaves, no client fails. The second one has all it needs to be
// followed itself. When both have left the address is free.
func TestServersFollowEachOther(t *testing.T) {
	for _, proto := range []model.Proto{model.TCP, model.UDP} {
		t.Run(proto.String(), func(t *testing.T) {
			h := host.OpenHandover(slog.New(slog.DiscardHandler))
			to := greeter(t)
			first := server(t, h)
			before, err := first.Listen(proto, netip.MustParseAddrPort("127.0.0.1:0"), policy(to))
			if err != nil {
				t.Fatal(err)
			}
			at := before.Addr()
			if _, err := first.Listen(proto, at, policy(to)); !errors.Is(err, unix.EADDRINUSE) {
				t.Errorf("an address twice in one server: %v", err)
			}
			serves := func(when string) {
				t.Helper()
				for range 50 {
					if err := reached(proto, at); err != nil {
						t.Errorf("%s: %v", when, err)
						return
					}
				}
			}
			serves("one server")
			for range 3 {
				second := server(t, h)
				after, err := second.Listen(proto, at, policy(to))
				if err != nil {
					t.Fatalf("the second server: %v", err)
				}
				serves("two servers")
				before.Forget()
				if err := before.Close(); err != nil {
					t.Error(err)
				}
				serves("the first one has left")
				before = after
			}
			before.Forget()
			if err := before.Close(); err != nil {
				t.Error(err)
			}
			if err := reached(proto, at); err == nil {
				t.Error("somebody answers where nobody is left")
			}
		})
	}
}
