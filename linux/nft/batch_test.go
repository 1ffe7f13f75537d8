// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// A cut separates no ranges of one frontend, unless there is nothing else.
func TestCut(t *testing.T) {
	slots := &Set{Name: "slots", Key: []Field{Daddr, L4Proto, Dport}}
	allowed := &Set{Name: "allowed", Key: []Field{Daddr, L4Proto, Dport, Saddr}, Interval: true}
	key := func(front, r string) Key {
		return AddrPortKey(allowed, model.TCP, netip.MustParseAddrPort(front)).Within(netip.MustParsePrefix(r))
	}
	slot := Op{Key: AddrPortKey(slots, model.TCP, netip.MustParseAddrPort("10.96.0.1:80"))}
	come := Op{Key: key("10.96.0.1:80", "10.0.0.0/8")}
	goes := Op{Verb: ledger.Delete, Key: key("10.96.0.1:80", "10.0.0.0/24")}
	other := Op{Key: key("10.96.0.2:80", "10.0.0.0/8")}
	for name, c := range map[string]struct {
		ops  []Op
		want int
	}{
		"no ranges":  {[]Op{slot, slot, slot, slot}, 2},
		"at the end": {[]Op{goes, come, slot}, 2},
		"in front":   {[]Op{slot, goes, come}, 1},
		"two fronts": {[]Op{goes, come, other, other, other}, 2},
		"one front":  {[]Op{goes, goes, come, come}, 2},
		"two":        {[]Op{goes, come}, 1},
	} {
		if got := cut(c.ops); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	if order := gathered([]Op{slot, come, other, slot, goes}); !slices.Equal(order, []int{0, 4, 1, 2, 3}) {
		t.Errorf("order %v", order)
	}
	// Whoever is shut out first, and admitted last, when an address passes to another Service.
	inside, outside := Op{Key: key("10.96.0.1:80", "10.0.0.0/28")}, Op{Key: key("10.96.0.1:80", "192.0.2.0/24")}
	if order := gathered([]Op{inside, goes, slot, slot, outside}); !slices.Equal(order, []int{1, 0, 2, 3, 4}) {
		t.Errorf("order %v", order)
	}
}

// What a start took is free after two changes; transactions of one size share memory.
func TestABatchKeepsLittle(t *testing.T) {
	slots := &Set{Name: "slots", Key: []Field{Daddr, L4Proto, Dport}}
	b := newBatch(NewTable("t", "o", "c", slots))
	ops := make([]Op, 40_000)
	for i := range ops {
		ip := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
		ops[i].Key = AddrPortKey(slots, model.TCP, netip.AddrPortFrom(ip, 80))
	}
	if b.encode(ops, 1); cap(b.Buf) <= keptBuffer {
		t.Fatalf("%d ops take only %d bytes", len(ops), cap(b.Buf))
	}
	if n := testing.AllocsPerRun(3, func() { b.encode(ops, 1) }); n > 0 {
		t.Errorf("%v allocations for what is as large as before", n)
	}
	for range 2 {
		b.encode(ops[:1], 1)
	}
	if cap(b.Buf) > keptBuffer {
		t.Errorf("%d bytes are kept", cap(b.Buf))
	}
}
