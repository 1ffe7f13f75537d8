// SPDX-License-Identifier: Apache-2.0

package suspect

import (
	"net/netip"
	"time"
)

// maxAddresses is how many addresses are known at a time: those to which connections were made
// last. Each takes some 400 bytes, and 140 for each flow that waits.
const maxAddresses = 4096

// table has the known addresses. Namespaces share it: when it is full, the one with the
// most entries gives one up, that of longest ago.
type table struct {
	at     map[netip.Addr]*address
	active map[netip.Addr]*address // those with something to do
	of     map[string]int          // entries by namespace
	evict  time.Time               // when one last had to go; zero if never
}

func newTable() table {
	return table{at: map[netip.Addr]*address{}, active: map[netip.Addr]*address{}, of: map[string]int{}}
}

// add enters an address, of which EndpointSlices say something. Of several namespaces it counts
// for the one with the fewest entries: that others have it in theirs, too, costs nobody a place.
func (t *table) add(addr netip.Addr, on []Endpoint, now time.Time) *address {
	a := &address{addr: addr, claims: claimsOf(on), used: now}
	for i, c := range a.claims {
		if i == 0 || t.of[c.namespace] < t.of[a.namespace] {
			a.namespace = c.namespace
		}
	}
	if len(t.at) >= maxAddresses {
		t.makeRoom(a.namespace, now)
	}
	t.at[addr] = a
	t.of[a.namespace]++
	return a
}

// makeRoom takes an entry from the namespace that has the most; from the one that asks where
// no other has more.
func (t *table) makeRoom(asks string, now time.Time) {
	most := asks
	for namespace, n := range t.of {
		if n > t.of[most] {
			most = namespace
		}
	}
	// The first to go of some is good enough: to find that of all would take thousands of steps.
	const some = 16
	var first *address
	looked := 0
	for _, a := range t.at { // in random order
		if a.namespace != most {
			continue
		}
		if first == nil || a.before(first) {
			first = a
		}
		if looked++; looked == some {
			break
		}
	}
	t.remove(first)
	t.evict = now
}

func (t *table) remove(a *address) {
	delete(t.at, a.addr)
	delete(t.active, a.addr)
	if t.of[a.namespace]--; t.of[a.namespace] == 0 {
		delete(t.of, a.namespace)
	}
}

// inTurns calls take for one item of each name, then for a second one of each, until it returns
// false.
func inTurns[T any](names []string, of map[string][]T, take func(T) bool) {
	for turn, more := 0, true; more; turn++ {
		more = false
		for _, name := range names {
			if turn >= len(of[name]) {
				continue
			}
			if more = true; !take(of[name][turn]) {
				return
			}
		}
	}
}
