// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// tables are those that hold anything of ours, in the order in which they are
// written.
func tables() [2]xtables.Table { return [...]xtables.Table{xtables.Filter, xtables.NAT} }

// Key names an object: a whole chain that one port has for itself, or one rule
// of a chain to which many contribute. A chain's rules are its objects in the
// order of Position.
type Key struct {
	chainID
	Position
}

// Position is where a rule belongs in a chain to which many contribute. The zero Position
// is the chain itself, with all its rules where it is a port's own, and without
// any where it is shared.
type Position struct {
	Rank     Rank
	Index    uint32           // its index in the chain, of unexpected rules
	Selector xtables.Selector // what it matches: unique within a rank
}

// Rank orders the rules of a chain to which many contribute.
type Rank uint8

// The ranks. Rules of one rank are disjoint, but for the last.
const (
	rankChain      Rank = iota // the chain itself
	rankUnexpected             // a rule that should not be there
	rankDisorder               // stands for rules in a wrong order
	rankBranch                 // parts of the tree
	rankPods                   // the more specific first: a frontend, for pods
	rankHost                   // for the host itself
	rankPort                   // for all origins
	rankAddress                // other ports of the address
	rankLoopback               // what never gets to node ports
	rankLast                   // the way on to node ports
	rankJump                   // in chains of the kernel: from here on, in the order of jumps
)

func (l Position) compare(o Position) int {
	return cmp.Or(cmp.Compare(l.Rank, o.Rank), cmp.Compare(l.Index, o.Index), l.Selector.Compare(o.Selector))
}

// unexpected reports whether a line should not be in its chain. To delete it is to write
// the chain anew without it.
func (l Position) unexpected() bool { return l.Rank == rankUnexpected || l.Rank == rankDisorder }

// String returns the key as people know it.
func (k Key) String() string {
	s := k.Family.String() + " " + k.Table.String() + " " + k.Chain
	if asks := k.Selector.String(); asks != "" {
		s += " " + asks
	}
	return s
}

// Value is the rules of an object.
type Value = xtables.Rules

// compareKeys orders keys as scripts list them.
func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Table, b.Table),
		strings.Compare(a.Chain, b.Chain), a.compare(b.Position))
}

// emitRule emits one rule of a shared chain.
func emitRule(at chainID, r xtables.Rule, emit func(Key, Value)) {
	emit(Key{at, position(at, r)}, xtables.List(r))
}

// position is where a rule belongs in a chain to which many contribute.
func position(at chainID, r xtables.Rule) Position {
	return Position{Rank: rankOf(at, r), Selector: r.Selector()}
}

func rankOf(at chainID, r xtables.Rule) Rank {
	to := r.Chain()
	switch {
	case classOf(at.Chain) == unowned:
		return jumpRank(at, to)
	case to == chainNodePorts || to == chainUnserved:
		return rankLast
	case r.Target == xtables.Return && r.Proto == 0:
		return rankLoopback
	case classOf(to) == shared:
		return rankBranch
	case r.Src.Prefix.IsValid() || r.In.Name != "":
		return rankPods
	case slices.Contains(r.Matches, xtables.Match(xtables.SrcLocal{})):
		return rankHost
	case r.Proto != 0:
		return rankPort
	}
	return rankAddress
}

// jumpRank orders our rules in chains of the kernel: the rule
// that blocks localnet comes first.
func jumpRank(at chainID, to string) Rank {
	if to == "" {
		return rankJump
	}
	for i, j := range jumps {
		if j.table == at.Table && j.from == at.Chain && j.to == to {
			return rankJump + 1 + Rank(i)
		}
	}
	return rankJump + 1 + Rank(len(jumps))
}

// emitChain emits a chain that is one object.
func emitChain(at chainID, emit func(Key, Value), rules ...xtables.Rule) {
	emit(Key{chainID: at}, xtables.List(rules...))
}

// byAddress emits the way from the root to the leaf of an address, and returns
// the leaf.
func (t tree) byAddress(a netip.Addr, known *branchCache, emit func(Key, Value)) chainID {
	family := model.FamilyOf(a)
	at := chainID{Family: family, Table: t.table, Chain: t.root}
	for depth, bits := range prefixLengths[family] {
		prefix := netip.PrefixFrom(a, bits).Masked()
		at = known.branch(branchID{t, prefix}, func() branch {
			next := addressChain(t.prefix, prefix)
			r := xtables.Rule{Dst: xtables.Addrs{Prefix: prefix}, Target: enter(depth, next)}
			if depth == 0 {
				r.Comment = t.comment
			}
			return branchTo(at, r)
		}).emit(emit)
	}
	return at
}

// byPort does the same for a port.
func (t tree) byPort(family model.Family, proto model.Proto, number uint16, emit func(Key, Value)) chainID {
	at := chainID{Family: family, Table: t.table, Chain: t.root}
	for depth, span := range portSpans {
		first := number &^ (span - 1)
		r := xtables.Ports{First: first, Last: first + span - 1}
		next := portChain(t.prefix, proto, r)
		at = branchTo(at, xtables.Rule{Proto: proto, Ports: r, Target: enter(depth, next)}).emit(emit)
	}
	return at
}

// branch is one step on the way: a rule that leads to a chain, and the chain.
type branch struct {
	rule Key
	text Value
	next chainID
}

// enter is how a chain of a tree is entered.
func enter(depth int, chain string) xtables.Target {
	if depth == 0 {
		return xtables.Jump{Chain: chain}
	}
	return xtables.Goto{Chain: chain}
}

func branchTo(at chainID, r xtables.Rule) branch {
	return branch{Key{at, position(at, r)}, xtables.List(r), chainID{Family: at.Family, Table: at.Table, Chain: r.Chain()}}
}

func (b branch) emit(emit func(Key, Value)) chainID {
	emit(b.rule, b.text)
	emit(Key{chainID: b.next}, Value{})
	return b.next
}

// branchCache keeps branches: thousands of ports share them, and their text.
type branchCache struct {
	known sync.Map // branchID -> branch
	size  atomic.Int32
}

type branchID struct {
	tree   tree
	prefix netip.Prefix
}

// maxBranches bounds the cache, for a cluster whose addresses keep changing.
const maxBranches = 1 << 16

func (c *branchCache) branch(id branchID, make func() branch) branch {
	if b, ok := c.known.Load(id); ok {
		return b.(branch)
	}
	b := make()
	if c.size.Add(1) < maxBranches {
		c.known.Store(id, b)
	}
	return b
}
