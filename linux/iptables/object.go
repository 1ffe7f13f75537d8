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
// order of Line.
type Key struct {
	chainID
	Line
}

// Line is where a rule belongs in a chain to which many contribute. The zero Line
// is the chain itself, with all its rules where it is a port's own, and without
// any where it is shared.
type Line struct {
	Place Place
	N     uint32           // where it was found, of aliens
	Asks  xtables.Selector // no two rules of a place ask for the same
}

// Place orders the rules of a chain to which many contribute.
type Place uint8

// The places. Rules of one place are disjoint, but for the last.
const (
	placeChain    Place = iota // the chain itself
	placeAlien                 // no place of its own: what should not be there
	placeDisorder              // stands for rules that are not in their order
	placeBranch                // parts of the tree
	placePods                  // the more specific first: a front, for pods
	placeHost                  // for the host itself
	placePort                  // for whoever comes
	placeAddress               // other ports of the address
	placeLoopback              // what never gets to node ports
	placeLast                  // the way on to node ports
	placeJump                  // in chains of the kernel: from here on, in the order of jumps
)

func (l Line) compare(o Line) int {
	return cmp.Or(cmp.Compare(l.Place, o.Place), cmp.Compare(l.N, o.N), l.Asks.Compare(o.Asks))
}

// alien reports whether a line should not be in its chain. To delete it is to write
// the chain anew without it.
func (l Line) alien() bool { return l.Place == placeAlien || l.Place == placeDisorder }

// String returns the key as people know it.
func (k Key) String() string {
	s := k.Family.String() + " " + k.Table.String() + " " + k.Chain
	if asks := k.Asks.String(); asks != "" {
		s += " " + asks
	}
	return s
}

// Value is the rules of an object.
type Value = xtables.Rules

// compareKeys orders keys as scripts list them.
func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Table, b.Table),
		strings.Compare(a.Chain, b.Chain), a.compare(b.Line))
}

// emitLine emits one rule of a shared chain.
func emitLine(at chainID, r xtables.Rule, emit func(Key, Value)) {
	emit(Key{at, line(at, r)}, xtables.List(r))
}

// line is where a rule belongs in a chain to which many contribute.
func line(at chainID, r xtables.Rule) Line { return Line{Place: place(at, r), Asks: r.Selector()} }

func place(at chainID, r xtables.Rule) Place {
	to := r.Chain()
	switch {
	case classOf(at.Chain) == foreign:
		return jumpPlace(at, to)
	case to == chainNodePorts || to == chainClosed:
		return placeLast
	case r.Target == xtables.Return && r.Proto == 0:
		return placeLoopback
	case classOf(to) == shared:
		return placeBranch
	case r.Src.Prefix.IsValid() || r.In.Name != "":
		return placePods
	case slices.Contains(r.Matches, xtables.Match(xtables.SrcLocal{})):
		return placeHost
	case r.Proto != 0:
		return placePort
	}
	return placeAddress
}

// jumpPlace orders our rules in chains of the kernel: what leads nowhere, the rule
// against martians, comes first.
func jumpPlace(at chainID, to string) Place {
	if to == "" {
		return placeJump
	}
	for i, j := range jumps {
		if j.table == at.Table && j.from == at.Chain && j.to == to {
			return placeJump + 1 + Place(i)
		}
	}
	return placeJump + 1 + Place(len(jumps))
}

// emitWhole emits a chain that is one object.
func emitWhole(at chainID, emit func(Key, Value), rules ...xtables.Rule) {
	emit(Key{chainID: at}, xtables.List(rules...))
}

// byAddress emits the way from the root to the leaf of an address, and returns
// the leaf.
func (t tree) byAddress(a netip.Addr, known *branchCache, emit func(Key, Value)) chainID {
	family := model.FamilyOf(a)
	at := chainID{Family: family, Table: t.table, Chain: t.root}
	for depth, bits := range branches[family] {
		prefix := netip.PrefixFrom(a, bits).Masked()
		at = known.branch(branchID{t, prefix}, func() branch {
			next := addressChain(t.beginning, prefix)
			r := xtables.Rule{Dst: xtables.Addrs{Prefix: prefix}, Target: below(depth, next)}
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
	for depth, span := range spans {
		first := number &^ (span - 1)
		r := xtables.Ports{First: first, Last: first + span - 1}
		next := portChain(t.beginning, proto, r)
		at = branchTo(at, xtables.Rule{Proto: proto, Ports: r, Target: below(depth, next)}).emit(emit)
	}
	return at
}

// branch is one step on the way: a rule that leads to a chain, and the chain.
type branch struct {
	rule Key
	text Value
	next chainID
}

// below is how a chain of a tree is entered.
func below(depth int, chain string) xtables.Target {
	if depth == 0 {
		return xtables.Jump{Chain: chain}
	}
	return xtables.Goto{Chain: chain}
}

func branchTo(at chainID, r xtables.Rule) branch {
	return branch{Key{at, line(at, r)}, xtables.List(r), chainID{Family: at.Family, Table: at.Table, Chain: r.Chain()}}
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

// keptBranches bounds the cache, for a cluster whose addresses keep changing.
const keptBranches = 1 << 16

func (c *branchCache) branch(id branchID, make func() branch) branch {
	if b, ok := c.known.Load(id); ok {
		return b.(branch)
	}
	b := make()
	if c.size.Add(1) < keptBranches {
		c.known.Store(id, b)
	}
	return b
}
