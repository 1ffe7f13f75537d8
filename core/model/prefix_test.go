// SPDX-License-Identifier: Apache-2.0

package model

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// An address is within canonical prefixes if any of those that they were made of contains it.
func TestWithin(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	addr := func() netip.Addr {
		b := [4]byte{10, byte(random.IntN(2)), byte(random.IntN(4)), byte(random.IntN(256))}
		if random.IntN(4) > 0 {
			return netip.AddrFrom4(b)
		}
		return netip.AddrFrom16([16]byte{0: 0x20, 1: 1, 13: b[1], 14: b[2], 15: b[3]})
	}
	in := 0
	for range 1000 {
		var all []netip.Prefix
		for range random.IntN(12) {
			a := addr()
			all = append(all, netip.PrefixFrom(a, a.BitLen()-random.IntN(12)).Masked())
		}
		canonical := Canonical(slices.Clone(all))
		for range 100 {
			a := addr()
			want := slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
			if Within(canonical, a) != want {
				t.Fatalf("%s within %v: want %t", a, canonical, want)
			}
			if want {
				in++
			}
		}
	}
	if in < 1000 {
		t.Errorf("%d of 100000 addresses are inside", in)
	}
}
