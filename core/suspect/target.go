// SPDX-License-Identifier: Apache-2.0

package suspect

import (
	"hash/maphash"
	"iter"
	"net/netip"
	"slices"
	"time"
)

const (
	maxTargets   = 1024 // addresses with flows that wait
	maxFlows     = 8    // of one address that are followed; the rest is counted
	maxPerClient = 2    // of these, so that there are several clients
	manyFlows    = 4    // are not looked at again before a SYN is sent
)

// target is an address to which flows wait for an answer.
type target struct {
	at    netip.AddrPort // what the first of them was sent to
	first Flow
	flows []wait
	count int  // of the flows in this look
	many  bool // in the last look: more than handshakes on their way

	rest    time.Duration // the last pause after a false suspicion
	restEnd time.Time     // no case before
	greeted time.Time     // when a SYN was last sent to see whether that is answered at all
}

// wait is a flow that is followed from look to look.
type wait struct {
	id          uint64
	client      netip.Addr
	port        uint16    // of the endpoint
	since       time.Time // it has waited since then at least
	here        bool      // in this look
	known       bool      // its client was answered by the same endpoint before
	disregarded bool      // it waited in a case that ended well
}

// see takes a flow of this look.
func (t *target) see(f Flow, now time.Time) {
	t.count++
	same, oldest := 0, -1
	for i := range t.flows {
		w := &t.flows[i]
		if w.id == f.ID && w.client == f.Client {
			w.here = true
			return
		}
		if w.client == f.Client && !w.disregarded {
			same++
		}
		if w.disregarded && !w.here {
			oldest = i
		}
	}
	w := wait{id: f.ID, client: f.Client, port: f.Endpoint.Port(), since: now.Add(-f.Waited), here: true}
	switch {
	case same >= maxPerClient:
	case len(t.flows) < maxFlows:
		t.flows = append(t.flows, w)
	case oldest >= 0:
		t.flows[oldest] = w
	default:
		if i := slices.IndexFunc(t.flows, func(w wait) bool { return w.disregarded }); i >= 0 {
			t.flows[i] = w
		}
	}
}

// endLook forgets the flows that do not wait any more.
func (t *target) endLook() {
	t.flows = slices.DeleteFunc(t.flows, func(w wait) bool { return !w.here })
	for i := range t.flows {
		t.flows[i].here = false
	}
	t.many, t.count = t.count >= manyFlows, 0
}

// handshake is how long flows wait that are more than handshakes on their way.
func (t *target) handshake() time.Duration {
	if t.many {
		return 0
	}
	return lookAgain * 9 / 10
}

// waiting returns the flows that have waited for a time.
func (t *target) waiting(now time.Time, waited time.Duration) iter.Seq[wait] {
	return func(yield func(wait) bool) {
		for _, w := range t.flows {
			if !w.disregarded && now.Sub(w.since) >= waited && !yield(w) {
				return
			}
		}
	}
}

// fresh returns how many clients may be in the middle of a handshake. A single one mostly is.
func (t *target) fresh(now time.Time) int {
	var all []netip.Addr
	for w := range t.waiting(now, 0) {
		if now.Sub(w.since) < lookAgain*9/10 && !slices.Contains(all, w.client) {
			all = append(all, w.client)
		}
	}
	return len(all)
}

// suspicious returns the clients that have waited for longer than a handshake takes.
func (t *target) suspicious(now time.Time) []netip.Addr {
	all, _ := t.clients(now, t.handshake())
	return all
}

// clients returns the clients that have waited for a time, each once, and whether one of
// them was answered before.
func (t *target) clients(now time.Time, waited time.Duration) (all []netip.Addr, known bool) {
	for w := range t.waiting(now, waited) {
		known = known || w.known
		if !slices.Contains(all, w.client) {
			all = append(all, w.client)
		}
	}
	return all, known
}

// disregard takes the flows that wait for no evidence any more.
func (t *target) disregard() {
	for i := range t.flows {
		t.flows[i].disregarded = true
	}
}

// idSet remembers flows, and never takes a known one for a new one. It may
// take a new one for known, the more the fuller it is: each flow has one of its bits.
type idSet [512]uint64

// add reports whether the flow is certainly a new one.
func (s *idSet) add(seed maphash.Seed, f Flow) bool {
	h := maphash.Comparable(seed, struct {
		id     uint64
		client netip.Addr
	}{f.ID, f.Client})
	word, bit := &s[h>>6%uint64(len(s))], uint64(1)<<(h&63)
	fresh := *word&bit == 0
	*word |= bit
	return fresh
}
