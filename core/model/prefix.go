// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"slices"
)

// Canonical masks prefixes, sorts them by address and leaves out those inside
// another. It works in place.
func Canonical(ps []netip.Prefix) []netip.Prefix {
	for i := range ps {
		ps[i] = ps[i].Masked()
	}
	slices.SortFunc(ps, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	kept := ps[:0]
	for _, p := range ps {
		if n := len(kept); n == 0 || !kept[n-1].Contains(p.Addr()) {
			kept = append(kept, p)
		}
	}
	return kept
}

// Contains reports whether an address is in one of some ranges.
func Contains(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
}

// Within reports whether an address is inside one of some canonical prefixes.
func Within(canonical []netip.Prefix, a netip.Addr) bool {
	behind, _ := slices.BinarySearchFunc(canonical, a, func(p netip.Prefix, a netip.Addr) int {
		if p.Addr().Compare(a) <= 0 {
			return -1
		}
		return 1
	})
	return behind > 0 && canonical[behind-1].Contains(a)
}

// Prefixes returns those of this family, canonical, and leaves ps unchanged.
func (f Family) Prefixes(ps []netip.Prefix) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range ps {
		if FamilyOf(p.Addr()) == f {
			all = append(all, p)
		}
	}
	return Canonical(all)
}

// Last returns the last address of a prefix.
func Last(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
