// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Name is how --proxy-mode names this mode.
const Name config.Mode = "iptables"

// Options are the settings of this data plane.
type Options struct {
	// Mark is the fwmark bit of packets to be masqueraded; 0 means config.DefaultMark.
	Mark uint32
	// Families are the IP families to serve; none means both. A port of another family is a
	// Gap.
	Families []model.Family
	// NoRandomFully omits MASQUERADE --random-fully, for iptables before 1.6.2 and
	// kernels before 3.13.
	NoRandomFully bool
	// Liberal omits the rule that drops packets which conntrack finds invalid: see invalid.
	Liberal bool
}

// optionsOf returns the options that a configuration asks for.
func optionsOf(c *config.Config) Options {
	return Options{Mark: 1 << c.MasqueradeBit, Liberal: c.Conntrack.TCPBeLiberal}
}

// Compiler turns ports into objects (dataplane.Compiler). It is safe for
// concurrent use.
type Compiler struct {
	dataplane.SimpleCompiler[Key, Value]
	options  Options
	families []model.Family
	branches branchCache
}

// NewCompiler returns a compiler.
func NewCompiler(o Options) *Compiler {
	return &Compiler{options: o, families: model.FamiliesOr(o.Families), branches: branchCache{known: map[branchID]*branch{}}}
}

func (c *Compiler) Equal(a, b Value) bool { return a == b }

// Rank: chains come before the rules that jump to them, jumps in built-in chains last.
func (c *Compiler) Rank(k Key) int {
	switch classOf(k.Chain) {
	case whole:
		return wholeRank(k.Chain)
	case unowned:
		return 8
	}
	switch k.Rank {
	case rankChain:
		return 0
	case rankBranch:
		return 7
	}
	return 6
}

func wholeRank(chain string) int {
	switch {
	case strings.HasPrefix(chain, prefixEndpoint):
		return 2
	case strings.HasPrefix(chain, prefixCluster), strings.HasPrefix(chain, prefixLocal):
		return 3
	case strings.HasPrefix(chain, prefixExternal):
		return 4
	case strings.HasPrefix(chain, prefixFirewall):
		return 5
	}
	return 1
}

// Base emits the objects that do not depend on Services.
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
		c.constant(f, emit)
		nodePorts(host, nat(f, chainServices), chainNodePorts, emit)
		nodePorts(host, filter(f, chainExternal), chainUnserved, emit)
		unallocated(host, filter(f, chainServices), emit)
	}
}

// constant emits KUBE-MARK-MASQ, KUBE-POSTROUTING and KUBE-FORWARD.
func (c *Compiler) constant(f model.Family, emit func(Key, Value)) {
	bit := cmp.Or(c.options.Mark, config.DefaultMark)
	marked := xtables.HasMark{Value: bit, Mask: bit}
	unmarked := xtables.HasMark{Value: bit, Mask: bit, Not: true}
	emitChain(nat(f, chainMark), emit, xtables.Rule{Target: xtables.SetMark{Value: bit, Mask: bit}})
	emitChain(nat(f, chainPostrouting), emit,
		xtables.Rule{Matches: []xtables.Match{unmarked}, Target: xtables.Return},
		xtables.Rule{Target: xtables.SetMark{Value: bit}},
		xtables.Rule{Comment: "kubernetes service traffic requiring SNAT", Target: xtables.Masquerade{RandomFully: !c.options.NoRandomFully}},
	)
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
// answer, except loopback addresses, where relays serve them (core/relay/direct).
func nodePorts(host *model.Host, at chainID, to string, emit func(Key, Value)) {
	const comment = "kubernetes service nodeports; NOTE: this must be the last rule in this chain"
	local := at.Family.Loopbacks()
	for _, p := range at.Family.Prefixes(host.NodePorts.Prefixes) {
		if local.Bits() <= p.Bits() && local.Contains(p.Addr()) {
			continue
		}
		r := xtables.Rule{Dst: xtables.Within(p), Comment: comment, Matches: []xtables.Match{xtables.DstLocal{}}, Target: xtables.Jump{Chain: to}}
		switch {
		case p.Bits() == 0:
			r.Dst = xtables.Addrs{Prefix: local, Not: true}
		case p.Overlaps(local):
			emitRule(at, xtables.Rule{Dst: xtables.Within(local), Target: xtables.Return}, emit)
		}
		emitRule(at, r, emit)
	}
}

// unallocated emits the rules that drop packets to an unallocated cluster IP. They
// come after all frontends. A balanced packet has its endpoint's address by then,
// which may be in ServiceCIDRs.
func unallocated(host *model.Host, at chainID, emit func(Key, Value)) {
	for _, p := range host.ServiceCIDRs {
		if model.FamilyOf(p.Addr()) == at.Family {
			emitRule(at, xtables.Rule{
				Dst: xtables.Within(p), Comment: sayUnallocated,
				Matches: []xtables.Match{xtables.DstLocal{Not: true}, xtables.State{Any: "DNAT", Not: true}}, Target: xtables.Drop,
			}, emit)
		}
	}
}

func (c *Compiler) ServiceCIDRs(k Key, v Value) (all []netip.Prefix) {
	if k.Table != xtables.Filter || k.Rank != rankAddress { // cheap, and there are many
		return nil
	}
	for r := range v.All() {
		if r.Target == xtables.Drop && r.Comment == sayUnallocated && !r.Dst.Not {
			all = append(all, r.Dst.Prefix)
		}
	}
	return all
}

// sayUnallocated is the comment of rules that drop packets to unallocated cluster IPs.
const sayUnallocated = "unallocated cluster IP"

func (c *Compiler) Port(host *model.Host, port *model.Port, emit func(Key, Value)) []model.Gap {
	if !slices.Contains(c.families, port.ID.Family) {
		return []model.Gap{model.MissingFamily(port.ID.Family, "iptables")}
	}
	p := &portCompiler{
		branches: &c.branches, host: host, port: port, emit: emit,
		name: port.ID.String(), hash: portHash(port.ID), pods: podMatch(port.ID.Family, host.Pods),
	}
	p.reportScheduler()
	p.namePools()
	for i := range port.Frontends {
		p.frontend(&port.Frontends[i])
	}
	for _, c := range p.externals {
		emitChain(p.chain(xtables.NAT, c.name), p.emit, p.externalRules(c.on)...)
	}
	p.emitPools()
	p.healthPort()
	return p.gaps
}

// healthPort emits the rule that accepts health checks of load balancers. All ports
// of a Service share it.
func (p *portCompiler) healthPort() {
	if p.port.HealthPort == 0 {
		return
	}
	emitRule(p.chain(xtables.Filter, chainNodePorts), xtables.Rule{
		Proto: model.TCP, Ports: xtables.Port(p.port.HealthPort),
		Comment: p.port.ID.Service.String() + " health check node port", Target: xtables.Accept,
	}, p.emit)
}

// frontend emits the rules of one frontend: in the nat table for clients that are
// balanced, in the filter table for packets that still have the frontend's address.
func (p *portCompiler) frontend(f *model.Frontend) {
	if isNodePort(f) && p.host.NodePorts.Loopback[p.port.ID.Family] {
		p.gap(f, "node ports do not answer on loopback addresses in this mode")
	}
	if f.Kind == model.KindClusterIP {
		// Other ports of a cluster IP are rejected. The comment is on the rule at the
		// root of the tree.
		at := p.leaf(clusterTree, f)
		emitRule(at, xtables.Rule{Dst: xtables.Address(f.At.Addr()), Target: xtables.Reject}, p.emit)
	}
	p.balance(f)
	p.reject(f)
}

// balance emits the rule that dispatches a frontend in the nat table.
func (p *portCompiler) balance(f *model.Frontend) {
	on := p.actions(f)
	if !slices.ContainsFunc(on[:], balances) {
		return
	}
	r := p.match(f)
	switch chain := p.directPool(f); {
	case chain != nil:
		r.Target = xtables.Jump{Chain: chain.name}
		if len(chain.masquerade) == 0 { // they have the same comment
			r.Comment = p.comment(f)
		}
	case f.Restricted && len(f.Allow) == 0: // no client is allowed
		r.Comment = p.comment(f)
	default:
		r.Comment, r.Target = p.comment(f), xtables.Jump{Chain: p.external(on)}
	}
	if f.Restricted {
		r.Target = p.firewall(f, r.Target)
	}
	dispatch := vipTree
	if isNodePort(f) {
		dispatch = portTree
	}
	emitRule(p.leaf(dispatch, f), r, p.emit)
}

// directPool returns the chain of a cluster IP's pool if all clients use the same
// one, otherwise nil. Connections to masquerade are marked in that chain, matched by
// the cluster IP.
func (p *portCompiler) directPool(f *model.Frontend) *poolChain {
	if f.Kind != model.KindClusterIP || f.Restricted {
		return nil
	}
	on := p.actions(f)
	for _, a := range on {
		if !balances(a) || a.Pool != on[0].Pool {
			return nil
		}
	}
	from, some, ok := p.masqueradeMatch(on)
	if !ok {
		return nil
	}
	chain := p.usePool(on[0].Pool)
	if some {
		r := p.match(f)
		r.Src, r.In = from.Src, from.In
		r.Target = markMasq
		chain.masquerade = append(chain.masquerade, r)
	}
	return chain
}

// masqueradeMatch returns the match of clients that are masqueraded; some is false if there are
// none, ok if one match cannot express them.
func (p *portCompiler) masqueradeMatch(on [model.Origins]model.Action) (from xtables.Rule, some, ok bool) {
	mask := on[model.FromOutside].SNAT
	switch {
	case on[model.FromHost].SNAT != mask:
		return xtables.Rule{}, false, false
	case on[model.FromPod].SNAT == mask:
		return xtables.Rule{}, mask, true
	}
	pod := p.pods
	pod.Src.Not, pod.In.Not = mask && pod.Src.Prefix.IsValid(), mask && pod.In.Name != ""
	return pod, true, true
}

// reject emits the rules of the filter table that reject or drop clients that are not
// balanced: a balanced packet has another destination by then. The last rule needs no
// match of an origin.
func (p *portCompiler) reject(f *model.Frontend) {
	var rules []xtables.Rule
	on := p.actions(f)
	for o, from := range p.origins() {
		a := on[o]
		if balances(a) {
			continue
		}
		r := p.match(f)
		r.Src, r.In, r.Matches = from.Src, from.In, from.Matches
		r.Comment, r.Target = p.name+" has no endpoints", xtables.Reject
		if a.Verdict == model.Drop {
			r.Comment, r.Target = p.name+" has no local endpoints", xtables.Drop
		}
		rules = append(rules, r)
	}
	for len(rules) > 1 && rules[len(rules)-1].Target == rules[len(rules)-2].Target {
		rules = slices.Delete(rules, len(rules)-2, len(rules)-1)
	}
	if n := len(rules); n > 0 {
		last := &rules[n-1]
		last.Src, last.In, last.Matches = xtables.Addrs{}, xtables.Interface{}, nil
	}
	if f.Restricted {
		p.dropOutside(f, len(rules) > 0)
	}
	for _, r := range rules {
		emitRule(p.leaf(rejectTree(f), f), r, p.emit)
	}
}

// probeRules returns a rule of each kind that the compiler emits.
func probeRules(f model.Family, t xtables.Table, randomFully bool) []xtables.Rule {
	a := netip.MustParseAddr([...]string{model.IPv4: "192.0.2.1", model.IPv6: "2001:db8::1"}[f])
	list := "TANDEM-PROBE"
	to := xtables.Rule{Dst: xtables.Address(a), Proto: model.TCP, Ports: xtables.Port(80)}
	mark := xtables.HasMark{Value: config.DefaultMark, Mask: config.DefaultMark, Not: true}
	kinds := []xtables.Rule{
		{Src: xtables.Addrs{Prefix: xtables.Address(a).Prefix, Not: true}, Comment: "a/b:c", Matches: []xtables.Match{xtables.State{Any: "NEW"}}, Target: xtables.Drop},
		{In: xtables.Interface{Name: "tandem0", Not: true}, Matches: []xtables.Match{xtables.DstLocal{}, mark}, Target: xtables.Reject},
		{Dst: xtables.Address(a), Matches: []xtables.Match{xtables.DstLocal{Not: true}, xtables.State{Any: "DNAT", Not: true}}, Target: xtables.Drop},
		{Matches: []xtables.Match{xtables.SrcLocal{}}, Proto: model.UDP, Ports: xtables.Ports{First: 16, Last: 31}, Target: xtables.Return},
	}
	if t == xtables.NAT {
		dnat := xtables.DNAT{To: netip.AddrPortFrom(a, 80)}
		kinds = []xtables.Rule{
			{Dst: xtables.Address(a), Comment: "a/b:c", Target: xtables.SetMark{Value: config.DefaultMark, Mask: config.DefaultMark}},
			{Matches: []xtables.Match{xtables.Recent{Name: list, Seconds: 10}}, Target: xtables.Return},
			{Matches: []xtables.Match{xtables.PartOf(1, 3)}, Proto: model.TCP, Target: dnat},
			{Matches: []xtables.Match{xtables.Recent{Name: list, Set: true}}, Proto: model.UDP, Target: dnat},
			{Matches: []xtables.Match{xtables.DstLocal{}}, Target: xtables.Masquerade{RandomFully: randomFully}},
		}
	}
	return slices.Insert(kinds, 0, to)
}
