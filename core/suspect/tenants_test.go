// SPDX-License-Identifier: Apache-2.0

package suspect_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/suspect"
)

// Each test here is a tenant who attacks another: evil has Services, endpoints and clients of its own,
// and may write any address and any node into its EndpointSlices.

// evil adds a Service of the attacker with endpoints, to which its clients connect.
func (w *world) evil(perSecond int, endpoints ...suspect.Endpoint) *service {
	n := len(w.services)
	s := service{namespace: "evil", frontend: netip.AddrPortFrom(ip("10.96.%d.%d", 1+n/250, n%250), 80), perSecond: perSecond}
	for i, e := range endpoints {
		if e.Namespace = "evil"; !e.At.IsValid() {
			e.At = netip.AddrPortFrom(ip("10.245.%d.%d", n, 1+i), 8080)
		}
		s.endpoints = append(s.endpoints, e)
	}
	for c := range 2 {
		s.clients = append(s.clients, ip("10.244.1.%d", 200+c))
	}
	w.services, w.at = append(w.services, s), nil
	return &w.services[n]
}

// victims are the ejected addresses of the first Services, which are not the attacker's.
func (w *world) victims() (all []string) {
	return slices.DeleteFunc(w.suspects(), func(a string) bool { return strings.HasPrefix(a, "10.245.") })
}

func (w *world) wantVictims(want ...string) {
	w.t.Helper()
	if got := w.victims(); !slices.Equal(got, want) {
		w.t.Fatalf("ejected: %v, want %v of the victim's; verdicts: %v", got, want, w.verdict)
	}
}

// Endpoints of an attacker that answer and then drop everything are on the victim's nodes, as far as their
// EndpointSlices say: the victim's stay.
func TestAttackerOnTheSameNode(t *testing.T) {
	w := newWorld(t, 1, 5, 3, 100)
	for s := range 50 {
		var on []suspect.Endpoint
		for n := range 5 {
			on = append(on, suspect.Endpoint{Node: fmt.Sprint("node-", 2+n)}, suspect.Endpoint{Node: fmt.Sprint("node-", 2+n)})
		}
		w.evil(20, on...)
		_ = s
	}
	w.run(5 * time.Second)
	for range 6 {
		for _, s := range w.services[1:] {
			for _, e := range s.endpoints {
				w.dead[e.At.Addr()] = true
			}
		}
		w.run(10 * time.Second)
		w.wantVictims()
		for _, s := range w.services[1:] {
			for _, e := range s.endpoints {
				delete(w.dead, e.At.Addr())
			}
		}
		w.run(12 * time.Second)
		w.wantVictims()
	}
}

// SYNs that an endpoint drops because of what is in them, or where they come from, say nothing of it,
// whether it answers our SYNs or never has.
func TestAttackerSendsWhatIsDropped(t *testing.T) {
	for _, c := range []string{"it answers us", "it never did"} {
		t.Run(c, func(t *testing.T) {
			w := newWorld(t, 1, 5, 3, 5)
			a := endpoint(2, 0)
			w.deaf[a] = c == "it never did"
			evil := w.evil(0, suspect.Endpoint{At: w.services[0].endpoints[2].At, Node: "node-4"})
			w.run(10 * time.Second)
			evil.perSecond = 20
			for _, client := range evil.clients {
				w.denied[[2]netip.Addr{client, a}] = true
			}
			w.run(5 * time.Minute)
			w.wantVictims()
			if len(w.verdict) > 0 {
				t.Errorf("%v", w.verdict)
			}
		})
	}
}

// An endpoint whose policy drops our SYNs, though it has answered one before, can be ejected once, by who sends
// what it drops while nobody else connects to it; from the first answer after that it is not judged any more.
func TestPolicyThatIsNew(t *testing.T) {
	w := newWorld(t, 1, 5, 3, 5)
	a := endpoint(2, 0)
	evil := w.evil(0, suspect.Endpoint{At: w.services[0].endpoints[2].At, Node: "node-4"})
	w.run(10 * time.Second)
	w.deaf[a] = true
	evil.perSecond = 20
	for _, client := range evil.clients {
		w.denied[[2]netip.Addr{client, a}] = true
	}
	w.run(6 * time.Minute)
	before := len(w.verdict)
	w.run(20 * time.Minute)
	w.wantVictims()
	if before > 2 || len(w.verdict) > before {
		t.Errorf("%v", w.verdict)
	}
}

// A short failure of an endpoint whose policy drops what comes from nodes has no consequence.
func TestBlipOfAGuardedEndpoint(t *testing.T) {
	w := newWorld(t, 1, 5, 3, 100)
	w.deaf[endpoint(2, 0)] = true
	w.run(10 * time.Second)
	w.dead[endpoint(2, 0)] = true
	w.run(2500 * time.Millisecond)
	w.dead[endpoint(2, 0)] = false
	w.run(time.Minute)
	if len(w.verdict) > 0 {
		t.Error(w.verdict)
	}
}

// Whatever else an attacker has that is dead, and on whichever nodes it says that is, a dead endpoint of a victim is
// found as soon as without.
func TestAttackerTurnsFailoverOff(t *testing.T) {
	many := func(n int, node func(i int) string) (all []suspect.Endpoint) {
		for i := range n {
			all = append(all, suspect.Endpoint{Node: node(i)})
		}
		return all
	}
	for _, c := range []struct {
		name   string
		attack func(w *world)
	}{
		{"nobody", func(*world) {}},
		{"two invented nodes with 101 dead addresses each", func(w *world) {
			w.evil(400, many(202, func(i int) string { return fmt.Sprint("made-up-", i%2) })...)
		}},
		{"150 invented nodes", func(w *world) {
			w.evil(400, many(150, func(i int) string { return fmt.Sprint("a-", i) })...)
		}},
		{"2,000 addresses on one node", func(w *world) {
			for range 10 {
				w.evil(200, many(200, func(int) string { return "node-2" })...)
			}
		}},
		{"the victim's addresses in its own slices", func(w *world) {
			var all []suspect.Endpoint
			for i, e := range w.services[0].endpoints {
				e.Node = fmt.Sprint("made-up-", i)
				all = append(all, e, suspect.Endpoint{Node: fmt.Sprint("more-", i)})
			}
			w.evil(100, all...)
		}},
		{"the victim's addresses on ports that nobody serves", func(w *world) {
			var all []suspect.Endpoint
			for _, e := range w.services[0].endpoints {
				for port := range 20 {
					e.At = netip.AddrPortFrom(e.At.Addr(), uint16(10000+port))
					all = append(all, e)
					w.shut[e.At] = true
				}
			}
			w.evil(200, all...)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 1, 5, 3, 100)
			c.attack(w)
			for _, s := range w.services[1:] {
				for _, e := range s.endpoints {
					if strings.HasPrefix(e.At.Addr().String(), "10.245.") {
						w.dead[e.At.Addr()] = true
					}
				}
			}
			w.run(20 * time.Second)
			w.wantVictims()
			for n := range 2 { // one node after the other
				w.kill(n)
				w.run(1200 * time.Millisecond)
				w.wantVictims(endpoint(n, 0).String())
				w.revive(n)
				w.run(12 * time.Second)
				w.wantVictims()
			}
		})
	}
}

// An attacker whose endpoints answered once, and are as many as fit, keeps neither a victim's dead
// endpoint in use nor a place in the table for itself alone: that is full is said.
func TestAttackerFillsTheTable(t *testing.T) {
	w := newWorld(t, 1, 5, 3, 100)
	for range 30 {
		var all []suspect.Endpoint
		for i := range 250 {
			all = append(all, suspect.Endpoint{Node: fmt.Sprint("made-up-", i)})
		}
		w.evil(60, all...)
	}
	w.run(5 * time.Second)
	for _, s := range w.services[1:] {
		for _, e := range s.endpoints {
			w.dead[e.At.Addr()] = true
		}
	}
	w.run(20 * time.Second)
	w.kill(2)
	w.run(1500 * time.Millisecond)
	w.wantVictims("10.244.4.10")
	w.run(30 * time.Second)
	w.wantVictims("10.244.4.10")
	if !w.last.Full {
		t.Error("the table is not said to be full")
	}
}

// Unanswered SYNs to a healthy endpoint do not delay that its death is noticed.
func TestAttackerBeforeADeath(t *testing.T) {
	w := newWorld(t, 1, 5, 3, 100)
	evil := w.evil(20, suspect.Endpoint{At: w.services[0].endpoints[2].At, Node: "node-4"})
	w.run(5 * time.Second)
	for _, client := range evil.clients {
		w.denied[[2]netip.Addr{client, endpoint(2, 0)}] = true
	}
	for range 10 {
		w.run(time.Duration(20000+w.rng.IntN(2000)) * time.Millisecond)
		w.wantVictims()
		w.kill(2)
		w.run(2 * time.Second)
		w.wantVictims("10.244.4.10")
		w.revive(2)
	}
}

// All endpoints of a node that returns are back in time, also where others of it stay dead.
func TestPartialReturn(t *testing.T) {
	w := newWorld(t, 40, 5, 3, 20)
	w.run(10 * time.Second)
	w.kill(2)
	w.run(30 * time.Second)
	if n := len(w.suspects()); n != 40 {
		t.Fatalf("%d ejected, want 40", n)
	}
	w.revive(2)
	for s := range 3 {
		w.dead[endpoint(2, s)] = true
	}
	w.run(10500 * time.Millisecond)
	w.want("10.244.4.10", "10.244.4.11", "10.244.4.12")
}

// An endpoint to which one client of a victim's connects now and then is ejected as any: two clients
// that wait need not come at once.
func TestFewClients(t *testing.T) {
	w := newWorld(t, 1, 2, 4, 2)
	w.run(time.Minute)
	w.kill(1)
	w.run(8 * time.Second)
	w.want("10.244.3.10")
}
