// SPDX-License-Identifier: Apache-2.0

package track_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/track"
)

// sockets are those of a made-up machine.
type sockets struct {
	at    map[netip.AddrPort]string
	err   error
	asked int // places
}

func (s *sockets) ask(places []model.Listener) (found []model.Listener, err error) {
	s.asked += len(places)
	for _, p := range places {
		if name, is := s.at[p.At]; is {
			found = append(found, model.Listener{Proto: p.Proto, At: p.At, Name: name})
		}
	}
	return found, s.err
}

func ownHost() *model.Host {
	node := netip.MustParseAddr("192.0.2.1")
	return &model.Host{Name: "here", IPs: []netip.Addr{node}, Guard: model.Guard{NodeIPs: []netip.Addr{node}, FixedIPs: []netip.Addr{node}}}
}

// An external IP that is this node's own address is served while no process listens there: as of
// when the Service changes, and of each audit.
func TestOwnAddresses(t *testing.T) {
	s := &sockets{at: map[netip.AddrPort]string{netip.MustParseAddrPort("192.0.2.1:81"): "nginx"}}
	tr := track.New()
	tr.KeepListeners(s.ask)
	tr.SetHost(ownHost())
	flushed := func(what, a, b string) {
		t.Helper()
		tr.Flush()
		if got := at(tr, "ns", "a"); got != a {
			t.Errorf("%s: a has %q, want %q", what, got, a)
		}
		if got := at(tr, "ns", "b"); got != b {
			t.Errorf("%s: b has %q, want %q", what, got, b)
		}
	}
	tr.Set(in("ns", 1, external(service("a", "10.96.0.1", 80), "192.0.2.1")))
	tr.Set(in("ns", 2, external(service("b", "10.96.0.2", 81), "192.0.2.1")))
	flushed("at first", "192.0.2.1:80", "NodeAddress")

	s.at = map[netip.AddrPort]string{netip.MustParseAddrPort("192.0.2.1:80"): "sidecar"}
	flushed("before an audit", "192.0.2.1:80", "NodeAddress")
	if changed, err := tr.Recheck(); !changed || err != nil {
		t.Errorf("audit: changed %t, %v", changed, err)
	}
	flushed("after an audit", "NodeAddress", "192.0.2.1:81")
	if changed, err := tr.Recheck(); changed || err != nil {
		t.Errorf("audit without a change: %t, %v", changed, err)
	}

	s.at, s.err = nil, errors.New("no permission")
	if changed, err := tr.Recheck(); changed || err == nil {
		t.Errorf("audit that fails: changed %t, %v", changed, err)
	}
	flushed("what cannot be read stays", "NodeAddress", "192.0.2.1:81")
	tr.Set(in("ns", 3, external(service("c", "10.96.0.3", 82), "192.0.2.1")))
	tr.Flush()
	if got := at(tr, "ns", "c"); got != "NodeAddress" {
		t.Errorf("what is not known to be free is not served: %q", got)
	}
	s.err = nil
	if _, err := tr.Recheck(); err != nil {
		t.Error(err)
	}
	tr.Flush()
	if got := at(tr, "ns", "c"); got != "192.0.2.1:82" {
		t.Errorf("once it is known: %q", got)
	}
}

// An address that becomes this node's own is asked about then.
func TestAddressBecomesOwn(t *testing.T) {
	s := &sockets{at: map[netip.AddrPort]string{netip.MustParseAddrPort("192.0.2.1:80"): "nginx"}}
	tr := track.New()
	tr.KeepListeners(s.ask)
	before := ownHost()
	before.IPs, before.Guard.NodeIPs, before.Guard.FixedIPs = nil, nil, nil
	tr.SetHost(before)
	tr.Set(in("ns", 1, external(service("a", "10.96.0.1", 80), "192.0.2.1")))
	tr.Set(in("ns", 1, external(service("b", "10.96.0.2", 81), "192.0.2.1")))
	tr.Flush()
	if s.asked > 0 {
		t.Errorf("asked about %d places of others", s.asked)
	}
	now := ownHost()
	now.IPs = nil
	tr.SetHost(now)
	tr.Flush()
	if a, b := at(tr, "ns", "a"), at(tr, "ns", "b"); a != "NodeAddress" || b != "192.0.2.1:81" {
		t.Errorf("a has %q, b %q", a, b)
	}
}

// A change asks about its own places alone, however many there are, and Services without such addresses about none.
func TestOwnAddressesCostTheirChange(t *testing.T) {
	for _, n := range []int{10, 1000} {
		s := &sockets{}
		tr := track.New()
		tr.KeepListeners(s.ask)
		tr.SetHost(ownHost())
		for i := range n {
			tr.Set(in("ns", 1, external(service(fmt.Sprint("s", i), fmt.Sprintf("10.96.%d.%d", 1+i/250, i%250), uint16(11000+i)), "192.0.2.1")))
		}
		tr.Flush()
		s.asked = 0
		before := tr.Stats().Resolved
		tr.Set(in("ns", 1, external(service("new", "10.97.0.1", 80), "192.0.2.1")))
		tr.Set(in("ns", 1, service("plain", "10.97.0.2", 80)))
		tr.Flush()
		if got := tr.Stats().Resolved - before; got != 2 || s.asked != 1 {
			t.Errorf("%d Services: %d resolved, %d places asked about", n, got, s.asked)
		}
		tr.Delete(&model.Service{Name: name("new")})
		tr.Flush()
		s.asked = 0
		if _, err := tr.Recheck(); err != nil || s.asked != n {
			t.Errorf("an audit asks about %d places: %v", s.asked, err)
		}
	}
}

// However many places a namespace asks for, an audit asks about some, and about all of others that have few.
func TestRecheckAsksInTurns(t *testing.T) {
	s := &sockets{at: map[netip.AddrPort]string{}}
	tr := track.New()
	tr.KeepListeners(s.ask)
	tr.SetHost(ownHost())
	const services, ports = 400, 100
	for i := range services {
		numbers := make([]uint16, ports)
		for p := range numbers {
			numbers[p] = uint16(1000 + i*ports + p)
		}
		svc := in("evil", 1, external(service(fmt.Sprint("s", i), fmt.Sprintf("10.97.%d.%d", i/250, 1+i%250), numbers...), "192.0.2.1"))
		tr.Set(svc)
	}
	tr.Set(in("shop", 2, external(service("web", "10.96.0.1", 80), "192.0.2.1")))
	tr.Set(in("shop", 2, external(service("db", "10.96.0.2", 81), "192.0.2.1")))
	tr.Flush()
	of := func(name string) string { tr.Flush(); return at(tr, "shop", name) }
	first := netip.MustParseAddrPort("192.0.2.1:1000")
	for _, listens := range []bool{true, false} {
		if listens {
			s.at[netip.MustParseAddrPort("192.0.2.1:80")], s.at[first] = "sshd", "sshd"
		} else {
			clear(s.at)
		}
		before := s.asked
		if _, err := tr.Recheck(); err != nil {
			t.Fatal(err)
		}
		if asked := s.asked - before; asked < 10_000 || asked > 17_000 {
			t.Errorf("an audit asks about %d of %d places", asked, services*ports+2)
		}
		want := map[bool]string{true: "NodeAddress", false: "192.0.2.1:80"}[listens]
		if web, db := of("web"), of("db"); web != want || db != "192.0.2.1:81" {
			t.Errorf("with a process %t, web has %q and db %q", listens, web, db)
		}
	}
	s.at[first] = "sshd"
	for range 3 { // audits
		if _, err := tr.Recheck(); err != nil {
			t.Fatal(err)
		}
	}
	tr.Flush()
	if got := at(tr, "evil", "s0"); got == "192.0.2.1:1000" || !strings.Contains(got, "NodeAddress") {
		t.Errorf("after three audits it has %q", got)
	}
}
