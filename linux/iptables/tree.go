package iptables

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

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
