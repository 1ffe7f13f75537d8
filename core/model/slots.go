// SPDX-License-Identifier: Apache-2.0

package model

import "net/netip"

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
	if len(old) == 0 {
		return
	}
	slot := make(map[netip.AddrPort]int, len(old))
	for i, a := range old {
		if _, again := slot[a]; !again { // in the slots of a weighted pool it is
			slot[a] = i
		}
	}
	n := len(endpoints)
	placed := make([]Endpoint, n)
	taken := make([]bool, n)
	var rest, late []Endpoint // new endpoints; staying ones from slots that no longer exist
	for _, e := range endpoints {
		i, stays := slot[e.Addr]
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
