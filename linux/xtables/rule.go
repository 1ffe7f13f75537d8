// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// Table is a table of iptables.
type Table uint8

// The tables that modes write to.
const (
	Filter Table = iota
	NAT
	Mangle
	Tables // how many there are
)

// String returns the table's name.
func (t Table) String() string { return [...]string{"filter", "nat", "mangle"}[t] }

// Variant is one of the two ways in which iptables reaches the kernel. Rules of
// one are invisible to the other.
type Variant string

// The variants.
const (
	Legacy Variant = "legacy"
	NFT    Variant = "nft" // iptables over nf_tables
)

// The built-in chains.
const (
	PreRouting  = "PREROUTING"
	Input       = "INPUT"
	Forward     = "FORWARD"
	Output      = "OUTPUT"
	PostRouting = "POSTROUTING"
)

// Rule is one rule. The zero value of a field is no such match. The order of
// Matches means nothing.
type Rule struct {
	Src, Dst Addrs
	In       Interface
	Proto    model.Proto
	Comment  string
	Ports    Ports // destination; needs Proto
	Matches  []Match
	Target   Target // nil to do nothing but count

	// Unparsed is the text of a rule with unknown options; no other field is set.
	Unparsed string
}

// MaxComment is how many bytes a comment may have.
const MaxComment = 255

// Addrs matches an address of a packet.
type Addrs struct {
	Prefix netip.Prefix
	Not    bool
}

// Address is the match of one address.
func Address(a netip.Addr) Addrs { return Addrs{Prefix: netip.PrefixFrom(a, a.BitLen())} }

// Within is the match of a prefix; that of all addresses is no match.
func Within(p netip.Prefix) Addrs {
	if p.Bits() <= 0 {
		return Addrs{}
	}
	return Addrs{Prefix: p}
}

// Interface matches the interface that a packet came in by; a trailing + is
// for any rest of the name.
type Interface struct {
	Name string
	Not  bool
}

// Ports matches a range of ports.
type Ports struct{ First, Last uint16 }

// Port is the match of one port.
func Port(n uint16) Ports { return Ports{n, n} }

// Match is a match extension (-m). Matches are comparable.
type Match interface {
	// order is the match's position in the text of a rule.
	order() int
	append([]byte) []byte
}

type (
	// SrcLocal matches packets from an address of the host itself.
	SrcLocal struct{ Not bool }

	// DstLocal matches packets to an address of the host itself.
	DstLocal struct{ Not bool }

	// HasMark matches packets whose mark has Value in the bits of Mask.
	HasMark struct {
		Value, Mask uint32
		Not         bool
	}

	// InSet matches packets with an entry in an ipset. Fields are "src" and "dst",
	// one for each part of an entry, with commas.
	InSet struct {
		Set, Fields string
		Not         bool
	}

	// State matches the connection tracking state, such as NEW or
	// RELATED,ESTABLISHED.
	State struct {
		Any string
		Not bool
	}

	// Recent is xt_recent: Set records the sender; without it the match asks whether
	// the sender was recorded within Seconds.
	Recent struct {
		Name    string
		Set     bool
		Seconds uint32
	}

	// Chance matches at random, in units of 1/2^31.
	Chance uint32
)

// certain is the probability 1.
const certain = 1 << 31

// OneOf is the probability 1/n, as the kernel stores it.
func OneOf(n int) Chance { return PartOf(1, n) }

// PartOf is the probability parts/n.
func PartOf(parts, n int) Chance {
	return Chance((certain*uint64(parts) + uint64(n)/2) / uint64(n))
}

// Target is what a rule does with packets that match. Targets are comparable.
type Target interface{ append([]byte) []byte }

type (
	// Verdict is a target that ends a chain and has no options.
	Verdict uint8

	// Jump goes to a chain, and comes back at its end.
	Jump struct{ Chain string }

	// Goto goes to a chain, and comes back to where this one was called from.
	Goto struct{ Chain string }

	// DNAT rewrites a connection's destination.
	DNAT struct{ To netip.AddrPort }

	// Masquerade rewrites a connection's source to the host's address.
	Masquerade struct{ RandomFully bool }

	// SetMark clears the bits of Mask in a packet's mark and flips those of Value.
	SetMark struct{ Value, Mask uint32 }

	// MapMark sets a packet's mark to that of its entry in an ipset (SET --map-set),
	// if there is one.
	MapMark struct{ Set, Fields string }
)

// The verdicts. Reject answers that the port is unreachable.
const (
	Accept Verdict = iota
	Drop
	Reject
	Return
)

// JumpTo is a rule without matches that jumps to a chain.
func JumpTo(chain string) Rule { return Rule{Target: Jump{chain}} }

// Chain is the chain that a rule jumps or goes to; empty for none.
func (r Rule) Chain() string {
	switch t := r.Target.(type) {
	case Jump:
		return t.Chain
	case Goto:
		return t.Chain
	}
	return ""
}

// With returns the rule with an additional match.
func (r Rule) With(m Match) Rule {
	r.Matches = append(r.Matches[:len(r.Matches):len(r.Matches)], m)
	return r
}
