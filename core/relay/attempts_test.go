// SPDX-License-Identifier: Apache-2.0

package relay_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/core/suspect"
)

// A relay reports which endpoints answered its tries, once it was asked.
func TestAttempts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	answers := l.Addr().(*net.TCPAddr).AddrPort()
	s := relay.NewServer(relay.Options{})
	defer s.Close(0)
	p := relay.Same(relay.Answer{Verdict: model.Balance, Endpoints: []netip.AddrPort{answers}})
	p.Port = model.PortID{Service: model.ServiceName{Namespace: "default", Name: "web"}}
	r, err := s.Listen(model.TCP, netip.MustParseAddrPort("127.0.0.1:0"), p)
	if err != nil {
		t.Fatal(err)
	}
	a := s.Attempts()
	dial := func() {
		t.Helper()
		c, err := net.Dial("tcp", r.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		up, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_, _ = up.Close(), c.Close()
	}
	dial()
	all, err := a.New(t.Context(), func(f suspect.Flow, _ suspect.State, _ time.Time) { t.Errorf("remembered before any request: %+v", f) })
	if all || err != nil {
		t.Errorf("before any request: all %t, %v", all, err)
	}
	var seen []suspect.Flow
	for begin := time.Now(); len(seen) == 0 && time.Since(begin) < 10*time.Second; {
		dial()
		seen = append(seen, triesOf(t, a, answers.Addr())...)
	}
	if len(seen) == 0 || seen[0].Endpoint != answers || *seen[0].Port != p.Port || seen[0].Client.Addr() != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("answered: %+v", seen)
	}
	if more := triesOf(t, a, answers.Addr()); len(more) > 0 {
		t.Errorf("shown again: %v", more)
	}
}

// triesOf returns the new tries to reach an address. All must have been answered, and none be lost.
func triesOf(t *testing.T, a *relay.Attempts, addr netip.Addr) (seen []suspect.Flow) {
	t.Helper()
	all, err := a.New(t.Context(), func(f suspect.Flow, s suspect.State, _ time.Time) {
		if s != suspect.Answered {
			t.Errorf("no answer: %+v", f)
		} else if f.Endpoint.Addr() == addr {
			seen = append(seen, f)
		}
	})
	if !all || err != nil {
		t.Errorf("new tries: all %t, %v", all, err)
	}
	return seen
}

// A refusal of the first try is an answer, too.
func TestRefusalIsAnAnswer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	answers := l.Addr().(*net.TCPAddr).AddrPort()
	refuses := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), answers.Port())
	s := relay.NewServer(relay.Options{})
	defer s.Close(0)
	p := relay.Same(relay.Answer{Verdict: model.Balance, Endpoints: []netip.AddrPort{answers, refuses}})
	r, err := s.Listen(model.TCP, netip.MustParseAddrPort("127.0.0.1:0"), p)
	if err != nil {
		t.Fatal(err)
	}
	a := s.Attempts()
	_, _ = a.New(t.Context(), func(suspect.Flow, suspect.State, time.Time) {})
	refused := 0
	for n := 0; refused == 0 && n < 64; n++ {
		c, err := net.Dial("tcp", r.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		up, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_, _ = up.Close(), c.Close()
		refused += len(triesOf(t, a, refuses.Addr()))
	}
	if refused == 0 {
		t.Error("no refusal was remembered")
	}
}

// A flood of tries in one namespace takes no other's place.
func TestAFloodForgetsNoOthersTries(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	answers := l.Addr().(*net.TCPAddr).AddrPort()
	s := relay.NewServer(relay.Options{})
	defer s.Close(0)
	listen := func(namespace string, endpoint netip.AddrPort) string {
		p := relay.Same(relay.Answer{Verdict: model.Balance, Endpoints: []netip.AddrPort{endpoint}})
		p.Port = model.PortID{Service: model.ServiceName{Namespace: namespace, Name: "web"}}
		r, err := s.Listen(model.TCP, netip.MustParseAddrPort("127.0.0.1:0"), p)
		if err != nil {
			t.Fatal(err)
		}
		return r.Addr().String()
	}
	shop, evil := listen("shop", answers), listen("evil", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), answers.Port()))
	dial := func(to string) {
		if c, err := net.Dial("tcp", to); err == nil { // else the relay's reset was quicker
			_, _ = c.Read(make([]byte, 1)) // until the relay gives up, or the endpoint closes
			_ = c.Close()
		}
	}
	a := s.Attempts()
	_, _ = a.New(t.Context(), func(suspect.Flow, suspect.State, time.Time) {})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	defer l.Close()
	dial(shop)
	for range 600 { // more than are remembered
		dial(evil)
	}
	seen := map[string]int{}
	all, err := a.New(t.Context(), func(f suspect.Flow, _ suspect.State, _ time.Time) { seen[f.Port.Service.Namespace]++ })
	if all || err != nil || seen["shop"] != 1 || seen["evil"] < 400 || seen["evil"] > 511 {
		t.Errorf("new tries: all %t, %v, %v", all, err, seen)
	}
}
