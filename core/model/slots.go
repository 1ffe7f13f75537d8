// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"encoding/binary"
	"math/bits"
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
	n, stay := len(endpoints), 0
	for _, i := range slot {
		if i >= 0 {
			stay++
		}
	}
	if stay == 0 {
		return
	}
	placed := make([]Endpoint, n)
	taken := make([]bool, n)
	rest := make([]Endpoint, 0, n-stay) // new endpoints
	var late []Endpoint                 // staying ones from slots that no longer exist
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
		there := next < len(old) && old[byAddr[next]] == e.Addr
		if !there && !between(old, byAddr, next, e.Addr) {
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

// between reports whether an address belongs right before that at a place of an order.
func between(old []netip.AddrPort, byAddr []int, place int, a netip.AddrPort) bool {
	return (place == 0 || old[byAddr[place-1]].Compare(a) < 0) && (place == len(byAddr) || a.Compare(old[byAddr[place]]) < 0)
}

// HashSeed is the seed of HashSlot. All nodes must have the same.
const HashSeed = 0x54616e64

// HashSlot returns the slot of a client, among a number of them, in a pool that is
// looked up by hash. It is what the expression "jhash ip saddr . th sport" of
// nftables gives in the kernel: each field fills whole words, with zeros behind it.
func HashSlot(client netip.AddrPort, slots uint32) uint32 {
	key := append(binary.BigEndian.AppendUint16(client.Addr().AsSlice(), client.Port()), 0, 0)
	return reciprocalScale(jhash(key, HashSeed), slots)
}

// reciprocalScale is reciprocal_scale of include/linux/math.h, which nft_hash uses
// in place of a modulus.
func reciprocalScale(v, n uint32) uint32 { return uint32(uint64(v) * uint64(n) >> 32) }

// jhash is jhash of include/linux/jhash.h. Whole blocks are read in the byte order
// of the host; what is left of the last one is not.
func jhash(key []byte, initial uint32) uint32 {
	a := 0xdeadbeef + uint32(len(key)) + initial
	b, c := a, a
	for len(key) > 12 {
		a += binary.NativeEndian.Uint32(key)
		b += binary.NativeEndian.Uint32(key[4:])
		c += binary.NativeEndian.Uint32(key[8:])
		a, b, c = jhashMix(a, b, c)
		key = key[12:]
	}
	if len(key) == 0 {
		return c
	}
	var last [12]byte
	copy(last[:], key)
	a += binary.LittleEndian.Uint32(last[:])
	b += binary.LittleEndian.Uint32(last[4:])
	c += binary.LittleEndian.Uint32(last[8:])
	return jhashFinal(a, b, c)
}

// jhashMix is __jhash_mix.
func jhashMix(a, b, c uint32) (uint32, uint32, uint32) {
	a = a - c ^ bits.RotateLeft32(c, 4)
	c += b
	b = b - a ^ bits.RotateLeft32(a, 6)
	a += c
	c = c - b ^ bits.RotateLeft32(b, 8)
	b += a
	a = a - c ^ bits.RotateLeft32(c, 16)
	c += b
	b = b - a ^ bits.RotateLeft32(a, 19)
	a += c
	c = c - b ^ bits.RotateLeft32(b, 4)
	b += a
	return a, b, c
}

// jhashFinal is __jhash_final.
func jhashFinal(a, b, c uint32) uint32 {
	c = (c ^ b) - bits.RotateLeft32(b, 14)
	a = (a ^ c) - bits.RotateLeft32(c, 11)
	b = (b ^ a) - bits.RotateLeft32(a, 25)
	c = (c ^ b) - bits.RotateLeft32(b, 16)
	a = (a ^ c) - bits.RotateLeft32(c, 4)
	b = (b ^ a) - bits.RotateLeft32(a, 14)
	return (c ^ b) - bits.RotateLeft32(b, 24)
}
