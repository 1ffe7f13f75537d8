// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"net/netip"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
)

// The number of an orphan is free again when that is gone, and not before.
func TestNumbersOfOrphans(t *testing.T) {
	m := newFWMarks(bitsFor(0))
	stray, other := orphan(model.IPv4, m.fwmark(1, ByMarkSNAT)), orphan(model.IPv4, 7)
	m.orphans([]Key{stray, other})
	server := func(port uint16) Key {
		return Key{Kind: kindServer, Via: ByMark, Dst: netip.AddrPortFrom(vip.Addr(), port)}
	}
	if got, err := given(m, server(1), 1); got != m.fwmark(2, ByMark) || err != nil {
		t.Errorf("beside an orphan with 1: %d, %v", got, err)
	}
	m.orphans(nil) // another program has deleted it
	m.last = [2]uint32{}
	if got, err := given(m, server(2), 1); got != m.fwmark(1, ByMark) || err != nil {
		t.Errorf("after it: %d, %v", got, err)
	}
	if stray.Mark != m.fwmark(1, ByMarkSNAT) {
		t.Errorf("its mark is %#x", stray.Mark)
	}
}
