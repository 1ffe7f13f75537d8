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

// Decision is the result of a cycle.
type Decision struct {
	Verdicts   []Verdict
	Suspects   model.Suspects // all there are now
	Silent     []string       // the names of all verdicts that hold
	OneWay     bool           // answers to clients do not come through this node: no endpoint is judged
	LocalFault bool           // our own network fails: no endpoint is a suspect
	Pause      time.Duration  // until the next look
}

// Verdict is what has become of a node, or of an endpoint that is judged alone.
type Verdict struct {
	Name    string // of the node, or the address of the endpoint
	Addrs   int    // how many addresses it is about
	Silent  bool   // they have stopped answering; otherwise they are trusted again
	Detail  string // the evidence
	Elapsed time.Duration
}

// Decide ends a cycle.
func (j *Judge) Decide(now time.Time, w World) (d Decision) {
	for _, c := range j.cases {
		for _, a := range c.asked() {
			c.evidence[a].asked = true
		}
	}
	for _, node := range slices.Sorted(maps.Keys(j.cases)) {
		j.decide(j.cases[node], now, w, &d)
	}
	j.detectOneWay(now, w)
	j.readmit(now, &d)
	d.OneWay = now.Before(j.off)
	d.LocalFault = j.isLocalFault(w)
	d.Suspects = j.all(d.OneWay || d.LocalFault)
	d.Silent = slices.Sorted(maps.Keys(j.ejected))
	d.Pause = j.pause(now)
	return d
}

// decide decides a case, if it can be.
func (j *Judge) decide(c *nodeCase, now time.Time, w World, d *Decision) {
	j.dropAnswered(c, now)
	c.alive = c.alive || c.anyAlive(c.sameNode)
	switch {
	case len(c.targets) == 0:
		delete(j.cases, c.node)
	case j.confirmed(c, now) && j.eject(c, now, w, d):
		delete(j.cases, c.node)
	case now.Sub(c.opened) > caseLength:
		for _, at := range c.targets {
			j.backOff(at.Addr(), now)
		}
		delete(j.cases, c.node)
	}
}

// dropAnswered takes the targets out of a case that no client waits for any more, or that have
// answered meanwhile.
func (j *Judge) dropAnswered(c *nodeCase, now time.Time) {
	c.targets = slices.DeleteFunc(c.targets, func(at netip.AddrPort) bool {
		a := at.Addr()
		q, t := c.evidence[a], j.targets[a]
		c.alive = c.alive || q.alive
		if t == nil {
			return true
		}
		if waiting, _ := t.clients(now, 0); len(waiting) == 0 {
			return true
		}
		if !q.alive || now.Sub(c.opened) < patience {
			return false
		}
		j.noteOneWay(c, q, now)
		j.backOff(a, now)
		return true
	})
}

// confirmed reports whether the evidence suffices.
func (j *Judge) confirmed(c *nodeCase, now time.Time) bool {
	var clients []netip.Addr
	credible := false
	for _, at := range c.targets {
		a := at.Addr()
		if !c.silent(a, now) {
			continue
		}
		waiting, known := j.targets[a].clients(now, patience)
		_, answered := j.answered[at]
		credible = credible || known || answered
		clients = append(clients, waiting...)
	}
	slices.SortFunc(clients, netip.Addr.Compare)
	return credible && len(slices.Compact(clients)) >= minClients && (len(c.others) == 0 || c.anyAlive(c.others))
}

// eject passes over the silent endpoints of a case, and all of its node unless one of them
// has answered. It reports false where its endpoints cannot be determined now.
func (j *Judge) eject(c *nodeCase, now time.Time, w World, d *Decision) bool {
	e := &ejection{name: c.node, since: now, sent: now, asked: now, next: now.Add(firstProbe), pause: firstProbe}
	flows, clients, first := 0, map[netip.Addr]struct{}{}, now
	for _, at := range c.targets {
		if !c.silent(at.Addr(), now) {
			continue
		}
		e.at = append(e.at, at)
		for _, f := range j.targets[at.Addr()].flows {
			flows++
			clients[f.client] = struct{}{}
			if f.since.Before(first) {
				first = f.since
			}
		}
	}
	probed := e.at[0]
	if c.alive {
		e.name = probed.Addr().String()
	} else {
		on, known := w.On(c.node)
		if !known {
			return false
		}
		for _, other := range on {
			if !e.has(other.At.Addr()) {
				e.at = append(e.at, other.At)
			}
		}
	}
	room := maxSuspects - len(j.all(false))
	if e.at = e.at[:min(len(e.at), max(room, 0))]; len(e.at) == 0 {
		return true
	}
	j.ejected[e.name] = e
	d.Verdicts = append(d.Verdicts, Verdict{
		Name: e.name, Addrs: len(e.at), Silent: true, Elapsed: now.Sub(first),
		Detail: fmt.Sprintf("at least %d connections of %d clients unanswered, for up to %s; no new one answered; SYN to %s unanswered",
			flows, len(clients), now.Sub(first).Round(time.Millisecond), probed),
	})
	return true
}

// backOff ends a suspicion that was wrong, or cannot be proved, and rests for a while.
func (j *Judge) backOff(a netip.Addr, now time.Time) {
	t := j.targets[a]
	if t == nil {
		return
	}
	stay, _ := t.clients(now, patience)
	if t.disregard(); len(stay) == 0 {
		return // those were but handshakes
	}
	t.rest = min(max(2*t.rest, firstRest), lastRest)
	t.restEnd = now.Add(t.rest)
}

// noteOneWay notes a target that answers our SYN while there is no sign that anything it
// or others have answered to clients has come through here.
func (j *Judge) noteOneWay(c *nodeCase, q *evidence, now time.Time) {
	for _, q := range c.evidence {
		if q.had {
			clear(j.oneWay)
			return
		}
	}
	a := q.ports[0].Addr()
	t := j.targets[a]
	if t == nil || !q.syn {
		return
	}
	if waiting, _ := t.clients(now, patience); len(waiting) > 0 && len(j.oneWay) < oneWayTargets {
		j.oneWay[a] = struct{}{}
	}
}

// detectOneWay suspends judging for some minutes where answers take another path.
func (j *Judge) detectOneWay(now time.Time, w World) {
	if len(j.oneWay) < oneWayTargets {
		return
	}
	clear(j.oneWay)
	if !w.AnySeen() {
		j.off = now.Add(oneWayPause)
		clear(j.ejected)
		clear(j.cases)
	}
}

// readmit ends silences.
func (j *Judge) readmit(now time.Time, d *Decision) {
	maps.DeleteFunc(j.back, func(_ netip.Addr, since time.Time) bool { return now.Sub(since) >= model.SlowStart })
	for _, name := range slices.Sorted(maps.Keys(j.ejected)) {
		e := j.ejected[name]
		v := Verdict{Name: name, Addrs: len(e.at), Elapsed: now.Sub(e.since), Detail: "answers again"}
		switch {
		case e.back:
		case v.Elapsed >= retryAfter:
			e.asked = now
			v.Detail = "still ready by its EndpointSlice: left to clients again"
		default:
			continue
		}
		delete(j.ejected, name)
		for _, at := range e.at {
			delete(j.targets, at.Addr())
			j.back[at.Addr()] = e.asked
		}
		d.Verdicts = append(d.Verdicts, v)
	}
}

// isLocalFault reports whether so much is silent that the fault is more likely our own.
func (j *Judge) isLocalFault(w World) bool {
	n := 0
	for _, e := range j.ejected {
		n += len(e.at)
	}
	return len(j.ejected) > 1 && 3*n > w.Remote()
}

// all returns the addresses of all ejections and of recovering endpoints; or none.
func (j *Judge) all(none bool) model.Suspects {
	if none {
		return model.Suspects{}
	}
	s := model.Suspects(maps.Clone(j.back))
	for _, e := range j.ejected {
		for _, at := range e.at {
			s[at.Addr()] = time.Time{}
		}
	}
	return s
}

// pause returns the time until the next look.
func (j *Judge) pause(now time.Time) time.Duration {
	if len(j.cases) > 0 {
		return casePause
	}
	for a, t := range j.targets {
		if !now.Before(t.restEnd) && t.fresh(now) >= minClients && !j.isEjected(a) {
			return lookAgain
		}
	}
	return calmPause
}
