// SPDX-License-Identifier: Apache-2.0

package suspect

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

const (
	// calmPause is the time between looks. A flow is checked in the look after the one that shows
	// it, when most have their answer.
	calmPause = 200 * time.Millisecond
	// suspicionPause is the time between looks while there is a suspicion.
	suspicionPause = 100 * time.Millisecond

	maxFresh      = 512 // flows that are still to be checked
	maxChecks     = 256 // of these, and of those that wait, in one look
	maxLookups    = 32  // Services that are looked up in one look
	maxOpened     = 32  // suspicions that are opened in one look
	maxSuspicions = 64  // of one namespace at a time
	maxSYNs       = 48  // in one look

	// suspicionLength ends a suspicion that can neither be proved nor refuted.
	suspicionLength = 3 * time.Second
	shortRest       = time.Second            // after that, and after one that was wrong
	quiet           = 300 * time.Millisecond // cuts that short, where clients got answers after it and now get none
	longRest        = 8 * time.Second        // of an address that cannot be judged
	retryRest       = 3 * time.Second        // of one that is left to clients again

	// retryAfter ends an ejection that only our own SYNs still support: a policy may
	// drop those.
	retryAfter = 5 * time.Minute

	greetEvery = 10 * time.Minute // SYNs to endpoints that nothing is wrong with
	greetAgain = time.Minute      // to one that does not answer ours, but clients
	maxGreeted = 8                // of them in one look

	// inUse is for how long an answer counts an address among those in use.
	inUse = time.Minute
	// remembered is for how long a client may go on trying: with six retries for 127 s. As long a
	// full table, and flows that were lost sight of, are remembered; conntrack has our own
	// connections of before the start for less.
	remembered = 127 * time.Second

	// Where oneWayTargets answer our SYNs, and no client has got an answer through here for oneWaySilence, answers
	// take another way.
	oneWayTargets = 3
	oneWaySilence = 2 * time.Second

	maxGroups = 8 // of a namespace that are reported one by one

	maxElsewhere = 256 // addresses that are no endpoints on other nodes, and have flows that wait
	maxIgnored   = 512 // such addresses, which are not looked up again for ignoredFor
	ignoredFor   = 10 * time.Second
)

// Judge decides which endpoints are silent. It is used by one goroutine. A cycle is: Saw for each
// flow that is new, Due, Checked for each of those, Review, Decide. Probed and Changed may come at
// any time.
type Judge struct {
	known  table                         // all addresses of which something is known
	active table                         // those of them with something to do
	prior  map[netip.Addr]netip.AddrPort // what answered this node before the Judge began; nil once that is long ago
	began  time.Time

	fresh    []sighting // flows that were not checked yet
	checked  []check    // those that Due has returned
	silent   []sighting // without an answer, and not with their address yet
	answered []Flow     // of this look, to addresses that may be greeted

	oneWay map[netip.Addr]struct{} // what answers our SYNs though no client has got an answer since
	served time.Time               // when a client last has
	lost   time.Time               // when there were more flows than can be checked; zero if never, or if all were Found since

	found []sighting // all flows that waited at a time, for Waiting alone

	elsewhere map[netip.Addr]time.Time // when a waiting flow to an unchecked address was last given up
	ignored   map[netip.Addr]time.Time // when such an address was looked up
}

// sighting is a flow that a look has shown.
type sighting struct {
	flow Flow
	at   time.Time
}

// check is a flow that is looked at: a fresh one, or one that waits at an address.
type check struct {
	sighting
	waits bool
}

// New returns a Judge that has ejected nothing. Those of prior have answered connections of
// this node not long before now.
func New(now time.Time, prior ...netip.AddrPort) *Judge {
	j := &Judge{
		known: newTable(maxAddresses), active: newTable(maxActive), prior: map[netip.Addr]netip.AddrPort{}, began: now,
		oneWay: map[netip.Addr]struct{}{}, elsewhere: map[netip.Addr]time.Time{}, ignored: map[netip.Addr]time.Time{},
	}
	for _, at := range prior[:min(len(prior), maxAddresses)] {
		j.prior[at.Addr()] = at
	}
	return j
}

// Saw takes a flow that a look shows for the first time. Observers that know its state by then
// say since when.
func (j *Judge) Saw(f Flow, s State, at, now time.Time) {
	switch {
	case s == Answered:
		j.hear(f, at, now)
	case s == Waiting:
		j.silent = append(j.silent, sighting{f, at})
	case s == Unknown && len(j.fresh) < maxFresh:
		j.fresh = append(j.fresh, sighting{f, at})
	case s == Unknown:
		j.lost = now
	}
}

// Lost notes that there were flows which no look has shown.
func (j *Judge) Lost(now time.Time) { j.lost = now }

// Overlooks reports whether there may be flows still that no look has shown, or which could not be checked.
func (j *Judge) Overlooks(now time.Time) bool { return now.Sub(j.lost) <= remembered }

// Found takes all flows that wait at a time, so that none is overlooked. They are for Waiting alone, and no evidence:
// the clients of some may have given up long ago.
func (j *Judge) Found(waiting []Flow, now time.Time) {
	j.found, j.lost = make([]sighting, len(waiting)), time.Time{}
	for i, f := range waiting {
		j.found[i] = sighting{f, now}
	}
}

// Due returns the flows whose state is to be read: flows of earlier looks and waiting
// ones. The slice is the Judge's.
func (j *Judge) Due(now time.Time) []Flow {
	j.checked = j.checked[:0]
	for _, a := range j.active.at {
		if a.suspicion == nil && now.Sub(a.checked) < checkAgain || len(j.checked) > maxChecks/2 {
			continue
		}
		a.checked = now
		for _, w := range a.waits {
			j.checked = append(j.checked, check{sighting{w.flow, w.since}, true})
		}
	}
	early := 0
	for early < len(j.fresh) && len(j.checked) < maxChecks && j.fresh[early].at.Before(now) {
		j.checked = append(j.checked, check{j.fresh[early], false})
		early++
	}
	j.fresh = slices.Delete(j.fresh, 0, early)
	flows := make([]Flow, len(j.checked))
	for i := range j.checked {
		flows[i] = j.checked[i].flow
	}
	return flows
}

// Checked takes the state of a flow that Due has returned, by its place.
func (j *Judge) Checked(i int, s State, now time.Time) {
	c := &j.checked[i]
	switch {
	case s == Answered && c.waits:
		j.hear(c.flow, now, now)
	case s == Answered:
		j.hear(c.flow, c.at, now)
	case s == Waiting && !c.waits:
		j.silent = append(j.silent, c.sighting)
	case s == Gone && c.waits:
		if a := j.known.at[c.flow.Endpoint.Addr()]; a != nil {
			a.waits = slices.DeleteFunc(a.waits, func(w wait) bool { return w.flow.ID == c.flow.ID && w.flow.Client == c.flow.Client })
		}
	}
}

// hear takes an answer to a client that connected at a time, or later.
func (j *Judge) hear(f Flow, at, now time.Time) {
	clear(j.oneWay)
	j.served = now
	a := j.known.at[f.Endpoint.Addr()]
	if a != nil {
		a.used = now
		if at.After(a.served) {
			a.served = at
		}
		if !a.deaf.IsZero() && at.After(a.deaf) && at.Sub(a.deaf) < recent { // it answers others, but not us: a policy
			a.port, a.replied, a.deaf = netip.AddrPort{}, time.Time{}, time.Time{}
			a.greeted = now.Add(greetAgain - greetEvery)
		}
		a.hear(at, now)
	}
	if (a == nil && !j.ignores(f.Endpoint.Addr(), now) || a != nil && now.Sub(a.greeted) >= greetEvery) && len(j.answered) < maxChecks {
		j.answered = append(j.answered, f)
	}
}

// Abandon ends a look that failed: what it has shown is partial. Flows and open suspicions are
// forgotten; ejections stay.
func (j *Judge) Abandon(now time.Time) {
	j.fresh, j.silent, j.answered = nil, nil, nil
	for _, a := range j.active.at {
		a.suspicion = nil
		a.give(now, func(wait) bool { return true })
	}
	j.lost = now
}

// Review returns where to send a SYN each, at most so many. Each has to be sent.
func (j *Judge) Review(now time.Time, w World, most int) (probe []netip.AddrPort) {
	if now.Sub(j.began) > remembered {
		j.prior = nil
	}
	if len(j.found) > 0 && now.Sub(j.found[0].at) > remembered {
		j.found = nil
	}
	most = min(most, maxSYNs)
	j.place(now, w)
	probe = j.greet(now, w, min(maxGreeted, most))
	if len(j.active.at) == 0 {
		return probe
	}
	// By namespace, which take turns.
	ready, due, open := map[string][]*address{}, map[string][]*address{}, map[string]int{}
	for _, a := range j.active.at {
		a.give(now, func(w wait) bool { return now.Sub(w.since) > recent })
		switch {
		case a.ejection != nil && a.ejection.due(now), a.suspicion != nil && a.suspicion.due(now):
			due[a.namespace] = append(due[a.namespace], a)
		case a.ejection == nil && a.suspicion == nil && a.accused() && a.rested(now):
			ready[a.namespace] = append(ready[a.namespace], a)
		}
		if a.suspicion != nil {
			open[a.namespace]++
		}
	}
	tried := 0
	inTurns(slices.Sorted(maps.Keys(ready)), ready, func(a *address) bool {
		if open[a.namespace] < maxSuspicions {
			if tried++; j.open(a, now, w) {
				open[a.namespace]++
				due[a.namespace] = append(due[a.namespace], a)
			}
		}
		return tried < maxOpened
	})
	inTurns(slices.Sorted(maps.Keys(due)), due, func(a *address) bool {
		probe = append(probe, j.probes(a, now, w, most-len(probe))...)
		return len(probe) < most
	})
	return probe
}

// activate enters an address with something to do. What has to go for it is as if nothing were known of
// it but that it answers us.
func (j *Judge) activate(a *address, now time.Time) {
	if gone := j.active.add(a, now); gone != nil {
		gone.suspicion, gone.ejection, gone.back = nil, nil, time.Time{}
		gone.give(now, func(wait) bool { return true })
	}
}

// forget removes an address that is no endpoint any more.
func (j *Judge) forget(a *address) {
	j.known.remove(a)
	j.active.remove(a)
}

// find returns an address that a flow was sent to; nil where that is none of a Service's on another
// node. It is entered if it was not known, and false where that cannot be determined now.
func (j *Judge) find(f Flow, now time.Time, w World) (*address, bool) {
	if a := j.known.at[f.Endpoint.Addr()]; a != nil {
		return a, true
	}
	addr := f.Endpoint.Addr()
	if j.ignores(addr, now) {
		return nil, true
	}
	on, known := w.At(addr)
	if !known {
		return nil, false
	}
	if !slices.ContainsFunc(on, func(e Endpoint) bool { return e.At == f.Endpoint }) {
		if len(j.ignored) == maxIgnored {
			clear(j.ignored)
		}
		j.ignored[addr] = now
		return nil, true
	}
	a := newAddress(addr, on, j.known.of, now)
	a.port = j.prior[a.addr]
	if gone := j.known.add(a, now); gone != nil {
		j.active.remove(gone)
	}
	return a, true
}

// ignores reports whether an address was looked up not long ago, and is no endpoint on another node.
func (j *Judge) ignores(addr netip.Addr, now time.Time) bool {
	at, is := j.ignored[addr]
	return is && now.Sub(at) < ignoredFor
}

// place gives the flows without an answer to their addresses.
func (j *Judge) place(now time.Time, w World) {
	lookups := 0
	later := j.silent[:0]
	for _, s := range j.silent {
		addr := s.flow.Endpoint.Addr()
		if j.known.at[addr] == nil && !j.ignores(addr, now) {
			if lookups++; lookups > maxLookups {
				j.lost = now
				continue
			}
		}
		a, known := j.find(s.flow, now, w)
		switch {
		case !known && now.Sub(s.at) < recent && len(later) < maxChecks:
			later = append(later, s)
		case !known:
			j.lost = now
		case a == nil:
			j.giveUp(addr, now)
		case a.ejection != nil:
			a.used, a.dropped = now, now
		default:
			a.used = now
			j.activate(a, now)
			a.wait(s.flow, s.at, now)
		}
	}
	j.silent = later
}

// giveUp gives up a flow that waits for an address that is none of a Service's on another node.
func (j *Judge) giveUp(addr netip.Addr, now time.Time) {
	if _, is := j.elsewhere[addr]; !is && len(j.elsewhere) == maxElsewhere {
		if maps.DeleteFunc(j.elsewhere, func(_ netip.Addr, at time.Time) bool { return now.Sub(at) > remembered }); len(j.elsewhere) == maxElsewhere {
			j.lost = now
			return
		}
	}
	j.elsewhere[addr] = now
}

// greet returns endpoints that get a SYN though nothing is wrong, to see whether they answer
// those of this node at all.
func (j *Judge) greet(now time.Time, w World, most int) (probe []netip.AddrPort) {
	flows := j.answered
	j.answered = j.answered[:0]
	for tries := 0; len(flows) > 0 && len(probe) < most && tries < 2*maxGreeted; tries++ {
		// From all over the look, so that who connects most often is not alone.
		i := (int(now.UnixMilli()) + tries*7919) % len(flows)
		f := flows[i]
		flows = slices.Delete(flows, i, i+1)
		a, _ := j.find(f, now, w)
		if a == nil || now.Sub(a.greeted) < greetEvery {
			continue
		}
		if on, known := w.At(a.addr); known {
			a.know(on)
		}
		a.heard, a.greeted = now, now
		probe = append(probe, f.Endpoint)
	}
	return probe
}

// open opens a suspicion, if what it takes can be determined.
func (j *Judge) open(a *address, now time.Time, w World) bool {
	on, known := w.At(a.addr)
	if !known {
		return false
	}
	if len(on) == 0 { // it is gone
		j.forget(a)
		return false
	}
	a.know(on)
	s := &suspicion{opened: now, since: a.since(), ports: a.portsOf(on)}
	for _, wait := range a.waits {
		of, known := w.Of(wait.flow)
		if !known {
			return false
		}
		n := 0
		for _, e := range of {
			other, node := j.known.at[e.At.Addr()], a.on(e.Namespace)
			if e.At.Addr() == a.addr || node != "" && e.Node == node || other != nil && other.ejection != nil || slices.Contains(s.others, e.At) {
				continue
			}
			if n++; n > maxOthers {
				break
			}
			s.others = append(s.others, e.At)
		}
	}
	s.alive = len(s.others) == 0
	a.suspicion = s
	return true
}

// probes returns the SYNs that an address is due, at most so many.
func (j *Judge) probes(a *address, now time.Time, w World, most int) (probe []netip.AddrPort) {
	if e := a.ejection; e != nil {
		on, known := w.At(a.addr)
		switch {
		case known && len(on) == 0:
			j.forget(a)
		case len(e.ports) <= most:
			if known {
				a.know(on)
			}
			e.ask(now)
			return e.ports
		}
		return nil
	}
	s := a.suspicion
	if len(s.ports) > most {
		return nil
	}
	if s.first.IsZero() {
		s.first = now
		if a.port.IsValid() { // most of the time it answers, and the others need not be asked
			return s.ports[:1]
		}
		return s.ports
	}
	s.second = now
	probe = append(probe, s.ports...)
	if !j.othersAnswer(s) {
		probe = append(probe, s.others[:min(len(s.others), most-len(probe))]...)
	}
	return probe
}

// othersAnswer reports whether this node's network works, as far as it matters to a suspicion.
func (j *Judge) othersAnswer(s *suspicion) bool {
	s.alive = s.alive || slices.ContainsFunc(s.others, func(at netip.AddrPort) bool {
		other := j.known.at[at.Addr()]
		return other != nil && other.heard.After(s.since)
	})
	return s.alive
}

// Probed takes the result of a SYN that was sent at a time: Answered by whatever states that the
// address is there, refusal included, still Waiting, or Unknown where it could not be sent.
func (j *Judge) Probed(at netip.AddrPort, s State, sent, now time.Time) {
	a := j.known.at[at.Addr()]
	if s == Answered {
		for _, b := range j.active.at {
			if b.suspicion != nil && slices.Contains(b.suspicion.others, at) {
				b.suspicion.alive = true
			}
		}
	}
	switch {
	case a == nil:
	case s == Unknown && a.suspicion != nil:
		a.suspicion, a.ended, a.rest = nil, now, now.Add(shortRest)
	case s == Waiting && a.replied.Before(sent):
		a.deaf = sent
	case s == Answered:
		if a.suspicion != nil && a.accused() && len(j.oneWay) < oneWayTargets {
			j.oneWay[a.addr] = struct{}{}
		}
		if !sent.Before(a.replied) {
			a.port, a.replied, a.deaf = at, sent, time.Time{}
		}
		a.hear(now, now)
	}
}

// Changed has the ejected ones of these addresses asked at once: EndpointSlices that have them
// have changed. That alone is no sign of life.
func (j *Judge) Changed(all []netip.Addr, now time.Time) {
	for _, addr := range all {
		if a := j.active.at[addr]; a != nil && a.ejection != nil {
			a.ejection.next, a.ejection.pause = now, firstProbe
		}
	}
}

// Waiting returns the flows to an address that have no answer, or were not checked yet, and
// whether those are all there can be.
func (j *Judge) Waiting(addr netip.Addr, now time.Time) (all []Flow, complete bool) {
	for _, list := range [][]sighting{j.fresh, j.silent, j.found} {
		for _, s := range list {
			if s.flow.Endpoint.Addr() == addr {
				all = append(all, s.flow)
			}
		}
	}
	complete = !j.Overlooks(now) && now.Sub(j.known.evict) > remembered && now.Sub(j.elsewhere[addr]) > remembered
	if a := j.known.at[addr]; a != nil {
		for _, w := range a.waits {
			all = append(all, w.flow)
		}
		complete = complete && now.Sub(a.dropped) > remembered
	}
	return all, complete
}

// Decision is the result of a cycle.
type Decision struct {
	Verdicts  []Verdict
	Suspects  model.Suspects // ejected addresses, and addresses that answer again
	Silent    []Group        // what is ejected
	Exempt    []string       // namespaces of which too much is silent: nothing of theirs alone is ejected
	OneWay    bool           // answers to clients do not come through this node: nothing is judged
	Full      bool           // more addresses are in use than can be known
	Unchecked int            // addresses whose clients wait that have never answered a SYN of this node
	Pause     time.Duration  // until the next look
	Idle      bool           // there is nothing to look at before a new flow comes
}

// Verdict is what has become of an address.
type Verdict struct {
	Name      string // of its node, or itself
	Namespace string // whose client was sent to it first
	Addr      netip.Addr
	Silent    bool   // it has stopped answering; otherwise it is trusted again
	Detail    string // the evidence
	Elapsed   time.Duration
}

// Group is the ejected addresses of one node, or of several nodes that are reported together.
type Group struct {
	Name      string
	Namespace string
	Addrs     int
	Since     time.Time
	Detail    string // of the first
}

// Decide ends a cycle.
func (j *Judge) Decide(now time.Time) (d Decision) {
	d.OneWay = len(j.oneWay) >= oneWayTargets && now.Sub(j.served) >= oneWaySilence
	d.Pause = calmPause
	ejected := false
	for _, addr := range slices.SortedFunc(maps.Keys(j.active.at), netip.Addr.Compare) {
		a := j.active.at[addr]
		if a.suspicion != nil {
			j.decide(a, now, &d)
		}
		if a.ejection != nil {
			j.readmit(a, now, &d)
		}
		if now.Sub(a.back) >= model.SlowStart {
			a.back = time.Time{}
		}
		if a.suspicion != nil {
			d.Pause = suspicionPause
		}
		ejected = ejected || a.ejection != nil
		if !a.back.IsZero() {
			d.suspect(addr, a.back)
		}
		if a.idle() {
			j.active.remove(a)
		}
	}
	full := func(t *table) bool { return !t.evict.IsZero() && now.Sub(t.evict) < remembered }
	d.Idle = len(j.active.at)+len(j.fresh)+len(j.silent) == 0
	d.Full = full(&j.known) || full(&j.active)
	if ejected {
		j.eject(now, &d)
	}
	return d
}

func (d *Decision) suspect(addr netip.Addr, back time.Time) {
	if d.Suspects == nil {
		d.Suspects = model.Suspects{}
	}
	d.Suspects[addr] = back
}

// decide decides about a suspicion, if that can be.
func (j *Judge) decide(a *address, now time.Time, d *Decision) {
	s := a.suspicion
	end := func(rest time.Duration) { a.suspicion, a.ended, a.rest = nil, now, now.Add(rest) }
	switch silent := s.silent(now); {
	case !a.accused(), a.heard.After(s.since), d.OneWay:
		end(shortRest)
	case silent && !a.port.IsValid():
		d.Unchecked++
		end(longRest)
	case silent && j.othersAnswer(s):
		e := &ejection{since: now, sent: now, asked: now, next: now.Add(firstProbe), pause: firstProbe, ports: s.ports}
		waited := now.Sub(s.since)
		e.name = j.nameOf(a, s.since)
		e.detail = fmt.Sprintf("connections of at least %d clients unanswered for up to %s; none answered since; SYNs to %s unanswered",
			len(a.waits), waited.Round(time.Millisecond), s.ports[0])
		d.Verdicts = append(d.Verdicts, Verdict{Name: e.name, Namespace: a.namespace, Addr: a.addr, Silent: true, Detail: e.detail, Elapsed: waited})
		a.suspicion, a.ejection, a.back = nil, e, time.Time{}
		a.give(now, func(wait) bool { return true })
	case now.Sub(s.opened) > suspicionLength:
		end(shortRest)
	}
}

// nameOf names the node of an address, by the namespace for which it counts; the address where that is
// unknown, or another endpoint of the node has answered since a time.
func (j *Judge) nameOf(a *address, since time.Time) string {
	node := a.on(a.namespace)
	if node == "" {
		return a.addr.String()
	}
	for _, b := range j.known.at {
		if b.heard.After(since) && b.on(a.namespace) == node {
			return a.addr.String()
		}
	}
	return node
}

// readmit ends an ejection, if it is time.
func (j *Judge) readmit(a *address, now time.Time, d *Decision) {
	e := a.ejection
	v := Verdict{Name: e.name, Namespace: a.namespace, Addr: a.addr, Elapsed: now.Sub(e.since), Detail: "answers again"}
	switch {
	case a.heard.After(e.since):
		a.back = e.asked
	case v.Elapsed >= retryAfter:
		v.Detail = "still ready by its EndpointSlice: left to clients again"
		a.back, a.deaf = now, now // if a client gets an answer, our SYNs say nothing
		a.ended, a.rest = now, now.Add(retryRest)
	default:
		return
	}
	a.ejection = nil
	d.Verdicts = append(d.Verdicts, v)
}

// eject fills in what is ejected.
func (j *Judge) eject(now time.Time, d *Decision) {
	exempt := j.exempt(now)
	d.Exempt = slices.Sorted(maps.Keys(exempt))
	groups := map[string]int{} // place in d.Silent
	of := map[string]int{}     // groups of a namespace
	for _, addr := range slices.SortedFunc(maps.Keys(j.active.at), netip.Addr.Compare) {
		a := j.active.at[addr]
		if a.ejection == nil {
			continue
		}
		counts := func(c claim) bool { return !exempt[c.namespace] }
		if len(a.claims) > 0 && !slices.ContainsFunc(a.claims, counts) {
			continue
		}
		d.suspect(addr, time.Time{})
		name := a.ejection.name
		i, is := groups[name]
		if !is && of[a.namespace] == maxGroups {
			name = "namespace " + a.namespace
			i, is = groups[name]
		} else if !is {
			of[a.namespace]++
		}
		if !is {
			i = len(d.Silent)
			groups[name] = i
			d.Silent = append(d.Silent, Group{Name: name, Namespace: a.namespace, Since: a.ejection.since, Detail: a.ejection.detail})
		}
		g := &d.Silent[i]
		if g.Addrs++; a.ejection.since.Before(g.Since) {
			g.Since, g.Detail = a.ejection.since, a.ejection.detail
		}
	}
}

// exempt returns the namespaces of whose endpoints in use so many are silent, on several nodes,
// that a fault of this node is more likely. Endpoints of other namespaces, and their slices, do
// not count.
func (j *Judge) exempt(now time.Time) map[string]bool {
	type tally struct {
		used, silent int
		node         string
		nodes        bool // several
	}
	of := map[string]*tally{}
	for _, a := range j.known.at {
		if a.ejection == nil && now.Sub(a.heard) > inUse {
			continue
		}
		for _, c := range a.claims {
			t := of[c.namespace]
			if t == nil {
				t = &tally{}
				of[c.namespace] = t
			}
			t.used++
			if a.ejection == nil {
				continue
			}
			t.silent++
			node := c.node
			if node == "" {
				node = a.addr.String()
			}
			t.nodes = t.nodes || t.node != "" && t.node != node
			t.node = node
		}
	}
	exempt := map[string]bool{}
	for namespace, t := range of {
		if t.nodes && 3*t.silent > t.used {
			exempt[namespace] = true
		}
	}
	return exempt
}
