// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netns"
)

// What was programmed with another bit of the mark is known as ours: a restart
// replaces it, and cleanup need not know the bit.
func TestAnotherMarkIsOursToo(t *testing.T) {
	s := newSite(t)
	nothing := s.state()
	port := otherForHost()
	for _, mark := range []uint32{1 << 14, 1 << 20, 1 << 3} {
		s.options.Mark = mark
		s.open()
		s.set(port)
		s.same(testHost(), []*model.Port{port})
		s.close()
	}
	s.options.Mark = 1 << 14
	s.open()
	if err := s.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := s.state(); left != nothing {
		t.Errorf("left:\n%s\nbefore:\n%s", left, nothing)
	}
}

// otherForHost is a Service for which the host has another endpoint than all others.
func otherForHost() *model.Port {
	port := web(first)
	host := &port.Frontends[0].On[model.FromHost]
	host.Policy, host.Pool = model.Local, web(second).Frontends[0].On[model.FromHost].Pool
	return port
}

// A virtual server that was made, and the entry that leads to it was not, as when
// the process was killed in between, does not take the next one with it.
func TestOrphansGoAlone(t *testing.T) {
	s := newSite(t)
	s.open()
	port := otherForHost()
	s.set(port)
	s.close()
	s.run("ipset", "flush", "KUBE-FROM-HOST")
	if out := s.run("ipvsadm", "-Sn"); !strings.Contains(out, "-A -f ") {
		t.Fatalf("no virtual server by mark:\n%s", out)
	}
	s.open()
	s.set(port)
	s.same(testHost(), []*model.Port{port})
}

// policyLocal is a Service of externalTrafficPolicy Local: clients from outside have the first
// endpoint, if it is there, and this node's own clients have the second one, too.
func policyLocal(local bool, externalIPs ...netip.AddrPort) *model.Port {
	own := web(second)
	outside := model.Action{Verdict: model.Drop}
	if local {
		own, outside = web(first, second), model.Action{Pool: web(first).Pools()[0], Policy: model.Local}
	}
	on := own.Frontends[0].On
	on[model.FromOutside] = outside
	own.Frontends = append(own.Frontends[:1], model.Frontend{Kind: model.KindNodePort, At: netip.MustParseAddrPort("0.0.0.0:30080"), On: on})
	for _, at := range externalIPs {
		own.Frontends = append(own.Frontends, model.Frontend{Kind: model.KindExternalIP, At: at, On: on})
	}
	return own
}

// connect connects the client to an external IP until the second endpoint answers, which all
// states of policyLocal have.
func (s *site) connect(to netip.AddrPort) net.Conn {
	s.t.Helper()
	for range 4 {
		conn, err := s.net.Connect(netns.Call{From: client, Proto: model.TCP, To: to, Timeout: 5 * time.Second})
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { _ = conn.Close() })
		a, err := netns.Ask(conn, 5*time.Second)
		if err != nil || a.Outcome != netns.Answered {
			s.t.Fatalf("%s: %v %v", to, a, err)
		}
		if a.Server.Addr().String() == second {
			return conn
		}
	}
	s.t.Fatalf("%s never answers at %s", second, to)
	return nil
}

// This node's own clients keep their connections while endpoints and other frontends of a Service
// come and go, and while its last local endpoint does.
func TestOwnClientsKeepConnections(t *testing.T) {
	s := newSite(t)
	s.open()
	lower := netip.MustParseAddrPort("10.0.0.40:80")
	s.set(policyLocal(true, external))
	conn := s.connect(external)
	for i, port := range []*model.Port{
		policyLocal(false, external), policyLocal(true, external), policyLocal(true, lower, external), policyLocal(false, lower, external), policyLocal(true, external),
	} {
		s.set(port)
		s.same(testHost(), []*model.Port{port})
		if a, err := netns.Ask(conn, 5*time.Second); err != nil || a.Outcome != netns.Answered {
			t.Fatalf("after change %d: %v %v", i, a, err)
		}
		if i == 1 {
			s.close() // and over a restart
			s.open()
			if n := s.set(port); n != 0 {
				t.Errorf("a restart wrote %d objects", n)
			}
		}
	}
}

// Earlier programs have one virtual server by mark for all frontends of a port. It stays, and is the
// node port's.
func TestSharedServersAreTakenOver(t *testing.T) {
	s := newSite(t)
	s.open()
	s.set()
	port := policyLocal(true, external)
	var ops []ledger.Op[Key, Value]
	objects, _ := dataplane.Compile(NewCompiler(s.options), testHost(), []*model.Port{port})
	base, _ := dataplane.Compile(NewCompiler(s.options), testHost(), nil)
	shared := port.Frontends[1].At
	for k, v := range objects {
		_, there := base[k]
		if there || k.Via != ByAddress && k.Dst != shared {
			continue
		}
		if v.Via != ByAddress {
			v.ByMark = shared
		}
		ops = append(ops, ledger.Op[Key, Value]{Key: k, New: v})
	}
	c := NewCompiler(s.options)
	slices.SortFunc(ops, func(a, b ledger.Op[Key, Value]) int { return c.Rank(a.Key) - c.Rank(b.Key) })
	for i, err := range s.driver.Commit(t.Context(), ops) {
		if err != nil {
			t.Fatalf("%s: %v", ops[i].Key, err)
		}
	}
	conn := s.connect(external)
	s.close()
	s.open()
	s.set(port)
	s.same(testHost(), []*model.Port{port})
	if a, err := netns.Ask(conn, 5*time.Second); err != nil || a.Outcome != netns.Answered {
		t.Errorf("after it: %v %v", a, err)
	}
}

// crowd has other namespaces take all numbers but some, and returns their virtual servers.
func (s *site) crowd(but uint32) (all []Key) {
	for n := range maxNumber - but {
		for _, via := range []Via{ByMark, ByMarkSNAT} {
			k := Key{Kind: kindServer, Via: via, Dst: dstPort(uint16(n))}
			s.driver.marks.bind(k, held{s.driver.marks.fwmark(n+1, via), n + 1})
			all = append(all, k)
		}
	}
	return all
}

// A namespace that asks for all numbers that are left leaves some for others' virtual servers by mark, also
// after a restart, which finds whose they are.
func TestNamespacesShareNumbers(t *testing.T) {
	s := newSite(t)
	hostile, victim := manyByMark("evil", 51, 100), policyLocal(true, external)
	update := func(syncs ...[]model.Delta) (byMark [2]int) {
		t.Helper()
		s.open()
		s.crowd(60)
		var errs error
		for _, changes := range syncs {
			s.Update(changes)
			_, err := s.Sync(t.Context())
			errs = errors.Join(errs, err)
		}
		if failing := s.Health().Failures; failing[hostile.ID] == nil || failing[victim.ID] != nil || !errors.Is(errs, errNoNumber) {
			t.Errorf("%v: failing are %v", errs, failing)
		}
		return s.driver.marks.taken[model.IPv4].marks
	}
	had := update([]model.Delta{{New: hostile}}, []model.Delta{{New: victim}})
	conn := s.connect(external)
	s.close()
	// The first sync knows all: what it did not know it would delete.
	if now := update([]model.Delta{{New: hostile}, {New: victim}}); now != had {
		t.Errorf("%v virtual servers by mark, after a restart %v", had, now)
	}
	if a, err := netns.Ask(conn, 5*time.Second); err != nil || a.Outcome != netns.Answered {
		t.Errorf("after a restart: %v %v", a, err)
	}
}

// Where no number is left for a virtual server by mark, its Service fails and says so. Clients outside
// are served all the same, and this node's own are served like them. A number that is free again mends it.
func TestNoNumberIsLeft(t *testing.T) {
	s := newSite(t)
	s.open()
	others := s.crowd(0)
	port := policyLocal(true, external)
	s.Update([]model.Delta{{New: port}})
	_, err := s.Sync(t.Context())
	if failing := s.Health().Failures; len(failing) != 1 || !errors.Is(err, errNoNumber) || !errors.Is(failing[port.ID], errNoNumber) {
		t.Errorf("%v: failing are %v", err, failing)
	}
	for range 4 {
		a, err := s.net.Dial(netns.Call{From: client, Proto: model.TCP, To: external, Timeout: 5 * time.Second})
		if err != nil || a.Outcome != netns.Answered || a.Server.Addr().String() != first {
			t.Errorf("a pod: %v %v", a, err)
		}
	}
	for _, k := range others[:4] { // two for the external IP, and two for the node port
		s.driver.marks.release(k)
	}
	for begun := time.Now(); err != nil && time.Since(begun) < time.Minute; {
		time.Sleep(time.Until(s.Next()))
		_, err = s.Sync(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	s.same(testHost(), []*model.Port{port})
}
