// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"hash/fnv"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
)

// weighted returns a pool with one endpoint for each weight.
func weighted(weights ...uint16) *model.Pool {
	p := &model.Pool{}
	for i, w := range weights {
		p.Endpoints = append(p.Endpoints, model.Endpoint{Addr: address(i), Weight: w})
	}
	return p
}

func address(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 8080)
}

func slotAddrs(p *model.Pool) (as []netip.AddrPort) {
	for i := range p.Size() {
		as = append(as, p.Slot(i).Addr)
	}
	return as
}

func TestWeighCountsSlots(t *testing.T) {
	for _, tt := range []struct {
		weights []uint16
		size    int
	}{
		{[]uint16{80, 20}, 5},
		{[]uint16{100, 37, 1}, 138},
		{[]uint16{7, 7, 7}, 3},
		{[]uint16{1, 65535}, model.MaxSlots},
		{[]uint16{65535, 65534, 3, 1}, model.MaxSlots},
	} {
		p := weighted(tt.weights...)
		p.Weigh()
		if p.Size() != tt.size {
			t.Errorf("%v: %d slots, want %d", tt.weights, p.Size(), tt.size)
		}
	}
}

// Whatever the weights: no more than MaxSlots slots, each endpoint has one, and
// its share of the slots is its weight's, as near as slots can be.
func TestWeighIsFair(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		var weights []uint16
		for range 2 + rng.IntN(40) {
			weights = append(weights, uint16(1+rng.IntN(1<<(1+rng.IntN(15)))))
		}
		p := weighted(weights...)
		p.Weigh()
		count := map[netip.AddrPort]int{}
		for _, a := range slotAddrs(p) {
			count[a]++
		}
		if p.Size() > model.MaxSlots {
			t.Fatalf("%v: %d slots", weights, p.Size())
		}
		sum := 0
		for _, w := range weights {
			sum += int(w)
		}
		for i, e := range p.Endpoints {
			got, want := p.Share(i), float64(weights[i])/float64(sum)
			if count[e.Addr] == 0 || math.Abs(got-want) > float64(len(weights))/float64(p.Size()) {
				t.Errorf("%v: endpoint %d has %.4f of the slots, want %.4f", weights, i, got, want)
			}
		}
	}
}

// A pool keeps its slots: no more of them differ than slots came to other endpoints.
func TestReslotWeighted(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		before, after := weighted(), weighted()
		for i := range 3 + rng.IntN(10) {
			e := model.Endpoint{Addr: address(i), Weight: uint16(1 + rng.IntN(6))}
			before.Endpoints = append(before.Endpoints, e)
			switch rng.IntN(6) {
			case 0: // gone
				continue
			case 1:
				e.Weight = uint16(1 + rng.IntN(6))
			}
			after.Endpoints = append(after.Endpoints, e)
		}
		if len(after.Endpoints) == 0 {
			continue
		}
		before.Weigh()
		after.Weigh()
		old, want := slotAddrs(before), counts(slotAddrs(after))
		after.Reslot(old)
		now := slotAddrs(after)
		if !maps.Equal(counts(now), want) {
			t.Fatalf("other shares after Reslot: %v, want %v", counts(now), want)
		}
		least := 0 // slots within both that must change their endpoint
		for a, n := range counts(old[:min(len(old), len(now))]) {
			least += max(0, n-want[a])
		}
		if got := differ(old, now); got > least {
			t.Errorf("%d slots rewritten where %d must be", got, least)
		}
	}
}

// A pool knows whether its slots have the order that it was made with, whatever the weights.
func TestPlain(t *testing.T) {
	for _, weights := range [][]uint16{{1}, {1, 1, 1}, {1, 2, 3}, {7, 1, 1, 5}, {1, 65535}} {
		p := weighted(weights...)
		if p.Weigh(); !p.Plain() {
			t.Errorf("%v: not plain as it was made: %v", weights, p.Table)
		}
		made := slotAddrs(p)
		other := slices.Clone(made)
		slices.Reverse(other)
		p.Reslot(other)
		if p.Plain() != slices.Equal(slotAddrs(p), made) {
			t.Errorf("%v: plain: %t with the slots %v", weights, p.Plain(), p.Table)
		}
		if p.Reslot(made); !p.Plain() {
			t.Errorf("%v: not plain in its first order: %v", weights, p.Table)
		}
	}
}

func counts(as []netip.AddrPort) map[netip.AddrPort]int {
	n := map[netip.AddrPort]int{}
	for _, a := range as {
		n[a]++
	}
	return n
}

// differ counts the slots of both that have another endpoint.
func differ(a, b []netip.AddrPort) (n int) {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			n++
		}
	}
	return n
}

// When one of ten endpoints goes, hardly any slot of the others changes; and
// each has its share.
func TestHashDisturbsFew(t *testing.T) {
	const endpoints = 10
	most, sum := 0, 0
	for gone := range endpoints {
		all, less := weighted(make([]uint16, endpoints)...), weighted(make([]uint16, endpoints)...)
		less.Endpoints = slices.Delete(less.Endpoints, gone, gone+1)
		all.Hash()
		less.Hash()
		moved := 0
		for i, a := range slotAddrs(all) {
			if a != address(gone) && a != slotAddrs(less)[i] {
				moved++
			}
		}
		most, sum = max(most, moved), sum+moved
		for a, n := range counts(slotAddrs(all)) {
			if n > 109 { // 6 % above its share
				t.Errorf("%s has %d of %d slots", a, n, model.MaglevSlots)
			}
		}
	}
	t.Logf("of %d slots %.1f moved without need on average, %d at most (%.2f %%)", model.MaglevSlots, float64(sum)/endpoints, most, 100*float64(most)/model.MaglevSlots)
	if float64(most) > 0.02*model.MaglevSlots {
		t.Errorf("%d of %d slots moved without need", most, model.MaglevSlots)
	}
}

func TestHashFollowsWeights(t *testing.T) {
	p := weighted(300, 100, 1, 0)
	p.Endpoints = p.Endpoints[:3]
	p.Hash()
	n := counts(slotAddrs(p))
	if got := n[address(0)]; got < 750 || got > 770 {
		t.Errorf("300 of 401: %d of %d slots", got, model.MaglevSlots)
	}
	if n[address(2)] == 0 {
		t.Error("the least weight has no slot")
	}
}

// The table does not depend on the order in which endpoints are met.
func TestHashIsTheSameEverywhere(t *testing.T) {
	a, b := weighted(5, 1, 3, 3, 2, 9), weighted(5, 1, 3, 3, 2, 9)
	rand.Shuffle(len(b.Endpoints), func(i, j int) { b.Endpoints[i], b.Endpoints[j] = b.Endpoints[j], b.Endpoints[i] })
	a.Hash()
	b.Hash()
	if !slices.Equal(slotAddrs(a), slotAddrs(b)) {
		t.Error("two nodes have different tables")
	}
}

// Tables must not change from one version to the next: while a cluster is upgraded some
// nodes have the old one. The sums are those of the first version that had tables.
func TestHashStaysTheSame(t *testing.T) {
	for _, tt := range []struct {
		endpoints int
		sum       uint64
	}{{2, 0x34b824ea9f0ed177}, {10, 0x656bc2234d4d664a}, {100, 0x1ca28e133e6b42aa}, {500, 0xa3526ed6add338f0}, {model.MaglevSlots, 0xea25aba2cf1c0f2a}} {
		weights := make([]uint16, tt.endpoints)
		for i := range weights {
			weights[i] = uint16(1 + i%7)
		}
		p := weighted(weights...)
		p.Hash()
		h := fnv.New64a()
		for _, a := range slotAddrs(p) {
			h.Write([]byte(a.String()))
		}
		if h.Sum64() != tt.sum {
			t.Errorf("%d endpoints: table %#x, want %#x", tt.endpoints, h.Sum64(), tt.sum)
		}
	}
}

// BenchmarkHash makes the two tables of a Service with as many endpoints as slots, which
// is the most that one may cost.
func BenchmarkHash(b *testing.B) {
	for b.Loop() {
		for range 2 {
			weighted(make([]uint16, model.MaglevSlots)...).Hash()
		}
	}
}
