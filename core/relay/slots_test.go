// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/growth"
)

// However many connections one Service port gets, others have room: of n that want
// all, each gets one of n+1 parts.
func TestShares(t *testing.T) {
	s := slots{limit: 120}
	for n := 1; n <= 5; n++ {
		relays := make([]share, n)
		for range s.limit {
			for i := range relays {
				s.try(&relays[i])
			}
		}
		for i := range relays {
			if got, want := relays[i].held, s.limit/(n+1); got != want {
				t.Errorf("%d relays: one has %d slots, want %d", n, got, want)
			}
		}
		if !s.try(&share{}) {
			t.Errorf("%d relays leave no room for one more", n)
		}
		s.used = 0
	}
	unlimited, by := slots{}, share{}
	for range 2 {
		if !unlimited.try(&by) {
			t.Error("no limit is a limit")
		}
	}
}

// A waiting caller gets a slot as soon as there is one, or the end of the context.
func TestShareIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, by := slots{limit: 1}, share{}
		s.try(&by)
		got := make(chan bool)
		go func() { got <- s.take(t.Context(), &by) }()
		synctest.Wait()
		select {
		case <-got:
			t.Error("a slot that is not there")
		default:
		}
		s.free(&by)
		if !<-got {
			t.Error("no slot after one was freed")
		}
	})
}

// A share is limited as long as a caller waits, and for a while after: else a port
// under load would be a new problem with every connection.
func TestShareIsLimitedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, by := slots{limit: 1}, share{}
		s.try(&by)
		if len(s.recent(time.Now())) != 0 {
			t.Error("limited before it lacked a slot")
		}
		go s.take(t.Context(), &by)
		synctest.Wait()
		for range 3 {
			time.Sleep(2 * limitedFor)
			if !s.recent(time.Now())[&by] {
				t.Error("not limited while a client waits")
			}
		}
		s.free(&by)
		synctest.Wait()
		s.free(&by)
		if time.Sleep(limitedFor + 1); len(s.recent(time.Now())) != 0 {
			t.Error("limited a minute after the last client had to wait")
		}
	})
}

// A Service port that has all connections that it may have keeps no client from
// another one, and serves waiting clients when others end.
func TestOneServiceLeavesRoom(t *testing.T) {
	eachWay(t, func(t *testing.T, start starter) {
		s := start(t, Options{})
		s.slots.limit = 8
		end := echo(t).at
		p := balance(end)
		p.Port = model.PortID{Service: model.ServiceName{Namespace: "shop", Name: "web"}, Name: "http", Proto: model.TCP}
		busy, other := listen(t, s, model.TCP, p), listen(t, s, model.TCP, balance(end))
		served := func(c net.Conn, wait time.Duration) bool {
			t.Helper()
			var b [1]byte
			if err := c.SetReadDeadline(time.Now().Add(wait)); err != nil {
				t.Fatal(err)
			}
			_, err := io.ReadFull(c, b[:])
			return err == nil
		}
		dial := func(r *Relay) net.Conn {
			t.Helper()
			c, err := net.Dial("tcp", r.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			if _, err := c.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			return c
		}
		var first net.Conn
		for i := range 4 {
			c := dial(busy)
			if !served(c, 10*time.Second) {
				t.Fatalf("connection %d is not served", i)
			}
			first = c
		}
		late := dial(busy)
		if served(late, 100*time.Millisecond) {
			t.Error("one Service port has more than half of all connections")
		}
		want := model.Problem{Object: "Service shop/web", Why: model.WhyConnectionLimit, Detail: "port http tcp: new connections wait until others end"}
		if got := s.Limited(); len(got) != 1 || got[0] != want {
			t.Errorf("problems %v, want %v", got, want)
		}
		if st := s.Stats(); st.Limited != 1 || st.Limit != 8 {
			t.Errorf("%+v", st)
		}
		if !served(dial(other), 10*time.Second) {
			t.Error("the other Service port has no room")
		}
		first.Close()
		if !served(late, 10*time.Second) {
			t.Error("a waiting client is not served after another has ended")
		}
	})
}

// While most slots are held one by one, a client that finds none costs no look at every relay: as many clients as there
// are relays take time in proportion to their number.
func TestRoomIsFoundWithoutALookAtEveryShare(t *testing.T) {
	const most = 32_000
	run := func(n int) []time.Duration {
		s := slots{limit: 2*n + 2}
		gave := 0
		for i := range n {
			by := &share{}
			by.giveWay = func() bool { s.free(by); gave++; return true }
			for range 1 + min(1, i%2) {
				if !s.try(by) {
					t.Fatal("no slot")
				}
			}
		}
		took := growth.Timed(func() {
			for range n {
				s.makeRoomFor(&share{})
			}
		})
		if gave != n/2 {
			t.Errorf("%d of %d shares with two slots gave one", gave, n/2)
		}
		return []time.Duration{took}
	}
	if err := growth.Linear(most, run); err != nil {
		t.Error(err)
	}
}

// Whatever is taken and freed, the share with the most slots gives way, and none that has one alone.
func TestTheLargestShareGivesWay(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	s := slots{limit: 200}
	var gave *share
	shares := make([]*share, 12)
	for i := range shares {
		by := &share{}
		if i%4 > 0 { // others are of TCP
			by.giveWay = func() bool { gave = by; return true }
		}
		shares[i] = by
	}
	rooms := 0
	for turn := range 20_000 {
		by := shares[random.IntN(len(shares))]
		if up := turn/1000%2 == 0; by.held > 0 && (random.IntN(3) == 0) == up {
			s.free(by)
		} else {
			s.try(by)
		}
		most := 1
		for _, by := range shares {
			if by.giveWay != nil {
				most = max(most, by.held)
			}
		}
		gave = nil
		switch room := s.makeRoomFor(&share{}); {
		case room != (most > 1):
			t.Fatalf("turn %d: room %t, the largest has %d", turn, room, most)
		case room && gave.held != most:
			t.Fatalf("turn %d: one with %d gave way, another has %d", turn, gave.held, most)
		case room:
			rooms++
		}
	}
	if rooms < 1000 || rooms == 20_000 {
		t.Errorf("%d rooms: too few or too many to show anything", rooms)
	}
}

// One namespace with many Service ports has no more room than one with a few: what one of them holds is not
// taken from others.
func TestSlotsAreSharedByNamespace(t *testing.T) {
	s := slots{limit: 1000}
	of := func(namespace string, n int) *share {
		return &share{port: model.PortID{Service: model.ServiceName{Namespace: namespace, Name: "web"}, Name: "p" + strconv.Itoa(n), Proto: model.UDP}}
	}
	for i := range 500 {
		by := of("evil", i)
		for s.try(by) {
		}
	}
	victim := of("shop", 0)
	for s.try(victim) {
	}
	if victim.held < s.limit/4 {
		t.Errorf("a namespace with one port has %d of %d slots beside one with 500", victim.held, s.limit)
	}
}

// The largest namespace gives way, and not the one whose sessions are those of one port.
func TestTheLargestNamespaceGivesWay(t *testing.T) {
	s := slots{limit: 120}
	of := func(namespace string, n int) *share {
		by := &share{port: model.PortID{Service: model.ServiceName{Namespace: namespace, Name: "web"}, Name: "p" + strconv.Itoa(n), Proto: model.UDP}}
		by.giveWay = func() bool { s.free(by); return true }
		return by
	}
	victim := of("shop", 0)
	for range 20 {
		s.try(victim)
	}
	for i := range 1000 {
		if by := of("evil", i); !s.try(by) && s.makeRoomFor(&share{}) {
			s.try(by)
		}
	}
	if victim.held < 20 {
		t.Errorf("%d of 20 sessions are left beside a namespace with many ports", victim.held)
	}
}

// A namespace has no more relays than there are ports left, and another one has room. A relay
// that has its port from an earlier process keeps it, and counts.
func TestPortsAreSharedByNamespace(t *testing.T) {
	s := newServer(t, Options{Ports: 8})
	open := func(namespace string, proto model.Proto, at netip.AddrPort) (*Relay, error) {
		p := balance(netip.MustParseAddrPort("192.0.2.1:80"))
		p.Port = model.PortID{Service: model.ServiceName{Namespace: namespace, Name: "web"}, Proto: proto}
		return s.Listen(proto, at, p)
	}
	var evil []*Relay
	for i := range 8 {
		r, err := open("evil", model.TCP, anyPort)
		if i < 4 && err != nil || i >= 4 && !errors.Is(err, errNoPort) {
			t.Fatalf("relay %d: %v", i, err)
		}
		if err == nil {
			evil = append(evil, r)
		} else if !strings.Contains(err.Error(), `4 of 8 ports that the system chooses from are in use, 4 of them by namespace "evil"`) {
			t.Error(err)
		}
	}
	for i := range 2 {
		if _, err := open("shop", model.TCP, anyPort); err != nil {
			t.Errorf("relay %d of another namespace: %v", i, err)
		}
	}
	for _, r := range evil {
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	evil[0].Close() // returns nothing twice
	had := evil[0].Addr()
	for range 2 {
		if _, err := open("evil", model.TCP, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), had.Port())); err != nil {
			t.Logf("the earlier port: %v", err) // a failure counts no port
		}
	}
	if s.ports[portSpace{model.TCP, model.IPv4}].used != 3 {
		t.Errorf("%d ports count", s.ports[portSpace{model.TCP, model.IPv4}].used)
	}
	for i := range 3 {
		if _, err := open("evil", model.TCP, anyPort); (err == nil) != (i < 2) {
			t.Errorf("relay %d more: %v", i, err)
		}
	}
}
