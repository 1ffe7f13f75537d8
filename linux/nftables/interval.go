package nftables

import (
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// bounds returns the range of addresses that an element of Allowed or of a set of
// ranges stands for; ok is false for all others.
func (k Key) bounds() (first, last netip.Addr, ok bool) {
	n := addressLen(k.Family)
	if k.Kind != KindElement || (k.Set != Allowed && !k.Set.ranges()) || len(k.Rest) != 2*n {
		return first, last, false
	}
	first, _ = netip.AddrFromSlice([]byte(k.Rest[:n]))
	last, _ = netip.AddrFromSlice([]byte(k.Rest[n:]))
	return first, last, true
}

// within makes the Rest of an element for a range.
func within(p netip.Prefix) string {
	p = p.Masked()
	return string(p.Addr().AsSlice()) + string(model.Last(p).AsSlice())
}

// prefixOf returns the prefix that a range is; the zero value where it is none.
func prefixOf(first, last netip.Addr) netip.Prefix {
	for bits := first.BitLen(); bits >= 0; bits-- {
		if p := netip.PrefixFrom(first, bits); p.Masked() == p && model.Last(p) == last {
			return p
		}
	}
	return netip.Prefix{}
}

// disjoint returns the prefixes of a family in address order, without those
// inside another: the kernel refuses ranges that overlap.
func disjoint(ps []netip.Prefix, f model.Family) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range ps {
		if model.FamilyOf(p.Addr()) == f {
			all = append(all, p)
		}
	}
	return model.Canonical(all)
}
