package iptables

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
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

// loopback are the addresses that never leave a host.
var loopback = [...]netip.Prefix{
	model.IPv4: netip.MustParsePrefix("127.0.0.0/8"),
	model.IPv6: netip.MustParsePrefix("::1/128"),
}

// martians is the rule that keeps the network out of 127.0.0.0/8 while
// route_localnet lets it in (CVE-2020-8558).
func martians() xtables.Rule {
	return xtables.Rule{
		Src: xtables.Addrs{Prefix: loopback[model.IPv4], Not: true}, Dst: xtables.Addrs{Prefix: loopback[model.IPv4]},
		Comment: "block incoming localnet connections",
		Matches: []xtables.Match{xtables.State{Any: "RELATED,ESTABLISHED,DNAT", Not: true}},
		Target:  xtables.Drop,
	}
}

// openBefore is on the rule against martians where route_localnet was on already
// when that came: then it stays on when the rule goes. Rules outlive a proxy.
const openBefore = "; route_localnet was on before"

// against reports whether a rule is the one against martians.
func against(r xtables.Rule) bool {
	r.Comment = strings.TrimSuffix(r.Comment, openBefore)
	return r.Comment == martians().Comment && r.Equal(martians())
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
			r := xtables.JumpTo(j.to)
			r.Comment = j.comment
			if !j.always {
				r = r.With(xtables.State{Any: "NEW"})
			}
			emitLine(chainID{Family: f, Table: j.table, Chain: j.from}, r, emit)
		}
		for _, t := range trees {
			emit(Key{chainID: chainID{Family: f, Table: t.table, Chain: t.root}}, Value{})
		}
		emit(Key{chainID: filter(f, chainNodePorts)}, Value{})
		c.constant(host, f, emit)
		nodePorts(host, nat(f, chainServices), chainNodePorts, emit)
		nodePorts(host, filter(f, chainExternal), chainClosed, emit)
		unallocated(host, filter(f, chainServices), emit)
	}
	if c.serves(model.IPv4) && localnet(host) {
		emitLine(filter(model.IPv4, xtables.Input), martians(), emit)
	}
}

// constant emits the chains that no Service changes.
func (c *Compiler) constant(host *model.Host, f model.Family, emit func(Key, Value)) {
	bit := c.options.bit()
	marked := xtables.HasMark{Value: bit, Mask: bit}
	unmarked := xtables.HasMark{Value: bit, Mask: bit, Not: true}
	emitWhole(nat(f, chainMark), emit, xtables.Rule{Target: xtables.SetMark{Value: bit, Mask: bit}})
	last := []xtables.Rule{
		{Matches: []xtables.Match{unmarked}, Target: xtables.Return},
		{Target: xtables.SetMark{Value: bit}},
		{Comment: "kubernetes service traffic requiring SNAT", Target: xtables.Masquerade{RandomFully: !c.options.NoRandomFully}},
	}
	if f == model.IPv4 && localnet(host) {
		last = slices.Insert(last, 1, toLocalhost())
	}
	emitWhole(nat(f, chainPostrouting), emit, last...)
	rules := []xtables.Rule{
		invalid(),
		{Comment: "kubernetes forwarding rules", Matches: []xtables.Match{marked}, Target: xtables.Accept},
		{Comment: "kubernetes forwarding conntrack rule", Matches: []xtables.Match{xtables.State{Any: "RELATED,ESTABLISHED"}}, Target: xtables.Accept},
	}
	if c.options.Liberal {
		rules = rules[1:]
	}
	emitWhole(filter(f, chainForward), emit, rules...)
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
		r := xtables.Rule{Dst: xtables.Within(p), Comment: comment, Matches: []xtables.Match{xtables.DstLocal{}}, Target: xtables.Jump{Chain: to}}
		switch {
		case !closed || !p.Overlaps(local):
		case p.Bits() == 0:
			r.Dst = xtables.Addrs{Prefix: local, Not: true}
		default:
			emitLine(at, xtables.Rule{Dst: xtables.Within(local), Target: xtables.Return}, emit)
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
			emitLine(at, xtables.Rule{
				Dst: xtables.Within(p), Comment: "for cluster IPs, and none of them",
				Matches: []xtables.Match{xtables.DstLocal{Not: true}, xtables.State{Any: "DNAT", Not: true}}, Target: xtables.Drop,
			}, emit)
		}
	}
}

// emitWhole emits a chain that is one object.
func emitWhole(at chainID, emit func(Key, Value), rules ...xtables.Rule) {
	emit(Key{chainID: at}, xtables.List(rules...))
}

func filter(f model.Family, chain string) chainID {
	return chainID{Family: f, Table: xtables.Filter, Chain: chain}
}

func nat(f model.Family, chain string) chainID {
	return chainID{Family: f, Table: xtables.NAT, Chain: chain}
}
