// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"hash/fnv"
	"math"
	"net/netip"
	"slices"
)

// MaxSlots bounds the slots of a weighted pool.
const MaxSlots = 1024

// MaglevSlots is how many slots a pool has that is looked up by hash: a prime, as
// Maglev's permutations need, and within MaxSlots.
const MaglevSlots = 1021

// Pool is a set of endpoints that share new connections, evenly or by weight. It
// is never empty and has no endpoint twice. Pools are shared between frontends by
// pointer.
//
// Data planes that number their endpoints number slots: an even pool has a slot
// for each endpoint, in the order of Endpoints, and Table is nil. Any other pool
// has its endpoints in address order, and Table has the index of the endpoint of
// each slot, so that the share of an endpoint is its share of the slots. The
// order of slots has no meaning but is kept stable under change (Reslot), so that
// only what differs is rewritten; that of a pool which is looked up by hash
// (Hash) is the same on all nodes.
type Pool struct {
	Endpoints []Endpoint
	Table     []uint16
}

// Endpoint is one member of a Pool.
type Endpoint struct {
	Addr        netip.AddrPort
	Local       bool // runs on this node
	NodeUnknown bool // no input states on which node it runs

	// Weight is the endpoint's share of new connections beside the others'. It is
	// 0 in even pools, and at least 1 in all others.
	Weight uint16
}

// MayHairpin reports whether connections from the endpoint to itself may come
// through this node. Host.NeedsHairpinSNAT decides what they need.
func (e Endpoint) MayHairpin() bool { return e.Local || e.NodeUnknown }

// Weighted reports whether the endpoints have different shares.
func (p *Pool) Weighted() bool { return p.Endpoints[0].Weight > 0 }

// Size returns how many slots the pool has.
func (p *Pool) Size() int {
	if p.Table != nil {
		return len(p.Table)
	}
	return len(p.Endpoints)
}

// Slot returns the endpoint of a slot, counted from 0 to Size.
func (p *Pool) Slot(i int) *Endpoint {
	if p.Table != nil {
		i = int(p.Table[i])
	}
	return &p.Endpoints[i]
}

// Share returns the share of the slots that an endpoint has, by its index.
func (p *Pool) Share(i int) float64 {
	if p.Table == nil {
		return 1 / float64(len(p.Endpoints))
	}
	n := 0
	for _, e := range p.Table {
		if int(e) == i {
			n++
		}
	}
	return float64(n) / float64(len(p.Table))
}

// Equal reports whether two pools have the same endpoints in the same slots.
func (p *Pool) Equal(o *Pool) bool {
	return p == o || p != nil && o != nil && slices.Equal(p.Endpoints, o.Endpoints) && slices.Equal(p.Table, o.Table)
}

// Reslot gives a pool an order of slots that differs from the old one in as few
// places as possible. Old has the endpoint of each slot; it may be empty. Of a pool with a Table
// it changes that, which must not be shared.
func (p *Pool) Reslot(old []netip.AddrPort) {
	if p.Table == nil {
		Reslot(p.Endpoints, old)
		return
	}
	left := make([]int, len(p.Endpoints))
	index := make(map[netip.AddrPort]int, len(p.Endpoints))
	for i, e := range p.Endpoints {
		index[e.Addr] = i
	}
	for _, e := range p.Table {
		left[e]++
	}
	kept := make([]bool, len(p.Table))
	for i, a := range old[:min(len(old), len(p.Table))] {
		if e, known := index[a]; known && left[e] > 0 {
			p.Table[i], kept[i] = uint16(e), true
			left[e]--
		}
	}
	fill := Interleave(left)
	for i := range p.Table {
		if !kept[i] {
			p.Table[i], fill = fill[0], fill[1:]
		}
	}
}

// Plain reports whether the slots have the order that the pool was made with: Reslot would
// have to be told of any other.
func (p *Pool) Plain() bool {
	if p.Table == nil {
		return slices.IsSortedFunc(p.Endpoints, func(a, b Endpoint) int { return a.Addr.Compare(b.Addr) })
	}
	counts := make([]int, len(p.Endpoints))
	for _, e := range p.Table {
		counts[e]++
	}
	return slices.Equal(p.Table, Interleave(counts))
}

// Weigh builds the slots of a weighted pool, with the fewest slots that preserve the
// shares. Equal weights make an even pool.
func (p *Pool) Weigh() { p.WeighBy(0, MaxSlots) }

// WeighBy does the same with the weight of one slot, if it is not 0, and with at most
// so many slots, which are no fewer than the endpoints. Where weights change in steps
// of that weight, only the slots of those that changed differ.
func (p *Pool) WeighBy(unit, most int) {
	slices.SortFunc(p.Endpoints, func(a, b Endpoint) int { return a.Addr.Compare(b.Addr) })
	if !slices.ContainsFunc(p.Endpoints, func(e Endpoint) bool { return e.Weight != p.Endpoints[0].Weight }) {
		for i := range p.Endpoints {
			p.Endpoints[i].Weight = 0
		}
		return
	}
	p.Table = Interleave(slotCounts(p.Endpoints, unit, most))
}

// slotCounts gives each endpoint its number of slots: its weight, divided by the unit,
// which for 0 is what divides all, or where those are too many its share of the most.
func slotCounts(endpoints []Endpoint, unit, most int) []int {
	counts := make([]int, len(endpoints))
	divisor, sum := 0, 0
	for i, e := range endpoints {
		counts[i] = int(e.Weight)
		sum += counts[i]
		divisor = GCD(divisor, counts[i])
	}
	if unit > 0 {
		divisor = unit
	}
	if sum/divisor > most {
		return apportion(endpoints, most)
	}
	for i := range counts {
		counts[i] /= divisor
	}
	return counts
}

// apportion shares out n slots, to the largest remainders what is left of them.
// Each endpoint gets at least one. There are at most n endpoints.
func apportion(endpoints []Endpoint, n int) []int {
	type remainder struct{ of, part int }
	counts, rest := make([]int, len(endpoints)), make([]remainder, len(endpoints))
	sum, left := 0, n
	for _, e := range endpoints {
		sum += int(e.Weight)
	}
	for i, e := range endpoints {
		counts[i], rest[i] = int(e.Weight)*n/sum, remainder{i, int(e.Weight) * n % sum}
		if counts[i] == 0 {
			counts[i], rest[i].part = 1, -1
		}
		left -= counts[i]
	}
	slices.SortFunc(rest, func(a, b remainder) int { return cmp.Or(b.part-a.part, a.of-b.of) })
	for i := 0; left > 0; i++ {
		counts[rest[i].of]++
		left--
	}
	for ; left < 0; left++ { // what would have less than a slot has one: the largest gives it
		counts[slices.Index(counts, slices.Max(counts))]--
	}
	return counts
}

// GCD is the greatest common divisor of two numbers.
func GCD(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Interleave returns each index as often as counts says, evenly spread: a scheduler
// that goes through the slots in order must not meet one endpoint many times in a
// row.
func Interleave(counts []int) []uint16 {
	type slot struct {
		at float64
		of uint16
	}
	var all []slot
	for e, n := range counts {
		for k := range n {
			all = append(all, slot{(float64(k) + 0.5) / float64(n), uint16(e)})
		}
	}
	slices.SortFunc(all, func(a, b slot) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.of, b.of)) })
	order := make([]uint16, len(all))
	for i, s := range all {
		order[i] = s.of
	}
	return order
}

// Hash makes the slots of a pool that is looked up by hash. It is a function of the
// endpoints' addresses and weights alone: all nodes have the same. Port numbers count
// only in that they order endpoints of one IP address. Each slot has
// an order of preference among the endpoints (rendezvous hashing), and an endpoint
// with too many slots for its weight keeps those that prefer it most (deferred
// acceptance: Gale and Shapley, 1962). When one of ten endpoints is removed, some 0.8 % of
// the slots move without need, and at most 1.5 %; of Maglev's own tables it is
// 2.4 %, and up to 3.8 %. No endpoint has more than 1/16 above its share, nor
// 0.6 % of all.
func (p *Pool) Hash() {
	p.Weigh()
	t := tables{seeds: make([]uint64, len(p.Endpoints)), quota: p.quotas(), held: make([]held, len(p.Endpoints))}
	for i, e := range p.Endpoints {
		if t.seeds[i] = seedOf(e.Addr.Addr()); i > 0 && e.Addr.Addr() == p.Endpoints[i-1].Addr.Addr() {
			t.seeds[i] = mix(t.seeds[i-1] + 1)
		}
	}
	for slot := range t.wishes {
		t.wishes[slot].last = math.MaxUint64
	}
	for slot := range MaglevSlots {
		t.place(uint16(slot))
	}
	p.Table = make([]uint16, MaglevSlots)
	for e, slots := range t.held {
		for _, s := range slots {
			p.Table[s.slot] = uint16(e)
		}
	}
}

// HashesLike reports whether Hash makes the same table for two pools, which are in
// address order.
func (p *Pool) HashesLike(o *Pool) bool {
	return slices.EqualFunc(p.Endpoints, o.Endpoints, func(a, b Endpoint) bool {
		return a.Addr.Addr() == b.Addr.Addr() && a.Weight == b.Weight
	})
}

// quotas is how many slots of a table each endpoint has at most: the less they are
// alike, the fewer slots move.
func (p *Pool) quotas() []int {
	shares := slices.Clone(p.Endpoints)
	for i := range shares {
		shares[i].Weight = max(shares[i].Weight, 1)
	}
	quotas := apportion(shares, MaglevSlots)
	for i := range quotas {
		quotas[i] += min(quotas[i]/16, 6)
	}
	return quotas
}

// tables is a table in the making.
type tables struct {
	seeds []uint64 // of the endpoints
	quota []int
	held  []held

	wishes [MaglevSlots]wishes
}

// wishes are the endpoints that a slot prefers next, the best first. There are more
// below the last score when the list is empty: most slots need only the first few, and
// one look at all endpoints finds several.
type wishes struct {
	list []wish
	last uint64 // the lowest score of those that were taken
}

type wish struct {
	score    uint64
	endpoint int
}

// wishesAtOnce is how many wishes of a slot one look finds.
const wishesAtOnce = 16

// held are the slots of an endpoint, the one that prefers it least first.
type held []claim

type claim struct {
	score uint64
	slot  uint16
}

// place gives a slot to the endpoint that it prefers most of those that have room
// or hold one that prefers them less, which must look further in turn.
func (t *tables) place(slot uint16) {
	for {
		w := t.next(slot)
		best, c := w.endpoint, claim{w.score, slot}
		at, _ := slices.BinarySearchFunc(t.held[best], c, func(a, b claim) int { return cmp.Compare(a.score, b.score) })
		t.held[best] = slices.Insert(t.held[best], at, c)
		if len(t.held[best]) <= t.quota[best] {
			return
		}
		slot = t.held[best][0].slot
		t.held[best] = t.held[best][1:]
	}
}

// next returns the endpoint that a slot prefers most of those that have not refused it.
func (t *tables) next(slot uint16) wish {
	w := &t.wishes[slot]
	if len(w.list) == 0 {
		w.list = t.look(slot, w.last, make([]wish, 0, min(wishesAtOnce, len(t.seeds))))
	}
	first := w.list[0]
	w.list, w.last = w.list[1:], first.score
	return first
}

// look fills a list with the best wishes of a slot that are below a score.
func (t *tables) look(slot uint16, below uint64, list []wish) []wish {
	for e, seed := range t.seeds {
		score := mix(seed ^ uint64(slot))
		full := len(list) == cap(list)
		if score >= below || full && score < list[len(list)-1].score {
			continue
		}
		if full {
			list = list[:len(list)-1]
		}
		at := len(list)
		for at > 0 && list[at-1].score < score {
			at--
		}
		list = slices.Insert(list, at, wish{score, e})
	}
	return list
}

func seedOf(a netip.Addr) uint64 {
	h := fnv.New64a()
	ip := a.As16()
	h.Write(ip[:])
	return mix(h.Sum64())
}

// mix spreads what differs in few bits over all of them (the finalizer of
// MurmurHash3).
func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
