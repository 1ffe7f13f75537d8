// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"net/netip"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// Connections that a client makes at once, before any of them is established, go to one
// endpoint; so do those that find it dead, and the client is not bound to one that never
// answered.
func TestConnectionsAtOnceShareAnEndpoint(t *testing.T) {
	const clients, connections, timeout = 20, 5, time.Hour
	a, b, now := Balance(weightedPool(1, 1, 1, 1), model.DefaultScheduler), &balancer{affinity: newAffinity(newClients(maxClients), model.PortID{})}, time.Unix(1000, 0)
	split := func(all []choice) bool {
		for _, c := range all {
			if c.endpoint() != all[0].endpoint() {
				return true
			}
		}
		return false
	}
	first, later := 0, 0
	for i := range clients {
		var all []choice
		for j := range connections {
			from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), uint16(1024+j))
			all = append(all, b.choose(model.FromOutside, from, a, timeout, now))
		}
		if split(all) {
			first++
		}
		dead := all[0].endpoint()
		for j := range all {
			all[j].failed(now)
		}
		if split(all) || all[0].endpoint() == dead {
			later++
		}
		if i%2 == 0 {
			all[0].connected(now)
		}
	}
	if first > 0 || later > 0 {
		t.Errorf("%d of %d clients are spread over endpoints, %d after a failure", first, clients, later)
	}
	for i := range clients {
		_, kept := b.affinity.get(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), now.Add(time.Minute))
		if kept != (i%2 == 0) {
			t.Errorf("client %d, connected: %t, is bound after a minute: %t", i, i%2 == 0, kept)
		}
	}
}

// When there is no room, the largest relay of the largest namespace forgets the client that was idle
// longest: those of another namespace stay, and so do those of the attacker's other Service up to an equal
// share. A Problem names the Service.
func TestAffinityIsSharedByNamespace(t *testing.T) {
	const limit, few, flood = 1200, 300, 10000
	s := newServer(t, Options{})
	s.clients = newClients(limit)
	open := func(namespace, name string) *affinity {
		t.Helper()
		r, err := s.Listen(model.UDP, anyPort, Policy{Port: model.PortID{Service: model.ServiceName{Namespace: namespace, Name: name}, Proto: model.UDP}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
		return r.balancer.affinity
	}
	victim, attacker, other := open("victim", "web"), open("attacker", "flooded"), open("attacker", "web")
	now, at := time.Now(), netip.MustParseAddrPort("10.244.1.2:80")
	client := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}) }
	add := func(a *affinity, first, n int) {
		for i := range n {
			a.set(client(first+i), at, now.Add(time.Hour), now)
		}
	}
	has := func(a *affinity, first, n int) (count int) {
		for i := range n {
			if _, ok := a.get(client(first+i), now); ok {
				count++
			}
		}
		return count
	}
	add(victim, 0, few)
	add(other, 0, few)
	if p := s.Limited(); len(p) != 0 {
		t.Errorf("%v while there is room", p)
	}
	add(attacker, 0, flood)
	add(victim, few, few)
	if n := has(victim, 0, 2*few); n != 2*few {
		t.Errorf("%d of %d clients of the victim are remembered", n, 2*few)
	}
	if n := has(other, 0, few); n != few {
		t.Errorf("%d of %d clients of the attacker's other Service are remembered", n, few)
	}
	if n := limit - 3*few; has(attacker, flood-n, n) != n || len(attacker.known) != n {
		t.Errorf("%d clients of the flooded Service, want the latest %d", len(attacker.known), n)
	}
	if p := s.Limited(); len(p) != 1 || p[0].Object != "Service attacker/flooded" || p[0].Why != model.WhyFull {
		t.Errorf("%v", p)
	}
	attacker.end()
	if add(attacker, 0, few); s.clients.n != 3*few || len(s.Limited()) != 0 {
		t.Errorf("%d clients, want %d; %v", s.clients.n, 3*few, s.Limited())
	}
	now = now.Add(2 * time.Hour)
	if add(victim, 2*few, few); len(victim.known) != few || has(other, 0, few) != 0 {
		t.Errorf("%d clients after the others' time, want %d", len(victim.known), few)
	}
	victim.end()
	other.end()
	if c := s.clients; c.n != 0 || len(c.named) != 0 || len(c.tenants) != 0 {
		t.Errorf("left: %+v", c)
	}
}

// The clients of an endpoint that is silent are spread over all others, and each tries every endpoint once.
func TestFailuresSpreadOverAllOthers(t *testing.T) {
	const endpoints, clients = 10, 3000
	a, b, now := Balance(weightedPool(1, 1, 1, 1, 1, 1, 1, 1, 1, 1), model.DefaultScheduler), &balancer{}, time.Unix(1000, 0)
	second := map[netip.AddrPort]int{}
	for i := range clients {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 1}), uint16(1024+i))
		c := b.choose(model.FromOutside, from, a, 0, now)
		tried := map[netip.AddrPort]bool{c.endpoint(): true}
		for n := range endpoints - 1 {
			if c.failed(now); n == 0 && i%endpoints == 0 {
				second[c.endpoint()]++
			}
			tried[c.endpoint()] = true
		}
		if len(tried) != endpoints {
			t.Fatalf("client %d tried %d endpoints of %d", i, len(tried), endpoints)
		}
	}
	if len(second) != endpoints-1 {
		t.Errorf("the 300 clients of one endpoint went on to %d others: %v", len(second), second)
	}
}
