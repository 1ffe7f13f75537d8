// SPDX-License-Identifier: Apache-2.0

package suspect

import (
	"net/netip"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// maxAddresses is how many addresses are known at a time: those to which connections were made
// last. maxActive is how many of them can have something to do: flows that wait, an ejection. An
// address takes some 500 bytes, and as many more while it has.
const (
	maxAddresses = 4096
	maxActive    = 1024
)

// table has addresses. Namespaces share it: when it is full, the one with the
// most entries gives one up.
type table struct {
	most  int
	at    map[netip.Addr]*address
	of    map[string]int // entries by namespace
	evict time.Time      // when one last had to go; zero if never
}

func newTable(most int) table {
	return table{most: most, at: map[netip.Addr]*address{}, of: map[string]int{}}
}

// add enters an address, and returns the one that has to go for it, or nil.
func (t *table) add(a *address, now time.Time) (gone *address) {
	if t.at[a.addr] != nil {
		return nil
	}
	if len(t.at) >= t.most {
		gone = t.first(a.namespace)
		t.remove(gone)
		t.evict = now
	}
	t.at[a.addr] = a
	t.of[a.namespace]++
	return gone
}

// first returns the entry that is the first to go: one of the namespace that has the most, of that which asks
// where no other has more.
func (t *table) first(asks string) (first *address) {
	most := model.Largest(t.of, asks)
	// The first of some is good enough: to find that of all would take thousands of steps.
	const some = 16
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
	return first
}

func (t *table) remove(a *address) {
	if t.at[a.addr] != a {
		return
	}
	delete(t.at, a.addr)
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
