// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"net/netip"
	"slices"
)

// Reslot puts endpoints into an order that differs from the old one in as few
// places as possible, in place. Endpoints that stay keep their slot; a hole is
// filled by a new endpoint or, where there is none, by the last one:
//
//	old  a b c d      a b c d       a b c
//	set  a c d e      a c d         a b c d
//	new  a e c d      a d c         a b c d
//
// Replacing one endpoint so costs a data plane with numbered slots one write,
// whatever the size of the pool. New endpoints are taken in their given order,
// so equal inputs give equal results.
func Reslot(endpoints []Endpoint, old []netip.AddrPort) {
	if len(old) == 0 || slices.EqualFunc(endpoints, old, func(e Endpoint, a netip.AddrPort) bool { return e.Addr == a }) {
		return // new, or as nearly always at a restart: in address order as it was
	}
	var few [2 * someSlots]int // most pools need no memory for this
	slot := slotsOf(endpoints, old, few[:0:someSlots], few[someSlots:someSlots])
	n := len(endpoints)
	placed := make([]Endpoint, n)
	taken := make([]bool, n)
	var rest, late []Endpoint // new endpoints; staying ones from slots that no longer exist
	for k, e := range endpoints {
		i, stays := slot[k], slot[k] >= 0
		switch {
		case stays && i < n && !taken[i]:
			placed[i], taken[i] = e, true
		case stays:
			late = append(late, e)
		default:
			rest = append(rest, e)
		}
	}
	rest = append(rest, late...)
	for i := range placed {
		if !taken[i] {
			placed[i], rest = rest[0], rest[1:]
		}
	}
	copy(endpoints, placed)
}

const someSlots = 32

// slotsOf appends the first slot of each endpoint in an old order, -1 for none. Most of
// both are in address order, so that the next in one is the next in the other: it
// searches only where they differ. It appends the old order by address to byAddr.
func slotsOf(endpoints []Endpoint, old []netip.AddrPort, slots, byAddr []int) []int {
	byAddr = slices.Grow(byAddr, len(old))[:len(old)]
	for i := range byAddr {
		byAddr[i] = i
	}
	slices.SortFunc(byAddr, func(a, b int) int {
		if c := old[a].Compare(old[b]); c != 0 {
			return c
		}
		return cmp.Compare(a, b) // a weighted pool has several slots for one
	})
	slots = slices.Grow(slots, len(endpoints))
	next := 0
	for _, e := range endpoints {
		there := true
		if next == len(old) || old[byAddr[next]] != e.Addr {
			next, there = slices.BinarySearchFunc(byAddr, e.Addr, func(i int, a netip.AddrPort) int { return old[i].Compare(a) })
		}
		if !there {
			slots = append(slots, -1)
			continue
		}
		slots = append(slots, byAddr[next])
		next++
	}
	return slots
}
