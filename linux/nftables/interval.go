package nftables

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// bounds returns the range of addresses that an element of Allowed or
// NodePortAddresses stands for; ok is false for all others.
func (k Key) bounds() (first, last netip.Addr, ok bool) {
	n := addressLen(k.Family)
	if k.Kind != KindElement || (k.Set != Allowed && k.Set != NodePortAddresses) || len(k.Rest) != 2*n {
		return first, last, false
	}
	first, _ = netip.AddrFromSlice([]byte(k.Rest[:n]))
	last, _ = netip.AddrFromSlice([]byte(k.Rest[n:]))
	return first, last, true
}

// within makes the Rest of an element for a range.
func within(p netip.Prefix) string {
	p = p.Masked()
	return string(p.Addr().AsSlice()) + string(lastOf(p).AsSlice())
}

// lastOf returns the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// disjoint returns the prefixes of a family in address order, without those
// inside another: the kernel refuses ranges that overlap.
func disjoint(ps []netip.Prefix, f model.Family) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range ps {
		if model.FamilyOf(p.Addr()) == f {
			all = append(all, p.Masked())
		}
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	kept := all[:0]
	for _, p := range all {
		if n := len(kept); n == 0 || !kept[n-1].Contains(p.Addr()) {
			kept = append(kept, p)
		}
	}
	return kept
}
