// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// chainID names a chain of one table of one family.
type chainID = xtables.ChainID

func filter(f model.Family, chain string) chainID {
	return chainID{Family: f, Table: xtables.Filter, Chain: chain}
}

func nat(f model.Family, chain string) chainID {
	return chainID{Family: f, Table: xtables.NAT, Chain: chain}
}

// The constant chains. The names are kube-proxy's, which people and tools know,
// except for those marked as Tandem's.
const (
	chainServices    = "KUBE-SERVICES"           // nat: dispatch by address; filter: rejects cluster IPs without endpoints, and ports that a cluster IP does not have
	chainExternal    = "KUBE-EXTERNAL-SERVICES"  // filter: rejects external and load balancer IPs without endpoints
	chainNodePorts   = "KUBE-NODEPORTS"          // nat: dispatch by port; filter: health check ports
	chainUnserved    = "KUBE-NODEPORTS-UNSERVED" // filter: rejects node ports without endpoints; Tandem's
	chainFirewall    = "KUBE-PROXY-FIREWALL"     // filter: drops clients outside of source ranges
	chainForward     = "KUBE-FORWARD"            // filter: accepts marked packets and connections, drops invalid packets
	chainMark        = "KUBE-MARK-MASQ"          // nat: marks packets to be masqueraded
	chainPostrouting = "KUBE-POSTROUTING"        // nat: masquerades marked packets
)

// The prefixes of the names of chains that belong to one port.
const (
	prefixCluster  = "KUBE-SVC-" // chooses among the endpoints of the cluster
	prefixLocal    = "KUBE-SVL-" // chooses among the endpoints of this node
	prefixExternal = "KUBE-EXT-" // by origin, to one of the two above
	prefixFirewall = "KUBE-FW-"  // by source range, to KUBE-EXT-
	prefixEndpoint = "KUBE-SEP-" // one endpoint
)

// jumps are the owned rules in built-in chains, in order. They are inserted at the top, as
// in kube-proxy.
var jumps = [...]struct {
	table   xtables.Table
	from    string
	to      string
	always  bool // for all packets, not only those of new connections
	comment string
}{
	{xtables.NAT, xtables.PreRouting, chainServices, true, "kubernetes service portals"},
	{xtables.NAT, xtables.Output, chainServices, true, "kubernetes service portals"},
	{xtables.NAT, xtables.PostRouting, chainPostrouting, true, "kubernetes postrouting rules"},

	{xtables.Filter, xtables.Input, chainFirewall, false, "kubernetes load balancer firewall"},
	{xtables.Filter, xtables.Input, chainNodePorts, true, "kubernetes health check service ports"},
	{xtables.Filter, xtables.Input, chainExternal, false, "kubernetes externally-visible service portals"},
	{xtables.Filter, xtables.Forward, chainFirewall, false, "kubernetes load balancer firewall"},
	{xtables.Filter, xtables.Forward, chainForward, true, "kubernetes forwarding rules"},
	{xtables.Filter, xtables.Forward, chainExternal, false, "kubernetes externally-visible service portals"},
	{xtables.Filter, xtables.Forward, chainServices, false, "kubernetes service portals"},
	{xtables.Filter, xtables.Output, chainFirewall, false, "kubernetes load balancer firewall"},
	{xtables.Filter, xtables.Output, chainExternal, false, "kubernetes externally-visible service portals"},
	{xtables.Filter, xtables.Output, chainServices, false, "kubernetes service portals"},
}

// class is the ownership of a chain, and how its rules are composed.
type class uint8

const (
	unowned class = iota // not owned; single rules in built-in chains are
	shared               // many ports contribute rules
	whole                // all rules are one object
)

// classOf returns the class of a chain by its name.
func classOf(chain string) class {
	switch chain {
	case chainServices, chainExternal, chainNodePorts, chainUnserved, chainFirewall:
		return shared
	case chainForward, chainMark, chainPostrouting:
		return whole
	}
	for _, t := range trees {
		if strings.HasPrefix(chain, t.prefix) {
			return shared
		}
	}
	for _, prefix := range []string{prefixCluster, prefixLocal, prefixExternal, prefixFirewall, prefixEndpoint} {
		if rest, ok := strings.CutPrefix(chain, prefix); ok && isHash(rest) {
			return whole
		}
	}
	return unowned
}

// hashLength is the length of a hash in names: 80 bits.
const hashLength = 16

// hash is kube-proxy's hash for names.
func hash(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "")))
	return base32.StdEncoding.EncodeToString(sum[:])[:hashLength]
}

func isHash(s string) bool {
	return len(s) == hashLength && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

// portHash identifies a port in names: kube-proxy's own formula.
func portHash(id model.PortID) string { return hash(id.String(), id.Proto.String()) }

// endpointChain names the chain of one endpoint, by kube-proxy's formula.
func endpointChain(id model.PortID, endpoint netip.AddrPort) string {
	return prefixEndpoint + hash(id.String(), id.Proto.String(), endpoint.String())
}

// addressChain names a chain of a tree by its prefix. IPv6 prefixes are too long for
// a name (28 bytes); the rule that leads to the chain shows them.
func addressChain(beginning string, p netip.Prefix) string {
	if p.Addr().Is4() {
		return beginning + p.String()
	}
	return beginning + hash(p.String())
}

// portChain names a chain of a tree by its ports.
func portChain(beginning string, proto model.Proto, r xtables.Ports) string {
	return beginning + proto.String() + "-" + strconv.Itoa(int(r.First)) + "-" + strconv.Itoa(int(r.Last))
}

// A tree spreads the rules of a chain over smaller chains, by address prefix or port
// range, so that a packet traverses tens of rules, not tens of thousands, and a
// change rewrites one small chain. Its branches are fixed: the position of a rule does
// not depend on other rules.
//
//	KUBE-SERVICES ─10.0.0.0/8▶ KUBE-IP-10.0.0.0/8 ─10.96.0.0/16▶ … ─10.96.0.0/26▶ KUBE-IP-10.96.0.0/26
//	KUBE-NODEPORTS ─tcp 30208:30463▶ KUBE-NP-tcp-30208-30463 ─tcp 30208:30223▶ KUBE-NP-tcp-30208-30223
//
// Below the root, chains are entered by goto: at most one branch matches, so a packet
// without a match returns directly to the caller of the root.
type tree struct {
	table   xtables.Table
	root    string
	prefix  string // of the names of its chains
	comment string // on the rules of the root
}

var (
	vipTree      = &tree{xtables.NAT, chainServices, "KUBE-IP-", ""}
	portTree     = &tree{xtables.NAT, chainNodePorts, "KUBE-NP-", ""}
	clusterTree  = &tree{xtables.Filter, chainServices, "KUBE-IP-", "cluster IPs refuse ports that they do not have"}
	externalTree = &tree{xtables.Filter, chainExternal, "KUBE-XIP-", ""}
	firewallTree = &tree{xtables.Filter, chainFirewall, "KUBE-FIP-", ""}
	unservedTree = &tree{xtables.Filter, chainUnserved, "KUBE-XNP-", ""}

	trees = [...]*tree{vipTree, portTree, clusterTree, externalTree, firewallTree, unservedTree}
)

// The levels of trees: prefix lengths, and numbers of ports. Cluster IPs come from one range of
// at most 20 bits, in IPv6 the lowest bits. Addresses of load balancers may be anywhere.
//
// API servers allocate cluster IPs at random. Each chain takes 480 bytes of a legacy
// table, which is copied for each change, so chains for too few addresses cost more
// than they save; chains for too many slow down first packets.
var (
	prefixLengths = [...][]int{model.IPv4: {8, 16, 21, 26}, model.IPv6: {32, 112, 117, 122}}
	portSpans     = []uint16{256, 16}
)

// invalid drops packets that connection tracking finds invalid. Some of them
// would reset connections (issue 74839 of kubernetes/kubernetes). The rule also serves
// as a counter: kube-proxy counts these packets by nfnetlink_acct, which not every
// kernel has; rules have counters everywhere.
func invalid() xtables.Rule {
	return xtables.Rule{Matches: []xtables.Match{xtables.State{Any: "INVALID"}}, Target: xtables.Drop}
}

// tables lists the tables that have owned chains, in write order.
func tables() []xtables.Table { return []xtables.Table{xtables.Filter, xtables.NAT} }

// Key names an object: a whole chain, of one port or a constant one such as
// KUBE-MARK-MASQ, or one rule of a shared chain. The rules of a shared chain are in the order of Position.
type Key struct {
	chainID
	Position
}

// Position is the place of a rule in a shared chain. The zero Position is the chain
// itself: with all its rules if it is written as a whole, without any if it is shared.
type Position struct {
	Rank     Rank
	Index    uint32           // of an unexpected rule in its chain
	Selector xtables.Selector // unique within a rank
}

// Rank orders the rules of a shared chain.
type Rank uint8

// The ranks. The order within a rank is free: its rules are disjoint or have one target.
const (
	rankChain      Rank = iota // the chain itself
	rankUnexpected             // a rule that should not be there
	rankDisorder               // the rules are in a wrong order
	rankBranch                 // to the next level of the tree
	rankPods                   // the more specific first: a frontend, for pods or source ranges
	rankHost                   // for the host itself
	rankPort                   // for all origins
	rankAddress                // other ports of the address
	rankLoopback               // packets to loopback addresses, which return before node ports
	rankLast                   // the jump to node ports
	rankJump                   // in built-in chains: from here on, in the order of jumps
)

func (l Position) compare(o Position) int {
	return cmp.Or(cmp.Compare(l.Rank, o.Rank), cmp.Compare(l.Index, o.Index), l.Selector.Compare(o.Selector))
}

// unexpected reports whether a rule should not be in its chain. Deleting it rewrites
// the chain without it.
func (l Position) unexpected() bool { return l.Rank == rankUnexpected || l.Rank == rankDisorder }

// String returns family, table, chain and match.
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

// position returns the place of a rule in a shared chain.
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

// jumpRank orders the owned rules in built-in chains.
func jumpRank(at chainID, to string) Rank {
	for i, j := range jumps {
		if j.table == at.Table && j.from == at.Chain && j.to == to {
			return rankJump + Rank(i)
		}
	}
	return rankJump + Rank(len(jumps))
}

// emitChain emits a chain that is one object.
func emitChain(at chainID, emit func(Key, Value), rules ...xtables.Rule) {
	emit(Key{chainID: at}, xtables.List(rules...))
}

// byAddress emits the branches from the root to the leaf of an address, and returns
// the leaf.
func (t *tree) byAddress(a netip.Addr, known *branchCache, emit func(Key, Value)) chainID {
	leaf := known.branch(t, a, len(prefixLengths[model.FamilyOf(a)])-1)
	leaf.emitPath(emit)
	return leaf.next
}

// addressBranch makes the branch to the prefix of an address at a depth.
func (t *tree) addressBranch(prefix netip.Prefix, depth int, up *branch) *branch {
	at := chainID{Family: model.FamilyOf(prefix.Addr()), Table: t.table, Chain: t.root}
	if up != nil {
		at = up.next
	}
	r := xtables.Rule{Dst: xtables.Addrs{Prefix: prefix}, Target: enter(depth, addressChain(t.prefix, prefix))}
	if depth == 0 {
		r.Comment = t.comment
	}
	b := branchTo(at, r)
	b.up = up
	return &b
}

// byPort emits the branches from the root to the leaf of a port, and returns the leaf.
func (t *tree) byPort(family model.Family, proto model.Proto, number uint16, emit func(Key, Value)) chainID {
	at := chainID{Family: family, Table: t.table, Chain: t.root}
	for depth, span := range portSpans {
		first := number &^ (span - 1)
		r := xtables.Ports{First: first, Last: first + span - 1}
		next := portChain(t.prefix, proto, r)
		b := branchTo(at, xtables.Rule{Proto: proto, Ports: r, Target: enter(depth, next)})
		at = b.emit(emit)
	}
	return at
}

// branch is a rule that leads to a chain of the next level, and that chain.
type branch struct {
	rule Key
	text Value
	next chainID
	up   *branch // the one to the chain that the rule is in, nil at the root; for addresses only
}

// enter is the target that enters a chain of a tree.
func enter(depth int, chain string) xtables.Target {
	if depth == 0 {
		return xtables.Jump{Chain: chain}
	}
	return xtables.Goto{Chain: chain}
}

func branchTo(at chainID, r xtables.Rule) branch {
	return branch{rule: Key{at, position(at, r)}, text: xtables.List(r), next: chainID{Family: at.Family, Table: at.Table, Chain: r.Chain()}}
}

func (b *branch) emit(emit func(Key, Value)) chainID {
	emit(b.rule, b.text)
	emit(Key{chainID: b.next}, Value{})
	return b.next
}

// emitPath emits the branches from the root to this one.
func (b *branch) emitPath(emit func(Key, Value)) {
	if b.up != nil {
		b.up.emitPath(emit)
	}
	b.emit(emit)
}

// branchCache caches branches with their text: thousands of ports share each.
type branchCache struct {
	mu    sync.RWMutex
	known map[branchID]*branch
}

type branchID struct {
	tree   *tree
	prefix netip.Prefix
}

// maxBranches bounds the cache, for a cluster whose addresses keep changing.
const maxBranches = 1 << 16

// branch returns the branch to the chain of an address at a depth of a tree.
func (c *branchCache) branch(t *tree, a netip.Addr, depth int) *branch {
	prefix := netip.PrefixFrom(a, prefixLengths[model.FamilyOf(a)][depth]).Masked()
	id := branchID{t, prefix}
	c.mu.RLock()
	b := c.known[id]
	c.mu.RUnlock()
	if b != nil {
		return b
	}
	var up *branch
	if depth > 0 {
		up = c.branch(t, a, depth-1)
	}
	b = t.addressBranch(prefix, depth, up)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.known) < maxBranches {
		c.known[id] = b
	}
	return b
}
