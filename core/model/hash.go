// SPDX-License-Identifier: Apache-2.0

package model

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

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
