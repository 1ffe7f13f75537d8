package iptables

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// A tree spreads the rules of a chain over smaller chains, by prefixes of
// addresses and by ranges of ports, so that a packet meets tens of rules, not
// tens of thousands, and a change rewrites one small chain. Where it branches is
// fixed: a rule has its place whatever else there is.
//
//	KUBE-SERVICES ─10.0.0.0/8▶ KUBE-IP-10.0.0.0/8 ─10.96.0.0/16▶ … ─10.96.0.0/26▶ KUBE-IP-10.96.0.0/26
//	KUBE-NODEPORTS ─tcp 30208:30463▶ KUBE-NP-tcp-30208-30463 ─tcp 30208:30223▶ KUBE-NP-tcp-30208-30223
//
// Below the root chains are left by goto: no other branch can have what one
// lacks, so a packet goes back to whoever called the root.
type tree struct {
	table     xtables.Table
	root      string
	beginning string // of the names of its chains
	comment   string // on the rules of the root
}

var (
	vipTree      = tree{xtables.NAT, chainServices, "KUBE-IP-", ""}
	portTree     = tree{xtables.NAT, chainNodePorts, "KUBE-NP-", ""}
	clusterTree  = tree{xtables.Filter, chainServices, "KUBE-IP-", "cluster IPs refuse ports that they do not have"}
	externalTree = tree{xtables.Filter, chainExternal, "KUBE-XIP-", ""}
	firewallTree = tree{xtables.Filter, chainFirewall, "KUBE-FIP-", ""}
	closedTree   = tree{xtables.Filter, chainClosed, "KUBE-XNP-", ""}

	trees = [...]tree{vipTree, portTree, clusterTree, externalTree, firewallTree, closedTree}
)

// Where trees branch. Cluster IPs come from one range of at most 20 bits, in
// IPv6 from the last bits of it. Addresses of load balancers may be anywhere.
//
// API servers give cluster IPs out at random. Each chain takes 480 bytes of a
// legacy table, which is copied for each change, so chains for too few addresses
// cost more than they spare; chains for too many cost first packets.
var (
	branches = [...][]int{model.IPv4: {8, 16, 21, 26}, model.IPv6: {32, 112, 117, 122}}
	spans    = []uint16{256, 16} // of ports
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
