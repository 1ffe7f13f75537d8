// SPDX-License-Identifier: Apache-2.0

package suspect

import (
	"net/netip"
	"slices"
	"time"
)

const (
	maxCases    = 16
	maxSameNode = 2 // other endpoints of the node that get a SYN
	maxOthers   = 3 // endpoints of other nodes that get one
	maxPorts    = 5 // ports of an address that get one without evidence of their own
	maxAsked    = 4 // addresses of a case with waiting clients whose answers are looked at
	caseLength  = 3 * time.Second
)

// nodeCase is a case: the suspicion that a node, or an endpoint of no known node, is
// silent.
type nodeCase struct {
	node     string
	opened   time.Time
	targets  []netip.AddrPort // those that clients wait for; the first is of the first one
	sameNode []netip.AddrPort // others on the node
	others   []netip.AddrPort // endpoints on other nodes, that ought to answer
	alive    bool             // an endpoint of the node has answered
	again    bool             // a target was under a wrong suspicion not long ago: takes more time
	evidence map[netip.Addr]*evidence
}

// evidence is the evidence about one address since the case was opened.
type evidence struct {
	ports []netip.AddrPort // that get a SYN; of other nodes one alone
	sent  int              // how many of them have got it
	since time.Time        // when the last of these was sent; zero before
	alive bool             // it has answered the SYN, or a new flow
	syn   bool             // it has answered the SYN
	asked bool             // its answered flows were looked at once
	flows idSet            // those
	had   bool             // there were some
}

// newCase opens a case; nil where the endpoints of the node cannot be determined.
func newCase(node string, of []*target, now time.Time, w World) *nodeCase {
	c := &nodeCase{node: node, opened: now, evidence: map[netip.Addr]*evidence{}}
	if !c.addTargets(of, now, w) {
		return nil
	}
	return c
}

// addTargets adds targets, and all that have evidence against them by now. An ejection is of
// all ports of an address, so that one that answers on any of them is alive: each address of
// the node that gets a SYN gets it on several. It reports false where the endpoints of the
// node cannot be determined: then nothing was added, and the next run tries again.
func (c *nodeCase) addTargets(of []*target, now time.Time, w World) bool {
	unknown := func(t *target) bool { return c.evidence[t.at.Addr()] == nil }
	var on []Endpoint
	if len(c.targets) < maxAsked && slices.ContainsFunc(of, unknown) {
		known := false
		if on, known = w.On(c.node); !known {
			return false
		}
	}
	for _, t := range of {
		c.add(&c.targets, t.at, maxAsked)
		c.again = c.again || t.rest > 0
	}
	for _, e := range on {
		c.add(&c.sameNode, e.At, maxSameNode)
	}
	for _, t := range of {
		for f := range t.waiting(now, t.handshake()) {
			c.addPort(netip.AddrPortFrom(t.at.Addr(), f.port), maxFlows)
		}
	}
	for _, e := range on {
		c.addPort(e.At, maxPorts)
	}
	return true
}

// addPort adds another port of an address of the node.
func (c *nodeCase) addPort(at netip.AddrPort, most int) {
	if q := c.evidence[at.Addr()]; q != nil && len(q.ports) < most && !slices.Contains(q.ports, at) {
		q.ports = append(q.ports, at)
	}
}

// probes returns what SYNs are to be sent to, at most so many. Those to one address are
// sent together.
func (c *nodeCase) probes(now time.Time, most int) (all []netip.AddrPort) {
	for _, list := range [][]netip.AddrPort{c.targets, c.sameNode, c.others} {
		for _, at := range list {
			q := c.evidence[at.Addr()]
			if due := q.ports[q.sent:]; len(due) > 0 && len(all)+len(due) <= most {
				q.sent, q.since = len(q.ports), now
				all = append(all, due...)
			}
		}
	}
	return all
}

// asked returns the addresses whose answered flows matter.
func (c *nodeCase) asked() (all []netip.Addr) {
	for _, list := range [][]netip.AddrPort{c.targets, c.others} {
		for _, at := range list[:min(len(list), maxAsked)] {
			all = append(all, at.Addr())
		}
	}
	return all
}

// add adds endpoints that are to be inquired about, each address once.
func (c *nodeCase) add(to *[]netip.AddrPort, at netip.AddrPort, most int) {
	if c.evidence[at.Addr()] == nil && len(*to) < most {
		c.evidence[at.Addr()] = &evidence{ports: []netip.AddrPort{at}}
		*to = append(*to, at)
	}
}

func (c *nodeCase) anyAlive(of []netip.AddrPort) bool {
	return slices.ContainsFunc(of, func(at netip.AddrPort) bool { return c.evidence[at.Addr()].alive })
}

// silent reports whether an address has not answered for as long as answers may take.
func (c *nodeCase) silent(a netip.Addr, now time.Time) bool {
	q := c.evidence[a]
	wait := patience
	if c.again {
		wait = longPatience
	}
	return !q.alive && q.sent == len(q.ports) && now.Sub(q.since) >= wait
}

// ejection is a node, or endpoint, that has stopped answering.
type ejection struct {
	name  string
	at    []netip.AddrPort // each address once
	since time.Time
	next  time.Time // of the next SYN that asks whether it is back
	asked time.Time // when the last one was sent that was not answered: it may be back since
	pause time.Duration
	sent  time.Time // of the last one
	back  bool      // it has answered one
}

// probes returns what SYNs are to be sent to; none before there is room for all.
func (e *ejection) probes(now time.Time, most int) []netip.AddrPort {
	at := e.at[:min(len(e.at), maxSameNode+1)]
	if now.Before(e.next) || len(at) > most {
		return nil
	}
	e.pause = min(2*e.pause, lastProbe)
	e.asked, e.sent, e.next = e.sent, now, now.Add(e.pause)
	return at
}

// has reports whether an address belongs to it.
func (e *ejection) has(a netip.Addr) bool {
	return slices.ContainsFunc(e.at, func(at netip.AddrPort) bool { return at.Addr() == a })
}
