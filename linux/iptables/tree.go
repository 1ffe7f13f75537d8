package iptables

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/tandem-proxy/tandem/core/model"
)

// A tree spreads the rules of a chain over smaller chains, by prefixes of
// addresses and by ranges of ports, so that a packet meets tens of rules, or some
// hundreds where addresses are dense, not tens of thousands, and a change
// rewrites one small chain. Where it branches is fixed: a rule has its place
// whatever else there is.
//
//	KUBE-SERVICES ─10.0.0.0/8▶ KUBE-IP-10.0.0.0/8 ─10.96.0.0/16▶ … ─10.96.0.0/24▶ KUBE-IP-10.96.0.0/24
//	KUBE-NODEPORTS ─tcp 30208:30463▶ KUBE-NP-tcp-30208-30463 ─tcp 30208:30223▶ KUBE-NP-tcp-30208-30223
//
// Below the root chains are left by goto: no other branch can have what one
// lacks, so a packet goes back to whoever called the root.
type tree struct {
	table     Table
	root      string
	beginning string // of the names of its chains
	comment   string // on the rules of the root
}

var (
	vipTree      = tree{NAT, chainServices, "KUBE-IP-", ""}
	portTree     = tree{NAT, chainNodePorts, "KUBE-NP-", ""}
	clusterTree  = tree{Filter, chainServices, "KUBE-IP-", "cluster IPs refuse ports that they do not have"}
	externalTree = tree{Filter, chainExternal, "KUBE-XIP-", ""}
	firewallTree = tree{Filter, chainFirewall, "KUBE-FIP-", ""}
	closedTree   = tree{Filter, chainClosed, "KUBE-XNP-", ""}

	trees = [...]tree{vipTree, portTree, clusterTree, externalTree, firewallTree, closedTree}
)

// Where trees branch. Cluster IPs come from one range of at most 20 bits, in
// IPv6 from the last bits of it. Addresses of load balancers may be anywhere.
// API servers give cluster IPs out at random: chains for fewer than 256 addresses
// would hold two or three of them, and each takes 480 bytes of a legacy table.
var (
	branches = [...][]int{model.IPv4: {8, 16, 20, 24}, model.IPv6: {32, 112, 116, 120}}
	spans    = []uint16{256, 16} // of ports
)

// byAddress emits the way from the root to the leaf of an address, and returns
// the leaf.
func (t tree) byAddress(a netip.Addr, known *branchCache, emit func(Key, Value)) chainID {
	family := model.FamilyOf(a)
	at := chainID{family, t.table, t.root}
	for depth, bits := range branches[family] {
		prefix := netip.PrefixFrom(a, bits).Masked()
		at = known.branch(branchID{t, prefix}, func() branch {
			next := addressChain(t.beginning, prefix)
			r := Rule{Dst: addrMatch{Prefix: prefix}, Target: next, Goto: depth > 0}
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
	at := chainID{family, t.table, t.root}
	for depth, span := range spans {
		first := number &^ (span - 1)
		r := portRange{first, first + span - 1}
		next := portChain(t.beginning, proto, r)
		at = branchTo(at, Rule{Proto: proto, Ports: r, Target: next, Goto: depth > 0}).emit(emit)
	}
	return at
}

// branch is one step on the way: a rule that leads to a chain, and the chain.
type branch struct {
	rule Key
	text Value
	next chainID
}

func branchTo(at chainID, r Rule) branch {
	return branch{Key{at, line(at, r)}, r.text(), chainID{at.Family, at.Table, r.Target}}
}

func (b branch) emit(emit func(Key, Value)) chainID {
	emit(b.rule, b.text)
	emit(Key{chainID: b.next}, "")
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
func emitLine(at chainID, r Rule, emit func(Key, Value)) {
	emit(Key{at, line(at, r)}, r.text())
}

// line is where a rule belongs in a chain to which many contribute: a place,
// then its matches, which no two rules share. The places:
//
//	'1'       parts of the tree: disjoint
//	'2'-'7'   the more specific first
//	'8', '9'  what comes last: the way on to node ports, and what never gets there
//
// In chains of the kernel the place is where the target stands in jumps.
func line(at chainID, r Rule) string {
	return string(place(at, r)) + r.matches()
}

func place(at chainID, r Rule) byte {
	if classOf(at.Chain) == foreign {
		return jumpPlace(r.Target)
	}
	switch {
	case r.Target == chainNodePorts || r.Target == chainClosed:
		return '9'
	case r.Target == targetReturn && r.Proto == 0:
		return '8'
	case classOf(r.Target) == shared:
		return '1'
	}
	p := byte('6')
	if r.Proto != 0 {
		p--
	}
	if r.Src.Prefix.IsValid() || r.In.Name != "" || r.SrcLocal {
		p--
		if r.Src.Prefix.IsValid() || r.In.Name != "" {
			p-- // pods come before the host
		}
	}
	return p
}
