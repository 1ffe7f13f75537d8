// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// localnet reports whether node ports answer on 127.0.0.1. Only IPv4 can route
// that (route_localnet).
func localnet(host *model.Host) bool {
	return host.NodePorts.Contains(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
}

// Base implements dataplane.Compiler: the objects that do not depend on Services.
func (c *Compiler) Base(host *model.Host, emit func(Key, Value)) {
	for _, f := range c.families {
		for _, j := range jumps {
			r := xtables.JumpTo(j.to)
			r.Comment = j.comment
			if !j.always {
				r = r.With(xtables.State{Any: "NEW"})
			}
			emitRule(chainID{Family: f, Table: j.table, Chain: j.from}, r, emit)
		}
		for _, t := range trees {
			emit(Key{chainID: chainID{Family: f, Table: t.table, Chain: t.root}}, Value{})
		}
		emit(Key{chainID: filter(f, chainNodePorts)}, Value{})
		c.constant(host, f, emit)
		nodePorts(host, nat(f, chainServices), chainNodePorts, emit)
		nodePorts(host, filter(f, chainExternal), chainUnserved, emit)
		unallocated(host, filter(f, chainServices), emit)
	}
	if c.serves(model.IPv4) && localnet(host) {
		emitRule(filter(model.IPv4, xtables.Input), blockLocalnet(), emit)
	}
}

// constant emits the chains that do not depend on Services.
func (c *Compiler) constant(host *model.Host, f model.Family, emit func(Key, Value)) {
	bit := c.options.bit()
	marked := xtables.HasMark{Value: bit, Mask: bit}
	unmarked := xtables.HasMark{Value: bit, Mask: bit, Not: true}
	emitChain(nat(f, chainMark), emit, xtables.Rule{Target: xtables.SetMark{Value: bit, Mask: bit}})
	last := []xtables.Rule{
		{Matches: []xtables.Match{unmarked}, Target: xtables.Return},
		{Target: xtables.SetMark{Value: bit}},
		{Comment: "kubernetes service traffic requiring SNAT", Target: xtables.Masquerade{RandomFully: !c.options.NoRandomFully}},
	}
	if f == model.IPv4 && localnet(host) {
		last = slices.Insert(last, 1, toLocalhost())
	}
	emitChain(nat(f, chainPostrouting), emit, last...)
	rules := []xtables.Rule{
		invalid(),
		{Comment: "kubernetes forwarding rules", Matches: []xtables.Match{marked}, Target: xtables.Accept},
		{Comment: "kubernetes forwarding conntrack rule", Matches: []xtables.Match{xtables.State{Any: "RELATED,ESTABLISHED"}}, Target: xtables.Accept},
	}
	if c.options.Liberal {
		rules = rules[1:]
	}
	emitChain(filter(f, chainForward), emit, rules...)
}

// nodePorts emits the jumps to the node ports, for the addresses on which they
// answer.
func nodePorts(host *model.Host, at chainID, to string, emit func(Key, Value)) {
	const comment = "kubernetes service nodeports; NOTE: this must be the last rule in this chain"
	local := xtables.Loopback(at.Family)
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
			emitRule(at, xtables.Rule{Dst: xtables.Within(local), Target: xtables.Return}, emit)
		}
		emitRule(at, r, emit)
	}
}

// unallocated emits the rules that drop what is for an unallocated cluster IP. They
// come after all frontends. A balanced packet has its endpoint's address by now,
// which may be in ServiceCIDRs.
func unallocated(host *model.Host, at chainID, emit func(Key, Value)) {
	for _, p := range host.ServiceCIDRs {
		if model.FamilyOf(p.Addr()) == at.Family {
			emitRule(at, xtables.Rule{
				Dst: xtables.Within(p), Comment: "for cluster IPs, and none of them",
				Matches: []xtables.Match{xtables.DstLocal{Not: true}, xtables.State{Any: "DNAT", Not: true}}, Target: xtables.Drop,
			}, emit)
		}
	}
}

// probeRules returns rules of all kinds that the compiler emits.
func probeRules(f model.Family, t xtables.Table, randomFully bool) []xtables.Rule {
	a := netip.MustParseAddr([...]string{model.IPv4: "192.0.2.1", model.IPv6: "2001:db8::1"}[f])
	list := "TANDEM-PROBE"
	to := xtables.Rule{Dst: xtables.Address(a), Proto: model.TCP, Ports: xtables.Port(80)}
	mark := xtables.HasMark{Value: DefaultMark, Mask: DefaultMark, Not: true}
	kinds := []xtables.Rule{
		{Src: xtables.Addrs{Prefix: xtables.Address(a).Prefix, Not: true}, Comment: "a/b:c", Matches: []xtables.Match{xtables.State{Any: "NEW"}}, Target: xtables.Drop},
		{In: xtables.Interface{Name: "tandem0", Not: true}, Matches: []xtables.Match{xtables.DstLocal{}, mark}, Target: xtables.Reject},
		{Dst: xtables.Address(a), Matches: []xtables.Match{xtables.DstLocal{Not: true}, xtables.State{Any: "DNAT", Not: true}}, Target: xtables.Drop},
		{Matches: []xtables.Match{xtables.SrcLocal{}}, Proto: model.UDP, Ports: xtables.Ports{First: 16, Last: 31}, Target: xtables.Return},
	}
	if t == xtables.NAT {
		dnat := xtables.DNAT{To: netip.AddrPortFrom(a, 80)}
		kinds = []xtables.Rule{
			{Dst: xtables.Address(a), Comment: "a/b:c", Target: xtables.SetMark{Value: DefaultMark, Mask: DefaultMark}},
			{Matches: []xtables.Match{xtables.Recent{Name: list, Seconds: 10}}, Target: xtables.Return},
			{Matches: []xtables.Match{xtables.OneOf(3)}, Proto: model.TCP, Target: dnat},
			{Matches: []xtables.Match{xtables.Recent{Name: list, Set: true}}, Proto: model.UDP, Target: dnat},
			{Matches: []xtables.Match{xtables.OrigDst{Addrs: xtables.Address(a)}}, Target: xtables.Return},
			{Matches: []xtables.Match{xtables.DstLocal{}}, Target: xtables.Masquerade{RandomFully: randomFully}},
		}
	}
	return slices.Insert(kinds, 0, to)
}
