// SPDX-License-Identifier: Apache-2.0

package suspect

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/sleep"
)

const (
	maxWaits  = 2 // flows of one address that are followed, each of another client: enough to accuse it
	maxPorts  = 6 // ports of an address that get a SYN
	maxClaims = 8 // namespaces of an address that are remembered
	maxOthers = 3 // endpoints of other nodes that get a SYN, for each Service whose clients wait

	// recent is for how long a flow without an answer counts as one that waits now.
	recent = 10 * time.Second
	// checkAgain is when a flow that waits is looked at again, while nothing else is wrong.
	checkAgain = time.Second

	synAgain   = 100 * time.Millisecond // between two SYNs: one may be lost
	patience   = 200 * time.Millisecond // after the second: longer than a round trip inside a cluster
	firstProbe = time.Second            // after an ejection, then ever later
	lastProbe  = 10 * time.Second
)

// address is what is known of the address of an endpoint on another node. Its times are
// those of looks: what a look shows has happened since the one before.
type address struct {
	addr      netip.Addr
	namespace string    // for which it counts
	claims    []claim   // what EndpointSlices say of it, when it was last looked up
	used      time.Time // a connection to it was last seen
	heard     time.Time // it has answered anybody, as last known
	served    time.Time // it has answered a client

	waits   []wait
	checked time.Time // when these were last checked
	dropped time.Time // when a flow that waits was last given up: more may wait than are in waits

	port    netip.AddrPort // the last port that answered Tandem's SYN; invalid if none has
	replied time.Time      // when that SYN was sent
	deaf    time.Time      // when one was sent after that, without an answer; zero if none was
	greeted time.Time      // when one was last sent though nothing was wrong
	ended   time.Time      // the last suspicion has
	rest    time.Time      // none before, unless clients get no answers any more

	suspicion *suspicion // nil for none
	ejection  *ejection  // nil for none
	back      time.Time  // not silent any more since; zero once it has its full share again
}

// claim is the node of an address by the EndpointSlices of a namespace.
type claim struct{ namespace, node string }

// wait is a flow without an answer.
type wait struct {
	flow  Flow
	since time.Time
}

// suspicion is that an address is silent. The port that has answered us gets two SYNs, and with the second one
// its other ports get one.
type suspicion struct {
	opened time.Time
	since  time.Time // when the oldest waiting entry began
	ports  []netip.AddrPort
	first  time.Time        // when the first SYNs were sent; zero before
	second time.Time        // when the second ones were
	others []netip.AddrPort // endpoints of the same Services on other nodes
	alive  bool             // one of these has answered, or there are none
}

// ejection is that of an address.
type ejection struct {
	since  time.Time
	name   string // of the node, if no other endpoint of it has answered since; else the address
	detail string // the evidence
	ports  []netip.AddrPort
	next   time.Time // of the next SYN that asks whether it is back
	sent   time.Time // of the last one
	asked  time.Time // of the one before that: no answer has come to it
	pause  time.Duration
}

// hear takes an answer to anybody, of a time. What waits since before that is no evidence any
// more: those packets were dropped on their way.
func (a *address) hear(at, now time.Time) {
	if at.After(a.heard) {
		a.heard = at
	}
	a.give(now, func(w wait) bool { return w.since.Before(a.heard) })
}

// give gives up some of the flows that wait.
func (a *address) give(now time.Time, up func(wait) bool) {
	n := len(a.waits)
	if a.waits = slices.DeleteFunc(a.waits, up); len(a.waits) < n {
		a.dropped = now
	}
	if len(a.waits) == 0 {
		a.waits = nil // most never wait again
	}
}

// wait adds a flow without an answer.
func (a *address) wait(f Flow, since, now time.Time) {
	same := func(w wait) bool { return w.flow.Client.Addr() == f.Client.Addr() }
	if since.Before(a.heard) || len(a.waits) == maxWaits || slices.ContainsFunc(a.waits, same) {
		a.dropped = now
		return
	}
	if a.waits == nil {
		a.waits = make([]wait, 0, maxWaits)
	}
	a.waits = append(a.waits, wait{f, since})
}

// accused reports whether enough clients wait for a suspicion.
func (a *address) accused() bool { return len(a.waits) == maxWaits }

// rested reports whether there may be another suspicion.
func (a *address) rested(now time.Time) bool {
	return !now.Before(a.rest) || a.served.After(a.ended) && now.Sub(a.served) >= quiet
}

// since returns when the oldest waiting entry began.
func (a *address) since() time.Time {
	return slices.MinFunc(a.waits, func(v, w wait) int { return v.since.Compare(w.since) }).since
}

// newAddress returns an address, of which EndpointSlices say something. Of several namespaces it counts
// for the one with the fewest entries, so that other namespaces listing it, too, costs no one room.
func newAddress(addr netip.Addr, on []Endpoint, entries map[string]int, now time.Time) *address {
	a := &address{addr: addr, claims: claimsOf(on), used: now}
	for i, c := range a.claims {
		if i == 0 || entries[c.namespace] < entries[a.namespace] {
			a.namespace = c.namespace
		}
	}
	return a
}

// idle reports whether the address needs no action.
func (a *address) idle() bool {
	return len(a.waits) == 0 && a.suspicion == nil && a.ejection == nil && a.back.IsZero()
}

// before reports whether an entry gives way before another one: the ejected last, and those that have something
// to do before them; among equals by the time of their last connection.
func (a *address) before(b *address) bool {
	rank := func(a *address) int {
		switch {
		case a.ejection != nil:
			return 2
		case !a.idle():
			return 1
		}
		return 0
	}
	if rank(a) != rank(b) {
		return rank(a) < rank(b)
	}
	return a.used.Before(b.used)
}

// know takes what EndpointSlices say of the address.
func (a *address) know(on []Endpoint) { a.claims = claimsOf(on) }

func claimsOf(on []Endpoint) (all []claim) {
	for _, e := range on {
		c := claim{e.Namespace, e.Node}
		if len(all) < maxClaims && !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	return all
}

// on returns the node of the address by the EndpointSlices of a namespace; empty if unknown.
func (a *address) on(namespace string) string {
	for _, c := range a.claims {
		if c.namespace == namespace {
			return c.node
		}
	}
	return ""
}

// portsOf returns the ports of an address that get a SYN: the one that has answered ours, those
// that clients wait for, and some of each namespace in turn, so that none fills the list with
// ports without a listener. One that answers on any port is alive.
func (a *address) portsOf(on []Endpoint) (ports []netip.AddrPort) {
	add := func(at netip.AddrPort) bool {
		if !slices.Contains(ports, at) {
			ports = append(ports, at)
		}
		return len(ports) < maxPorts
	}
	if a.port.IsValid() {
		add(a.port)
	}
	of, names := map[string][]netip.AddrPort{}, []string(nil)
	for _, e := range on {
		if of[e.Namespace] == nil {
			names = append(names, e.Namespace)
		}
		of[e.Namespace] = append(of[e.Namespace], e.At)
	}
	for _, w := range a.waits {
		if len(ports) < maxPorts/2 {
			add(w.flow.Endpoint)
		}
	}
	inTurns(names, of, add)
	return ports
}

// due reports whether it is time to send the next SYNs.
func (s *suspicion) due(now time.Time) bool {
	return s.first.IsZero() || s.second.IsZero() && now.Sub(s.first) >= synAgain
}

// silent reports whether there was no answer for as long as answers may take.
func (s *suspicion) silent(now time.Time) bool {
	return !s.second.IsZero() && now.Sub(s.second) >= patience
}

// due reports whether the next SYN is to be sent.
func (e *ejection) due(now time.Time) bool { return !now.Before(e.next) }

// ask notes that SYNs are sent.
func (e *ejection) ask(now time.Time) {
	e.pause = sleep.Longer(e.pause, firstProbe, lastProbe)
	e.asked, e.sent, e.next = e.sent, now, now.Add(e.pause)
}
