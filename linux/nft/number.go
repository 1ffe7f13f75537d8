// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"fmt"
	"iter"
	"net/netip"

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

func (n Numgen) text(f model.Family) string {
	var text string
	switch n.By {
	case ByJenkins:
		text = fmt.Sprintf("jhash %s mod %d seed 0x%x", keyText(f, clientFields, ""), n.Mod, model.HashSeed)
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
		e.jhash(reg, clientFields, n.Mod, model.HashSeed, n.Offset)
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
			yield(n.Offset + model.HashSlot(netip.AddrPortFrom(p.Src, p.Sport), n.Mod))
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
