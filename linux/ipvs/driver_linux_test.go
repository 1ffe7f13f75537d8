// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/conformance"
	"github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/linux/virtualserver"
)

// Random worlds are programmed one over the other: each is in the kernel as
// compiled from scratch, and a restart writes nothing.
func TestWorldsComeBackAsWritten(t *testing.T) {
	s := newSite(t)
	for seed := range uint64(8) {
		t.Run(fmt.Sprintf("seed-%d", seed), func(t *testing.T) {
			s.t = t
			world := conformance.RandomWorld(conformance.NewRand(seed))
			ports := world.Ports()
			s.open()
			s.SetHost(world.Host)
			s.set(ports...)
			s.same(world.Host, ports)
			s.close()
			s.open()
			s.SetHost(world.Host)
			if n := s.set(ports...); n != 0 {
				t.Errorf("a restart on the right objects wrote %d", n)
			}
			s.close()
		})
	}
	s.t = t
}

// An endpoint that goes keeps its connections, gets no new ones, and goes when
// its time is over, also across a restart.
func TestDrain(t *testing.T) {
	s := newSite(t)
	s.open()
	s.set(web(first))
	conn, err := s.net.Connect(netns.Call{From: client, Proto: model.TCP, To: vip, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ask := func() {
		t.Helper()
		a, err := netns.Ask(conn, time.Second)
		if err != nil || a.Outcome != netns.Answered || a.Server.Addr().String() != first {
			t.Fatalf("the connection that was there: %v %v", a, err)
		}
	}
	ask()
	s.set(web(second))
	for range 5 {
		if got := s.dial(); got != second {
			t.Errorf("a new connection reached %s", got)
		}
	}
	s.driver.drains.check()
	ask()
	s.close()
	s.open()
	if n := s.set(web(second)); n != 0 {
		t.Errorf("a restart while an endpoint drains wrote %d objects", n)
	}
	s.driver.drains.check()
	ask()
	if out := s.run("ipvsadm", "-Ln"); !strings.Contains(out, first+":8080") {
		t.Errorf("it does not drain:\n%s", out)
	}
	s.driver.drains.now = func() time.Time { return time.Now().Add(2 * drainLimit) }
	s.driver.drains.check()
	if out := s.run("ipvsadm", "-Ln"); strings.Contains(out, first+":8080") {
		t.Errorf("it drains forever:\n%s", out)
	}
}

// destinations are the endpoints that new connections to vip go to.
func (s *site) destinations() (all []string) {
	s.t.Helper()
	have, err := s.driver.kernel.servers.Destinations(virtualserver.ID{Addr: vip, Proto: model.TCP})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, d := range have {
		if d.Weight > 0 {
			all = append(all, d.Addr.Addr().String())
		}
	}
	return all
}

// An endpoint that cannot be added does not leave a Service without one: the last that is there goes
// when another has come. Where others are there, what is gone goes.
func TestLastEndpointStaysUntilAnotherComes(t *testing.T) {
	const impossible = "224.0.0.1" // the kernel has no destination with a multicast address
	s := newSite(t)
	s.open()
	s.set(web(first))
	port := web(impossible)
	s.Update([]model.Delta{{Old: s.ports[port.ID], New: port}})
	if _, err := s.Sync(t.Context()); err == nil {
		t.Fatal("a multicast address is an endpoint")
	}
	if got := s.dial(); got != first {
		t.Errorf("a new connection reached %q", got)
	}
	next := web(impossible, second)
	s.Update([]model.Delta{{Old: port, New: next}})
	for begun := time.Now(); time.Since(begun) < 5*time.Second && slices.Contains(s.destinations(), first); {
		_, _ = s.Sync(t.Context()) // the other endpoint fails still
		time.Sleep(100 * time.Millisecond)
	}
	if got := s.destinations(); !slices.Equal(got, []string{second}) {
		t.Errorf("new connections go to %v", got)
	}
}

// A reading that overlaps the deletion of a virtual server may report its destinations after
// that: they are forgotten, and take no number for a server that is not there.
func TestDrainOfAServerThatIsGone(t *testing.T) {
	s := newSite(t)
	s.open()
	d := s.driver.drains
	for _, via := range []Via{ByAddress, ByMark, ByMarkSNAT} {
		gone := Key{Kind: kindServer, Proto: model.TCP, Via: via, Dst: netip.AddrPortFrom(vip.Addr(), 1)}
		d.add(gone.dest(vip))
	}
	for range 2 { // the second forgets servers without destinations
		d.check()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failing || len(d.deadlines) > 0 || len(d.marks.marks) > 0 {
		t.Errorf("failing: %v, they drain: %v, numbers: %v", d.failing, d.deadlines, d.marks.marks)
	}
}

// checksByHand has destinations that drain be looked at by nobody but the test.
func (s *site) checksByHand() *drains {
	s.t.Helper()
	had := s.driver.drains
	had.stop()
	d := &drains{log: had.log, marks: had.marks, now: time.Now, deadlines: map[Key]map[Key]time.Time{}, quit: make(chan struct{}), done: make(chan struct{})}
	close(d.done)
	err := s.net.Do(netns.Node, func() (err error) {
		d.kernel, err = connect()
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.driver.drains, s.driver.servers.drains = d, d
	return d
}

// A Service whose many endpoints have gone at once does not hold up other Services: while its destinations are
// deleted, a Commit can come in between.
func TestManyThatDrainHoldUpNobody(t *testing.T) {
	const many = 200
	s := newSite(t)
	s.open()
	d := s.checksByHand()
	all := []string{first}
	for i := range many {
		all = append(all, fmt.Sprint("10.244.9.", 1+i))
	}
	s.set(web(all...))
	s.set(web(first))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.check()
	}()
	server, seen := Key{Kind: kindServer, Proto: model.TCP, Dst: vip}, map[int]bool{}
	for checking := true; checking; {
		select {
		case <-ended:
			checking = false
		case <-time.After(50 * time.Microsecond):
		}
		d.mu.Lock()
		seen[len(d.deadlines[server])] = true
		d.mu.Unlock()
	}
	if delete(seen, many); !seen[0] || len(seen) == 1 {
		t.Errorf("while %d destinations were deleted, nothing else came in between: %v", many, seen)
	}
	if got := s.destinations(); !slices.Equal(got, []string{first}) {
		t.Errorf("left are %v", got)
	}
}

// While an endpoint drains, new connections are made to the other one, whatever the
// scheduler would have chosen.
func TestEverySchedulerLeavesADrainingEndpoint(t *testing.T) {
	for _, scheduler := range virtualserver.Schedulers() {
		t.Run(scheduler, func(t *testing.T) {
			s := newSite(t)
			s.options.Scheduler = scheduler
			s.open()
			if has, err := s.driver.kernel.servers.Available(flagOwned, scheduler); err != nil {
				t.Fatal(err)
			} else if len(has) == 0 {
				t.Skip("this kernel has no ip_vs_" + scheduler)
			}
			s.set(web(first, second))
			conn, err := s.net.Connect(netns.Call{From: client, Proto: model.TCP, To: vip, Timeout: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			a, err := netns.Ask(conn, time.Second)
			if err != nil || a.Outcome != netns.Answered {
				t.Fatal(a, err)
			}
			stays := map[string]string{first: second, second: first}[a.Server.Addr().String()]
			s.set(web(stays))
			for i := range 40 {
				if got := s.dial(); got != stays {
					t.Fatalf("new connection %d: %s, not %s", i+1, got, stays)
				}
			}
		})
	}
}

// An endpoint that comes back while it drains is used again, and one that is
// idle goes at once.
func TestDrainingEndpointComesBack(t *testing.T) {
	s := newSite(t)
	s.open()
	s.set(web(first))
	s.set(web(second))
	s.set(web(first))
	if got := s.dial(); got != first {
		t.Errorf("reached %s", got)
	}
	s.driver.drains.check()
	if out := s.run("ipvsadm", "-Ln"); strings.Contains(out, second) || !strings.Contains(out, first) {
		t.Errorf("after the check:\n%s", out)
	}
	s.same(testHost(), []*model.Port{web(first)})
}

// Clients with affinity leave an endpoint that drains.
func TestAffinityLeavesADrainingEndpoint(t *testing.T) {
	s := newSite(t)
	s.open()
	both, one := web(first, second), web(second)
	both.SessionAffinity, one.SessionAffinity = time.Hour, time.Hour
	s.set(both)
	was := s.dial()
	for range 5 {
		if got := s.dial(); got != was {
			t.Fatalf("%s after %s", got, was)
		}
	}
	stays := map[string]string{first: second, second: first}[was]
	one = web(stays)
	one.SessionAffinity = time.Hour
	s.set(one)
	for range 5 {
		if got := s.dial(); got != stays {
			t.Fatalf("reached %s, want %s", got, stays)
		}
	}
}

// Where a server that goes with its destinations stays, they have stayed, too: it may be wanted again before it is
// deleted, and would have them still.
func TestDestinationsStayWithTheirServer(t *testing.T) {
	server := Key{Kind: kindServer, Family: model.IPv4, Proto: model.TCP, Dst: netip.MustParseAddrPort("10.96.0.1:80")}
	other := server
	other.Dst = netip.MustParseAddrPort("10.96.0.2:80")
	ops := []ledger.Op[Key, Value]{
		{Verb: ledger.Delete, Key: server.dest(netip.MustParseAddrPort("10.244.1.2:80"))},
		{Verb: ledger.Delete, Key: other.dest(netip.MustParseAddrPort("10.244.1.2:80"))},
		{Verb: ledger.Delete, Key: other},
		{Verb: ledger.Delete, Key: server},
	}
	errs := []error{nil, nil, nil, ledger.ErrUnknown}
	(&servers{}).begin(ops).end(errs)
	if want := []error{ledger.ErrUnknown, nil, nil, ledger.ErrUnknown}; !slices.Equal(errs, want) {
		t.Errorf("got %v, want %v", errs, want)
	}
}
