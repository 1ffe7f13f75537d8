package iptables

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
)

// jumps are our rules in chains of the kernel, in the order in which they must
// come there. They are put at the top, as kube-proxy does it.
var jumps = [...]struct {
	table   Table
	from    string
	to      string
	always  bool // not for new connections only
	comment string
}{
	{NAT, prerouting, chainServices, true, "kubernetes service portals"},
	{NAT, output, chainServices, true, "kubernetes service portals"},
	{NAT, postrouting, chainPostrouting, true, "kubernetes postrouting rules"},

	{Filter, input, chainFirewall, false, "kubernetes load balancer firewall"},
	{Filter, input, chainNodePorts, true, "kubernetes health check service ports"},
	{Filter, input, chainExternal, false, "kubernetes externally-visible service portals"},
	{Filter, forward, chainFirewall, false, "kubernetes load balancer firewall"},
	{Filter, forward, chainForward, true, "kubernetes forwarding rules"},
	{Filter, forward, chainExternal, false, "kubernetes externally-visible service portals"},
	{Filter, forward, chainServices, false, "kubernetes service portals"},
	{Filter, output, chainFirewall, false, "kubernetes load balancer firewall"},
	{Filter, output, chainExternal, false, "kubernetes externally-visible service portals"},
	{Filter, output, chainServices, false, "kubernetes service portals"},
}

// jumpPlace orders our rules in chains of the kernel.
func jumpPlace(target string) byte {
	switch target {
	case targetDrop: // martians
		return '1'
	case chainFirewall:
		return '2'
	case chainForward, chainNodePorts:
		return '3'
	case chainExternal:
		return '4'
	}
	return '5'
}

// loopback are the addresses that never leave a host.
var loopback = [...]netip.Prefix{
	model.IPv4: netip.MustParsePrefix("127.0.0.0/8"),
	model.IPv6: netip.MustParsePrefix("::1/128"),
}

// martians is the rule that keeps the network out of 127.0.0.0/8 while
// route_localnet lets it in (CVE-2020-8558).
func martians() Rule {
	return Rule{
		Src: addrMatch{loopback[model.IPv4], true}, Dst: addrMatch{Prefix: loopback[model.IPv4]},
		Comment: "block incoming localnet connections",
		State:   nameMatch{"RELATED,ESTABLISHED,DNAT", true},
		Target:  targetDrop,
	}
}

// openBefore is on the rule against martians where route_localnet was on already
// when that came: then it stays on when the rule goes. Rules outlive a proxy.
const openBefore = "; route_localnet was on before"

// against reports whether a rule is the one against martians.
func against(r Rule) bool {
	r.Comment = strings.TrimSuffix(r.Comment, openBefore)
	return r == martians()
}

// localnet reports whether node ports answer on 127.0.0.1. Only IPv4 can route
// that (route_localnet).
func localnet(host *model.Host) bool {
	return host.NodePorts.Contains(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
}

// Base implements dataplane.Compiler: what is there before any Service.
func (c *Compiler) Base(host *model.Host, emit func(Key, Value)) {
	for _, f := range c.families {
		for _, j := range jumps {
			r := Rule{Comment: j.comment, Target: j.to}
			if !j.always {
				r.State.Name = "NEW"
			}
			emitLine(chainID{f, j.table, j.from}, r, emit)
		}
		for _, t := range trees {
			emit(Key{chainID: chainID{f, t.table, t.root}}, "")
		}
		emit(Key{chainID: chainID{f, Filter, chainNodePorts}}, "")
		c.constant(host, f, emit)
		nodePorts(host, chainID{f, NAT, chainServices}, chainNodePorts, emit)
		nodePorts(host, chainID{f, Filter, chainExternal}, chainClosed, emit)
		unallocated(host, chainID{f, Filter, chainServices}, emit)
	}
	if c.serves(model.IPv4) && localnet(host) {
		emitLine(chainID{model.IPv4, Filter, input}, martians(), emit)
	}
}

// constant emits the chains that no Service changes.
func (c *Compiler) constant(host *model.Host, f model.Family, emit func(Key, Value)) {
	bit := c.options.bit()
	emitWhole(chainID{f, NAT, chainMark}, emit, Rule{Target: targetMark, XMark: markSet{bit, bit, true}})
	postrouting := []Rule{
		{Mark: markMatch{bit, bit, true}, Target: targetReturn},
		{Target: targetMark, XMark: markSet{bit, 0, true}},
		{Comment: "kubernetes service traffic requiring SNAT", Target: targetMasquerade, RandomFully: !c.options.NoRandomFully},
	}
	if f == model.IPv4 && localnet(host) {
		postrouting = slices.Insert(postrouting, 1, toLocalhost())
	}
	emitWhole(chainID{f, NAT, chainPostrouting}, emit, postrouting...)
	rules := []Rule{
		invalid(),
		{Comment: "kubernetes forwarding rules", Mark: markMatch{bit, bit, false}, Target: targetAccept},
		{Comment: "kubernetes forwarding conntrack rule", State: nameMatch{Name: "RELATED,ESTABLISHED"}, Target: targetAccept},
	}
	if c.options.Liberal {
		rules = rules[1:]
	}
	emitWhole(chainID{f, Filter, chainForward}, emit, rules...)
}

// nodePorts emits the rules that lead to the node ports, for the addresses on
// which they answer.
func nodePorts(host *model.Host, at chainID, to string, emit func(Key, Value)) {
	const comment = "kubernetes service nodeports; NOTE: this must be the last rule in this chain"
	local := loopback[at.Family]
	closed := at.Family == model.IPv6 || !localnet(host)
	for _, p := range host.NodePorts.Prefixes {
		if model.FamilyOf(p.Addr()) != at.Family || closed && local.Bits() <= p.Bits() && local.Contains(p.Addr()) {
			continue
		}
		r := Rule{Dst: within(p), Comment: comment, DstLocal: true, Target: to}
		switch {
		case !closed || !p.Overlaps(local):
		case p.Bits() == 0:
			r.Dst = addrMatch{local, true}
		default:
			emitLine(at, Rule{Dst: addrMatch{Prefix: local}, Target: targetReturn}, emit)
		}
		emitLine(at, r, emit)
	}
}

// unallocated emits the rules that drop what is for a cluster IP that there is
// not. They come behind all fronts. What has been balanced is at its endpoint's
// address by now, which may be anywhere.
func unallocated(host *model.Host, at chainID, emit func(Key, Value)) {
	for _, p := range host.ServiceCIDRs {
		if model.FamilyOf(p.Addr()) == at.Family {
			emitLine(at, Rule{
				Dst: within(p), DstRemote: true, Comment: "for cluster IPs, and none of them",
				State: nameMatch{"DNAT", true}, Target: targetDrop,
			}, emit)
		}
	}
}

// within matches a prefix; that of all addresses is no match.
func within(p netip.Prefix) addrMatch {
	if p.Bits() == 0 {
		return addrMatch{}
	}
	return addrMatch{Prefix: p}
}

// emitWhole emits a chain that is one object.
func emitWhole(at chainID, emit func(Key, Value), rules ...Rule) {
	text := make([]byte, 0, len(rules)*ruleSize)
	for _, r := range rules {
		text = r.append(text)
	}
	emit(Key{chainID: at}, Value(text))
}
