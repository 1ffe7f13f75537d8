// SPDX-License-Identifier: Apache-2.0

package suspect

import (
	"hash/maphash"
	"maps"
	"net/netip"
	"slices"
	"time"
)

const (
	// calmPause is the time between readings while no client waits. With a second look and
	// patience it makes detection take less than the second after which clients send
	// their SYN again (RFC 6298).
	calmPause = 500 * time.Millisecond
	// lookAgain is when waiting flows are checked a second time: most are answered by then.
	lookAgain = 100 * time.Millisecond
	// casePause is the time between looks while there is a case.
	casePause = 200 * time.Millisecond
	// patience is how long an answer may take: longer than any round trip inside a cluster.
	patience = 200 * time.Millisecond
	// longPatience is for endpoints some of whose clients are dropped on their way: another one
	// has more time to show that it is answered.
	longPatience = 1500 * time.Millisecond

	minClients = 2

	firstProbe = time.Second // after an ejection, then ever later
	lastProbe  = 10 * time.Second
	// retryAfter ends a suspicion that only our own SYNs still support: a policy may
	// drop those.
	retryAfter = 5 * time.Minute

	firstRest = 500 * time.Millisecond // after a false suspicion, then ever longer
	lastRest  = 8 * time.Second

	greetEvery = 10 * time.Minute // SYNs to endpoints that nothing is wrong with
	maxGreeted = 2                // of them in one look

	maxAnswered = 2048 // endpoints that are remembered to have answered our SYNs
	maxSuspects = 4096

	oneWayTargets = 3 // that answer SYNs though no client gets an answer through here
	oneWayPause   = 10 * time.Minute
)

// Judge decides which endpoints are silent. It is used by one goroutine. A cycle is: Unanswered
// for each flow that waits, Review, Answered for each answered flow of the addresses
// that Review asks for, Decide. Probed, Trust may come at any time.
type Judge struct {
	seed     maphash.Seed
	targets  map[netip.Addr]*target
	cases    map[string]*nodeCase
	ejected  map[string]*ejection
	answered map[netip.AddrPort]struct{} // what has ever answered our SYNs
	oneWay   map[netip.Addr]struct{}     // endpoints that did, though their answers to clients are not seen
	off      time.Time                   // no endpoint is judged before: answers are not seen here
	back     map[netip.Addr]time.Time    // endpoints that answer again, since when
}

// New returns a Judge without suspects.
func New() *Judge {
	return &Judge{
		seed: maphash.MakeSeed(), targets: map[netip.Addr]*target{}, cases: map[string]*nodeCase{}, ejected: map[string]*ejection{},
		answered: map[netip.AddrPort]struct{}{}, oneWay: map[netip.Addr]struct{}{},
		back: map[netip.Addr]time.Time{},
	}
}

// Orders are what to do in the middle of a cycle.
type Orders struct {
	Ask   []netip.Addr     // whose answered flows to check
	Probe []netip.AddrPort // where to send a SYN each
}

// Unanswered takes a flow that waits for an answer.
func (j *Judge) Unanswered(f Flow, now time.Time) {
	a := f.Endpoint.Addr()
	t := j.targets[a]
	if t == nil {
		if len(j.targets) >= maxTargets {
			return
		}
		t = &target{at: f.Endpoint, first: f}
		j.targets[a] = t
	}
	t.see(f, now)
}

// Abandon ends a look that failed: what it has seen is partial. Flows that wait and open
// cases are forgotten; ejections stay.
func (j *Judge) Abandon() {
	clear(j.targets)
	clear(j.cases)
}

// Review ends a look: it opens cases. The orders are to send at most so many SYNs, each of
// which has to be sent.
func (j *Judge) Review(now time.Time, w World, most int) (o Orders) {
	for a, t := range j.targets {
		if t.endLook(); len(t.flows) == 0 && !now.Before(t.restEnd.Add(lastRest)) {
			delete(j.targets, a)
		}
	}
	if now.Before(j.off) {
		return o
	}
	byNode := map[string][]*target{}
	for _, a := range slices.SortedFunc(maps.Keys(j.targets), netip.Addr.Compare) {
		j.assign(byNode, j.targets[a], now, w, min(maxGreeted, most), &o)
	}
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		j.open(node, byNode[node], now, w)
	}
	for _, node := range slices.Sorted(maps.Keys(j.cases)) {
		c := j.cases[node]
		o.Ask = append(o.Ask, c.asked()...)
		o.Probe = append(o.Probe, c.probes(now, most-len(o.Probe))...)
	}
	for _, name := range slices.Sorted(maps.Keys(j.ejected)) {
		o.Probe = append(o.Probe, j.ejected[name].probes(now, most-len(o.Probe))...)
	}
	return o
}

// assign gives a target whose clients have waited for a while to its node.
func (j *Judge) assign(to map[string][]*target, t *target, now time.Time, w World, greetings int, o *Orders) {
	if now.Before(t.restEnd) || len(t.flows) == 0 {
		return
	}
	if j.isEjected(t.at.Addr()) {
		return
	}
	waiting := t.suspicious(now)
	greet := len(o.Probe) < greetings && now.Sub(t.greeted) >= greetEvery
	if len(waiting) == 0 && !greet {
		return
	}
	of, known := w.Of(t.first)
	if !known {
		return
	}
	i := slices.IndexFunc(of, func(e Endpoint) bool { return e.At == t.at })
	switch {
	case i < 0: // not a Service's, local, or gone
		t.restEnd, t.greeted = now.Add(lastRest), now
	case len(waiting) > 0:
		key := caseOf(of[i])
		to[key] = append(to[key], t)
	default:
		t.greeted = now
		o.Probe = append(o.Probe, t.at)
	}
}

// caseOf names the case of an endpoint: its node, or itself.
func caseOf(e Endpoint) string {
	if e.Node == "" {
		return e.At.Addr().String()
	}
	return e.Node
}

// open opens the case of a node where enough clients wait, or adds to it.
func (j *Judge) open(node string, of []*target, now time.Time, w World) {
	var clients []netip.Addr
	for _, t := range of {
		clients = append(clients, t.suspicious(now)...)
	}
	slices.SortFunc(clients, netip.Addr.Compare)
	c := j.cases[node]
	if c == nil && (len(slices.Compact(clients)) < minClients || len(j.cases) >= maxCases) {
		return
	}
	if c == nil {
		if c = newCase(node, of, now, w); c == nil {
			return
		}
		for _, t := range of {
			others, _ := w.Of(t.first) // determined in this cycle
			for _, e := range others {
				if caseOf(e) != node && !j.isEjected(e.At.Addr()) {
					c.add(&c.others, e.At, maxOthers)
				}
			}
		}
		j.cases[node] = c
		return
	}
	c.addTargets(of, now, w)
}

func (j *Judge) isEjected(a netip.Addr) bool {
	for _, e := range j.ejected {
		if e.has(a) {
			return true
		}
	}
	return false
}

// Answered takes an answered flow of an address that was requested.
func (j *Judge) Answered(f Flow) {
	a := f.Endpoint.Addr()
	if t := j.targets[a]; t != nil {
		for i := range t.flows {
			t.flows[i].known = t.flows[i].known || t.flows[i].client == f.Client && t.flows[i].port == f.Endpoint.Port()
		}
	}
	for _, c := range j.cases {
		if q := c.evidence[a]; q != nil {
			q.had = true
			if q.flows.add(j.seed, f) && q.asked {
				q.alive = true
			}
		}
	}
}

// Probed takes the result of a SYN: answered by whatever states that the address is there,
// refusal included.
func (j *Judge) Probed(at netip.AddrPort, answered bool) {
	if !answered {
		return
	}
	a := at.Addr()
	if len(j.answered) >= maxAnswered {
		clear(j.answered)
	}
	j.answered[at] = struct{}{}
	for _, c := range j.cases {
		if q := c.evidence[a]; q != nil {
			q.alive, q.syn = true, true
		}
	}
	for _, e := range j.ejected {
		e.back = e.back || e.has(a)
	}
}

// Trust ends the suspicion of addresses that a source of Services has changed.
func (j *Judge) Trust(all []netip.Addr) {
	trusted := func(at netip.AddrPort) bool { return slices.Contains(all, at.Addr()) }
	for name, e := range j.ejected {
		if e.at = slices.DeleteFunc(e.at, trusted); len(e.at) == 0 {
			delete(j.ejected, name)
		}
	}
	for _, a := range all {
		delete(j.targets, a)
		delete(j.back, a)
	}
}
