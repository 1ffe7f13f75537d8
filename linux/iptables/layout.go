// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"strconv"
	"strings"

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

// The chains that are always there. The names are kube-proxy's, and people and
// tools know them; those with "of ours" in the comment are not.
const (
	chainServices    = "KUBE-SERVICES"           // nat: dispatch by address; filter: cluster IPs without endpoints
	chainExternal    = "KUBE-EXTERNAL-SERVICES"  // filter: other addresses without endpoints
	chainNodePorts   = "KUBE-NODEPORTS"          // nat: dispatch by port; filter: health check ports
	chainUnserved    = "KUBE-NODEPORTS-UNSERVED" // filter: node ports without endpoints; of ours
	chainFirewall    = "KUBE-PROXY-FIREWALL"     // filter: clients outside of source ranges
	chainForward     = "KUBE-FORWARD"            // filter
	chainMark        = "KUBE-MARK-MASQ"          // nat
	chainPostrouting = "KUBE-POSTROUTING"        // nat
)

// The beginnings of names of the chains that a port has for itself.
const (
	prefixCluster  = "KUBE-SVC-" // an endpoint of the cluster
	prefixLocal    = "KUBE-SVL-" // an endpoint on this node
	prefixExternal = "KUBE-EXT-" // by origin, to one of the two above
	prefixFirewall = "KUBE-FW-"  // by source range, to KUBE-EXT-
	prefixEndpoint = "KUBE-SEP-" // one endpoint
)

// jumps are our rules in chains of the kernel, in the order in which they must
// come there. They are put at the top, as kube-proxy does it.
var jumps = [...]struct {
	table   xtables.Table
	from    string
	to      string
	always  bool // not for new connections only
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

// class is the ownership of a chain, and how its rules are made.
type class uint8

const (
	unowned class = iota // not ours; in those of the kernel we have single rules
	shared               // many ports contribute rules
	whole                // all rules are one object
)

// classOf tells chains by their names.
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

// hashLength is how much of a hash is in names: 80 bits.
const hashLength = 16

// hash is what tells names apart, as kube-proxy makes it.
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

// addressChain names a part of a tree by its prefix. IPv6 prefixes are too long
// for a name (28 bytes); the rule that leads there shows them.
func addressChain(beginning string, p netip.Prefix) string {
	if p.Addr().Is4() {
		return beginning + p.String()
	}
	return beginning + hash(p.String())
}

// portChain names a part of a tree by its ports.
func portChain(beginning string, proto model.Proto, r xtables.Ports) string {
	return beginning + proto.String() + "-" + strconv.Itoa(int(r.First)) + "-" + strconv.Itoa(int(r.Last))
}

// A tree spreads the rules of a chain over smaller chains, by prefixes of
// addresses and by ranges of ports, so that a packet meets tens of rules, not
// tens of thousands, and a change rewrites one small chain. Where it branches is
// fixed: a rule has its place whatever else there is.
//
//	KUBE-SERVICES ─10.0.0.0/8▶ KUBE-IP-10.0.0.0/8 ─10.96.0.0/16▶ … ─10.96.0.0/26▶ KUBE-IP-10.96.0.0/26
//	KUBE-NODEPORTS ─tcp 30208:30463▶ KUBE-NP-tcp-30208-30463 ─tcp 30208:30223▶ KUBE-NP-tcp-30208-30223
//
// Below the root chains are left by goto: no other branch can have what one
// lacks, so a packet returns to the caller of the root.
type tree struct {
	table   xtables.Table
	root    string
	prefix  string // of the names of its chains
	comment string // on the rules of the root
}

var (
	vipTree      = tree{xtables.NAT, chainServices, "KUBE-IP-", ""}
	portTree     = tree{xtables.NAT, chainNodePorts, "KUBE-NP-", ""}
	clusterTree  = tree{xtables.Filter, chainServices, "KUBE-IP-", "cluster IPs refuse ports that they do not have"}
	externalTree = tree{xtables.Filter, chainExternal, "KUBE-XIP-", ""}
	firewallTree = tree{xtables.Filter, chainFirewall, "KUBE-FIP-", ""}
	unservedTree = tree{xtables.Filter, chainUnserved, "KUBE-XNP-", ""}

	trees = [...]tree{vipTree, portTree, clusterTree, externalTree, firewallTree, unservedTree}
)

// Where trees branch. Cluster IPs come from one range of at most 20 bits, in
// IPv6 from the last bits of it. Addresses of load balancers may be anywhere.
//
// API servers give cluster IPs out at random. Each chain takes 480 bytes of a
// legacy table, which is copied for each change, so chains for too few addresses
// cost more than they spare; chains for too many cost first packets.
var (
	prefixLengths = [...][]int{model.IPv4: {8, 16, 21, 26}, model.IPv6: {32, 112, 117, 122}}
	portSpans     = []uint16{256, 16} // of ports
)

// blockLocalnet is the rule that keeps the network out of 127.0.0.0/8 while
// route_localnet lets it in (CVE-2020-8558).
func blockLocalnet() xtables.Rule {
	return xtables.Rule{
		Src: xtables.Addrs{Prefix: xtables.Loopback(model.IPv4), Not: true}, Dst: xtables.Addrs{Prefix: xtables.Loopback(model.IPv4)},
		Comment: "block incoming localnet connections",
		Matches: []xtables.Match{xtables.State{Any: "RELATED,ESTABLISHED,DNAT", Not: true}},
		Target:  xtables.Drop,
	}
}

// wasEnabled is on the rule that blocks localnet where route_localnet was on already
// when that came: then it stays on when the rule goes. Rules outlive a proxy.
const wasEnabled = "; route_localnet was on before"

// isLocalnetRule reports whether a rule is the one that blocks localnet.
func isLocalnetRule(r xtables.Rule) bool {
	r.Comment = strings.TrimSuffix(r.Comment, wasEnabled)
	return r.Comment == blockLocalnet().Comment && r.Equal(blockLocalnet())
}

// Two rules are there to count, too: kube-proxy counts the same packets, by
// objects of nfnetlink_acct, which not every kernel has. Rules count anywhere.

// invalid drops packets that connection tracking finds invalid. Some of them
// would reset connections (issue 74839 of kubernetes/kubernetes).
func invalid() xtables.Rule {
	return xtables.Rule{Matches: []xtables.Match{xtables.State{Any: "INVALID"}}, Target: xtables.Drop}
}

// toLocalhost does nothing with the first packet of each connection to a node
// port on 127.0.0.0/8. It stands among the rules for packets that are marked, as
// all of those are: pods could not answer that address.
func toLocalhost() xtables.Rule {
	return xtables.Rule{
		Comment: "counts connections to node ports on localhost",
		Matches: []xtables.Match{xtables.OrigDst{Addrs: xtables.Within(xtables.Loopback(model.IPv4))}},
	}
}
