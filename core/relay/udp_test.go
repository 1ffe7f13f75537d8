// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/growth"
)

func TestUDPSessions(t *testing.T) {
	needUDP(t)
	s := newServer(t, Options{})
	a, _ := names(t)
	b, _ := names(t)
	r := listen(t, s, model.UDP, balance(a, b))
	seen := map[netip.AddrPort]int{}
	for range 10 {
		c := newAsker(t, r.Addr())
		first := c.must(t)
		if again := c.must(t); again != first {
			t.Errorf("a session moved from %s to %s", first, again)
		}
		seen[first]++
	}
	if seen[a] != 5 || seen[b] != 5 {
		t.Errorf("not an even share: %v", seen)
	}
	if n := s.Stats().Sessions; n != 10 {
		t.Errorf("%d sessions", n)
	}
}

func TestUDPSizes(t *testing.T) {
	needUDP(t)
	t.Run("system", func(t *testing.T) { anySize(t, newServer(t, Options{})) })
	t.Run("portable", func(t *testing.T) {
		s := newServer(t, Options{})
		s.bufferDatagrams()
		anySize(t, s)
	})
}

func anySize(t *testing.T, s *Server) {
	a, _ := names(t)
	r := listen(t, s, model.UDP, balance(a))
	c := newAsker(t, r.Addr())
	for _, n := range []int{0, 1, 1500, 9000, 65000} {
		text := strings.Repeat("x", n)
		if _, received, err := c.ask(text, 10*time.Second); err != nil || received != text {
			t.Errorf("%d bytes: %d came back, %v", n, len(received), err)
		}
	}
}

// Where each session has a buffer of its own, clients that come by the thousand take a
// limited amount of memory, all are answered, and one port leaves room for another. The
// client that asks again and again keeps its session.
func TestBufferedUDPSessionsAreLimited(t *testing.T) {
	needUDP(t)
	s := newServer(t, Options{})
	s.bufferDatagrams()
	if most := s.udpSlots.limit * maxDatagram; s.udpSlots.limit == 0 || most > 256<<20 {
		t.Errorf("%d sessions have buffers of %d bytes", s.udpSlots.limit, most)
	}
	s.udpSlots.limit = 8
	a, _ := names(t)
	p := balance(a)
	p.Port = model.PortID{Service: model.ServiceName{Namespace: "kube-system", Name: "dns"}, Name: "dns", Proto: model.UDP}
	r, other := listen(t, s, model.UDP, p), listen(t, s, model.UDP, balance(a))
	const clients = 40
	busy := newAsker(t, r.Addr())
	busy.must(t)
	for range clients - 1 {
		newAsker(t, r.Addr()).must(t)
		busy.must(t)
		if n := s.Stats().Sessions; n > 4 {
			t.Fatalf("%d sessions", n)
		}
	}
	if n := r.quota.taken.Load(); n != clients {
		t.Errorf("%d sessions for %d clients: one that is in use was ended", n, clients)
	}
	if n := s.Stats().Limited; n != clients-4 {
		t.Errorf("%d sessions had no free slot, want %d", n, clients-4)
	}
	want := model.Problem{Object: "Service kube-system/dns", Why: model.WhyConnectionLimit, Detail: "port dns udp: a new client ends the session that is idle longest"}
	if got := s.Limited(); len(got) != 1 || got[0] != want {
		t.Errorf("problems %v, want %v", got, want)
	}
	newAsker(t, other.Addr()).must(t)
}

// Ports that grow take room from one that had more, and the limit holds for all together.
func TestUDPSessionsAreSharedAgain(t *testing.T) {
	needUDP(t)
	s := newServer(t, Options{})
	s.bufferDatagrams()
	s.udpSlots.limit = 12
	a, _ := names(t)
	relays := []*Relay{listen(t, s, model.UDP, balance(a)), listen(t, s, model.UDP, balance(a)), listen(t, s, model.UDP, balance(a))}
	held := func() (all []int, used int) {
		s.udpSlots.mu.Lock()
		defer s.udpSlots.mu.Unlock()
		for _, r := range relays {
			all = append(all, r.quota.held)
		}
		return all, s.udpSlots.used
	}
	for range 10 {
		newAsker(t, relays[0].Addr()).must(t)
	}
	if all, _ := held(); all[0] != 6 {
		t.Errorf("alone a port has %d of 12", all[0])
	}
	for range 10 {
		for _, r := range relays {
			newAsker(t, r.Addr()).must(t)
			if all, used := held(); used > 12 {
				t.Fatalf("%d are in use: %v", used, all)
			}
		}
	}
	eventually(t, "three ports have a quarter each, or one more for rounding", func() error {
		all, used := held()
		for _, n := range all {
			if n < 2 || n > 4 {
				return fmt.Errorf("%v, %d together", all, used)
			}
		}
		return nil
	})
}

// While ports hold all slots with idle sessions, the client of another is answered: the port with the most gives
// one up. The limit holds.
func TestUDPPortWithoutASessionGetsRoom(t *testing.T) {
	needUDP(t)
	s := newServer(t, Options{})
	s.bufferDatagrams()
	s.udpSlots.limit = 8
	a, _ := names(t)
	for range 6 { // they take 4, 2, 1, 1, and nothing is left
		r := listen(t, s, model.UDP, balance(a))
		for range 5 {
			newAsker(t, r.Addr()).must(t)
			if n := s.Stats().Sessions; n > 8 {
				t.Fatalf("%d sessions", n)
			}
		}
	}
}

func TestUDPSessionsExpire(t *testing.T) {
	needUDP(t)
	s := newServer(t, Options{UDPIdle: 50 * time.Millisecond})
	a, _ := names(t)
	r := listen(t, s, model.UDP, balance(a))
	c := newAsker(t, r.Addr())
	c.must(t)
	eventually(t, "the session ends", func() error {
		if n := s.Stats().Sessions; n != 0 {
			return fmt.Errorf("%d sessions", n)
		}
		return nil
	})
	c.must(t)
}

// A session leaves an endpoint that leaves, stays with one that drains, and
// does not go on with one that refuses.
func TestUDPSessionsMove(t *testing.T) {
	needUDP(t)
	s := newServer(t, Options{})
	a, stopA := names(t)
	b, _ := names(t)
	r := listen(t, s, model.UDP, balance(a))
	c := newAsker(t, r.Addr())
	if at := c.must(t); at != a {
		t.Fatal(at)
	}
	p := balance(b)
	p.Draining = []netip.AddrPort{a}
	r.Update(p)
	if at := c.must(t); at != a {
		t.Errorf("the session left a draining endpoint for %s", at)
	}
	r.Update(balance(b))
	if at := c.must(t); at != b {
		t.Errorf("the session is with %s", at)
	}
	r.Update(balance(a))
	if at := c.must(t); at != a {
		t.Fatal(at)
	}
	r.Update(balance(a, b))
	stopA()
	eventually(t, "the session leaves the endpoint that refuses", func() error {
		at, _, err := c.ask("x", 50*time.Millisecond)
		if err == nil && at != b {
			err = fmt.Errorf("answered by %s", at)
		}
		return err
	})
	r.Update(Same(Answer{Verdict: model.Reject}))
	if at, _, err := c.ask("x", 50*time.Millisecond); err == nil {
		t.Errorf("answered by %s", at)
	}
}

func TestUDPSticky(t *testing.T) {
	needUDP(t)
	s := newServer(t, Options{})
	a, _ := names(t)
	b, _ := names(t)
	p := balance(a, b)
	p.SessionAffinity = time.Hour
	r := listen(t, s, model.UDP, p)
	first := newAsker(t, r.Addr()).must(t)
	for range 8 {
		if at := newAsker(t, r.Addr()).must(t); at != first {
			t.Errorf("%s after %s", at, first)
		}
	}
}

func TestNoSCTP(t *testing.T) {
	s := newServer(t, Options{})
	if _, err := s.Listen(model.SCTP, anyPort, Policy{}); err == nil {
		t.Error("relays carry no SCTP")
	}
}

func TestAffinityForgets(t *testing.T) {
	const many = 3072
	a := newAffinity(newClients(maxClients), model.PortID{})
	now := time.Unix(1_700_000_000, 0)
	ep := netip.MustParseAddrPort("192.0.2.1:80")
	client := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}) }
	for n := range many {
		at := now.Add(time.Duration(n) * time.Second)
		a.set(client(n), ep, at.Add(time.Minute), at)
	}
	if n := len(a.known); n > 60 {
		t.Errorf("%d clients are remembered", n)
	}
	last := client(many - 1)
	end := now.Add((many - 1) * time.Second)
	if _, ok := a.get(last, end.Add(time.Minute-1)); !ok {
		t.Error("forgotten too early")
	}
	if _, ok := a.get(last, end.Add(time.Minute)); ok {
		t.Error("remembered too long")
	}
	a.forget(last, netip.MustParseAddrPort("192.0.2.2:80"))
	if _, ok := a.get(last, end); !ok {
		t.Error("forgotten for an endpoint that it does not have")
	}
	a.forget(last, ep)
	if _, ok := a.get(last, end); ok {
		t.Error("not forgotten")
	}
}

// However many sessions and endpoints a relay has, a change of its policy costs none of
// them, and what each session asks afterwards does not grow with the endpoints.
func TestAPolicyIsNotComparedWithEachSession(t *testing.T) {
	addr := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}) }
	run := func(n int) []time.Duration {
		p := Policy{Restricted: true}
		answer := Answer{Verdict: model.Balance}
		for i := range n {
			answer.Endpoints = append(answer.Endpoints, netip.AddrPortFrom(addr(i), 53))
			p.Draining = append(p.Draining, netip.AddrPortFrom(addr(i), 54))
			p.Allow = append(p.Allow, netip.PrefixFrom(addr(i), 32))
		}
		p.On = Same(answer).On
		u := &udpRelay{Relay: &Relay{}, sessions: map[netip.AddrPort]*session{}}
		for i := range n {
			s := &session{client: netip.AddrPortFrom(addr(i), 4000), to: choice{endpoints: answer.Endpoints, at: i}}
			u.sessions[s.client] = s
		}
		u.Update(p)
		return []time.Duration{growth.Timed(func() {
			for client, s := range u.sessions {
				if !u.lasts(s) {
					t.Fatalf("the session of %s ends", client)
				}
			}
		})}
	}
	if err := growth.Linear(16384, run); err != nil {
		t.Error(err)
	}
	u := &udpRelay{Relay: &Relay{}}
	u.mu.Lock() // as while sessions come and go
	defer u.mu.Unlock()
	if n := testing.AllocsPerRun(10, func() { u.Update(Policy{}) }); n > 1 {
		t.Errorf("a change of the policy takes %v allocations", n)
	}
}

// An endpoint that is no longer the Service's reaches none of the clients that it had.
func TestAnEndpointThatLeftSaysNothing(t *testing.T) {
	needUDP(t)
	s := newServer(t, Options{})
	gone, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(anyPort))
	if err != nil {
		t.Fatal(err)
	}
	defer gone.Close()
	b, _ := names(t)
	r := listen(t, s, model.UDP, balance(gone.LocalAddr().(*net.UDPAddr).AddrPort()))
	c := newAsker(t, r.Addr())
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	_, session, err := gone.ReadFromUDPAddrPort(buf)
	if err != nil {
		t.Fatal(err)
	}
	r.Update(balance(b))
	if _, err := gone.WriteToUDPAddrPort([]byte("too late"), session); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the session ends", func() error {
		if n := s.Stats().Sessions; n != 0 {
			return fmt.Errorf("%d sessions", n)
		}
		return nil
	})
	if at := c.must(t); at != b {
		t.Errorf("the client hears %s", at)
	}
}

// A UDP relay without datagrams holds no buffer: of thousands of them each costs little.
func TestIdleUDPRelaysHoldNoBuffer(t *testing.T) {
	if runtime.GOOS != "linux" && runtime.GOOS != "windows" {
		t.Skip("skipped: on this system a relay holds its buffer while it reads")
	}
	needUDP(t)
	const n, most = 500, 20 << 10
	s := newServer(t, Options{})
	a, _ := names(t)
	all := []*Relay{listen(t, s, model.UDP, balance(a))}
	newAsker(t, all[0].Addr()).must(t)
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range n {
		all = append(all, listen(t, s, model.UDP, balance(a)))
	}
	newAsker(t, all[n].Addr()).must(t)
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := (int(after.HeapAlloc+after.StackInuse) - int(before.HeapAlloc+before.StackInuse)) / n
	t.Logf("%d bytes for each of %d idle relays", each, n)
	if each > most {
		t.Errorf("%d bytes, want at most %d", each, most)
	}
}
