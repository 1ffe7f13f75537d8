// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math/bits"

	"github.com/tandem-proxy/tandem/core/model"
)

// Numgen is a number in a key: Offset <= number < Offset+Mod. Zero is none.
type Numgen struct {
	Mod, Offset uint32
	By          Generator
}

// Generator is how a number is chosen.
type Generator uint8

// The generators.
const (
	AtRandom  Generator = iota // "numgen random"
	InTurn                     // "numgen inc": each rule counts for itself
	ByJenkins                  // "jhash" of clientFields, the same on all hosts of one byte order
)

// clientFields are what ByJenkins takes the hash of.
var clientFields = []Field{Saddr, Sport}

// jenkinsSeed is the seed of ByJenkins. All nodes must have the same.
const jenkinsSeed = 0x54616e64

func (n Numgen) text(f model.Family) string {
	var text string
	switch n.By {
	case ByJenkins:
		text = fmt.Sprintf("jhash %s mod %d seed 0x%x", keyText(f, clientFields, ""), n.Mod, jenkinsSeed)
	case InTurn:
		text = fmt.Sprintf("numgen inc mod %d", n.Mod)
	default:
		text = fmt.Sprintf("numgen random mod %d", n.Mod)
	}
	if n.Offset > 0 {
		text += fmt.Sprintf(" offset %d", n.Offset)
	}
	return text
}

func (n Numgen) encode(e *encoder, reg int) {
	if n.By == ByJenkins {
		e.jhash(reg, clientFields, n.Mod, jenkinsSeed, n.Offset)
		return
	}
	random := uint32(1) // NFT_NG_RANDOM
	if n.By == InTurn {
		random = 0 // NFT_NG_INCREMENTAL
	}
	e.expr("numgen", func() {
		e.Uint32(1, uint32(reg))
		e.Uint32(2, n.Mod)
		e.Uint32(3, random)
		if n.Offset > 0 {
			e.Uint32(4, n.Offset)
		}
	})
}

// eval ranges over the numbers that a packet may get, all with the same chance.
func (n Numgen) eval(p packet) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		if n.By == ByJenkins && p.Sport != 0 {
			yield(n.Offset + reciprocalScale(jhash(p.client(), jenkinsSeed), n.Mod))
			return
		}
		for i := range max(n.Mod, 1) {
			if !yield(n.Offset + i) {
				return
			}
		}
	}
}

// chances is how many numbers eval gives.
func (n Numgen) chances(p packet) float64 {
	if n.By == ByJenkins && p.Sport != 0 {
		return 1
	}
	return float64(max(n.Mod, 1))
}

// client are clientFields as they are in registers: what is shorter than one is
// followed by zeros.
func (p packet) client() []byte {
	return append(binary.BigEndian.AppendUint16(p.Src.AsSlice(), p.Sport), 0, 0)
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
