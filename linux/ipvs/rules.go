// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Base emits the objects that do not depend on Services.
func (c *Compiler) Base(host *model.Host, emit func(Key, Value)) {
	emit(Key{Kind: kindLink}, Value{})
	for _, f := range c.options.families() {
		emit(Key{Kind: kindRule, Family: f}, Value{})
		for s := noSet + 1; s < numSets; s++ {
			emit(Key{Kind: KindSet, Family: f, Set: s}, Value{})
		}
		emitRanges(nodePortRanges, f, host.NodePorts.Prefixes, emit)
		emitRanges(ServiceCIDRs, f, host.ServiceCIDRs, emit)
		for id, rules := range c.chains(f, host) {
			if len(rules) == 0 {
				continue
			}
			emit(Key{Kind: KindChain, Family: f, Chain: ChainID(id)}, ownedChain(rules...))
			if ChainID(id).from() != "" {
				emit(Key{Kind: kindJump, Family: f, Chain: ChainID(id)}, Value{})
			}
		}
	}
}

func (c *Compiler) ServiceCIDRs(k Key, _ Value) []netip.Prefix {
	if k.Kind != kindEntry || k.Set != ServiceCIDRs {
		return nil
	}
	return []netip.Prefix{k.Peer.network()}
}

// emitRanges emits the entries of a set of prefixes.
func emitRanges(set SetID, f model.Family, all []netip.Prefix, emit func(Key, Value)) {
	for _, p := range f.Prefixes(all) {
		emitPrefix(Key{Kind: kindEntry, Family: f, Set: set}, p, emit)
	}
}

// ownedChain is a chain with the owner rule and some others.
func ownedChain(rules ...xtables.Rule) Value {
	return Value{Rules: xtables.List(append([]xtables.Rule{ownerRule()}, rules...)...)}
}

// chains are the rules of every chain.
func (c *Compiler) chains(f model.Family, host *model.Host) (all [numChains][]xtables.Rule) {
	r := ruleMaker{c.bits, f}
	arriving, sent := xtables.FromPods(f, host.Pods)
	all[mangleIn] = r.classify(arriving, false)
	// Packets forwarded by IPVS traverse the chains for the host's packets as well
	// (ip_vs_nat_send_or_cont). They must not match our routing rule again.
	forwarded := r.forwarded()
	all[mangleOut] = slices.Insert(r.classify(sent, true), 0,
		rule(xtables.SetMark{Value: forwarded.Value, Mask: forwarded.Mask}, marked(r.service)),
		rule(xtables.Return, forwarded),
	)
	all[manglePort] = []xtables.Rule{
		{Proto: model.TCP, Target: r.mapMark(nodePortTCP, "dst")},
		{Proto: model.UDP, Target: r.mapMark(nodePortUDP, "dst")},
		{Target: r.mapMark(nodePortSCTP, "dst,dst")},
	}
	all[mangleLast] = []xtables.Rule{
		rule(xtables.SetMark{Mask: r.service | r.denied | r.numberMask()}, marked(r.service)),
		rule(xtables.SetMark{Mask: forwarded.Mask}, forwarded),
	}
	all[natIn] = []xtables.Rule{rule(xtables.Accept, marked(r.service))}
	all[natOut] = all[natIn]
	masquerade := xtables.Masquerade{RandomFully: !c.options.NoRandomFully}
	all[natLast] = []xtables.Rule{
		rule(xtables.Masquerade{}, r.in(loopBack, "dst,dst,src")),
		rule(xtables.Masquerade{}, r.in(virtualIPs, "src"), r.notIn(virtualIPs, "dst")),
		rule(xtables.Return, unmarked(r.masquerade)),
		rule(xtables.SetMark{Mask: r.masquerade}),
		rule(masquerade),
	}
	reject := rule(xtables.Reject, marked(r.denied))
	all[filterIn] = []xtables.Rule{reject}
	other := forwarded // packets of IPVS have an endpoint's address by then
	other.Not = true
	all[filterOut] = []xtables.Rule{reject, r.unallocated().With(xtables.SrcLocal{}).With(other)}
	all[filterPort] = []xtables.Rule{rule(xtables.Accept, r.in(healthCheckPort, "dst"))}
	all[filterForward] = []xtables.Rule{reject, r.unallocated(), rule(xtables.Accept, xtables.State{Any: "RELATED,ESTABLISHED"})}
	return all
}

// ruleMaker makes the rules of one family.
type ruleMaker struct {
	markBits
	family model.Family
}

// forwarded matches packets that IPVS has forwarded, until they leave the host: their mark has a
// fixed number and no service bit. Routing rules see it, so it has no bit that others use there:
// 0x80 (Amazon VPC CNI), 0x0f00 (Cilium), or 1 alone.
func (r ruleMaker) forwarded() xtables.HasMark {
	return xtables.HasMark{Value: 0x55 << r.shift, Mask: r.service | r.denied | r.numberMask()}
}

func rule(to xtables.Target, asks ...xtables.Match) xtables.Rule {
	return xtables.Rule{Matches: asks, Target: to}
}

func marked(bits uint32) xtables.HasMark { return xtables.HasMark{Value: bits, Mask: bits} }

func unmarked(bits uint32) xtables.HasMark {
	return xtables.HasMark{Value: bits, Mask: bits, Not: true}
}

func (r ruleMaker) in(s SetID, fields string) xtables.InSet {
	return xtables.InSet{Set: s.Name(r.family), Fields: fields}
}

func (r ruleMaker) notIn(s SetID, fields string) xtables.InSet {
	return xtables.InSet{Set: s.Name(r.family), Fields: fields, Not: true}
}

func (r ruleMaker) mapMark(s SetID, fields string) xtables.MapMark {
	return xtables.MapMark{Set: s.Name(r.family), Fields: fields}
}

// classify sets the mark of a packet to the action of its frontend for its origin.
// Only the first packet of a connection is dropped, rejected or masqueraded; all later ones
// only reach IPVS.
func (r ruleMaker) classify(pods []xtables.Rule, host bool) []xtables.Rule {
	all := []xtables.Rule{
		// Existing connections of a previous proxy.
		rule(xtables.Return, xtables.State{Any: "DNAT"}),
		rule(xtables.Drop, r.in(Restricted, "dst,dst"), r.notIn(SourceRanges, "dst,dst,src"), isNew),
		rule(xtables.SetMark{Value: r.masquerade, Mask: r.all()}),
	}
	for _, pod := range pods {
		pod.Target = xtables.SetMark{Mask: r.masquerade}
		all = append(all, pod)
	}
	for _, s := range []SetID{ClusterIPs, ExternalIPs, LoadBalancer} {
		all = append(all, rule(r.mapMark(s, "dst,dst")))
	}
	for _, proto := range []model.Proto{model.TCP, model.UDP, model.SCTP} { // unallocated port of a cluster IP
		other := rule(xtables.SetMark{Value: r.service | r.denied, Mask: r.all()}, unmarked(r.service), r.in(virtualIPs, "dst"))
		other.Proto = proto
		all = append(all, other)
	}
	nodePort := rule(xtables.Jump{Chain: manglePort.name()}, unmarked(r.service), r.in(nodePortRanges, "dst"), xtables.DstLocal{})
	nodePort.Dst = xtables.Addrs{Prefix: r.family.Loopbacks(), Not: true}
	all = append(all, nodePort)
	if host {
		all = append(all, rule(r.mapMark(Host, "dst,dst")))
	}
	for _, pod := range pods {
		pod.Target = r.mapMark(Pods, "dst,dst")
		all = append(all, pod)
	}
	return append(all,
		rule(xtables.Drop, marked(r.all()), isNew),
		rule(xtables.SetMark{Mask: r.masquerade | r.denied}, unmarked(r.service)),
		rule(xtables.SetMark{Mask: r.masquerade | r.denied}, isEstablished),
		// Rejected packets are not delivered locally: the kernel sends the ICMP error
		// only from an address that it has.
		rule(xtables.SetMark{Mask: r.service}, marked(r.service|r.denied)),
	)
}

// unallocated drops packets to unallocated cluster IPs. It applies after destination
// NAT: the address may belong to a Service of another proxy (label
// service-proxy-name).
func (r ruleMaker) unallocated() xtables.Rule {
	return rule(xtables.Drop, r.in(ServiceCIDRs, "dst"), xtables.DstLocal{Not: true}, isNew, xtables.State{Any: "DNAT", Not: true})
}

// ownedTables are the tables with owned chains. Mangle is last: packets are marked only
// when the other tables handle the marks.
var ownedTables = [...]xtables.Table{xtables.Filter, xtables.NAT, xtables.Mangle}

// restoreText writes ops on the chains of one family for iptables-restore --noflush,
// one table at a time; deletions come last and in reverse order.
func restoreText(f model.Family, ops []ledger.Op[Key, Value]) (text []byte) {
	write := func(table xtables.Table, deletes bool) {
		var some []ledger.Op[Key, Value]
		for _, op := range ops {
			if op.Key.Family == f && op.Key.Chain.table() == table && deletes == (op.Verb == ledger.Delete) {
				some = append(some, op)
			}
		}
		if len(some) > 0 {
			text = append(text, script(some).Text(table)...)
		}
	}
	for _, table := range ownedTables {
		write(table, false)
	}
	for _, table := range slices.Backward(ownedTables[:]) {
		write(table, true)
	}
	return text
}

// script writes ops on one table. Jumps that duplicate others, or whose chain is
// deleted, are deleted first. All other jumps are deleted after their replacement is
// inserted.
func script(ops []ledger.Op[Key, Value]) *xtables.Script {
	s := &xtables.Script{}
	for _, op := range ops {
		c := op.Key.Chain
		switch {
		case op.Key.Kind == kindJump:
			if op.Verb == ledger.Delete || op.Old.Rules.Len() > 0 {
				s.Delete(c.from(), c.installedJump(op.Old))
			}
		case op.Verb == ledger.Delete:
			s.Drop(c.name())
		default:
			s.Rewrite(c.name(), op.New.Rules)
		}
	}
	for _, op := range ops {
		if c := op.Key.Chain; op.Key.Kind == kindJump && op.Verb != ledger.Delete {
			s.Insert(c.from(), 1, xtables.List(c.jumpRule(op.New.OldOnly)))
			if op.Verb == ledger.Replace && op.Old.Rules.Len() == 0 {
				s.Delete(c.from(), c.installedJump(op.Old))
			}
		}
	}
	return s
}

// installedJump returns the rules of an installed jump.
func (c ChainID) installedJump(v Value) xtables.Rules {
	if v.Rules.Len() > 0 {
		return v.Rules
	}
	return xtables.List(c.jumpRule(v.OldOnly))
}

// readTables reads our chains and the jumps to them from the output of iptables-save.
// A chain is owned if it has the owner rule, maybe behind inserted foreign rules, or
// if it is empty and a jump leads to it: then it was flushed externally.
func readTables(f model.Family, text string, emit func(Key, Value)) error {
	tables, err := xtables.ParseSave(text)
	if err != nil {
		return err
	}
	chains := map[string][]xtables.Line{} // by "table chain"
	for _, t := range tables {
		for _, c := range t.Chains {
			chains[t.Name+" "+c.Name] = c.Rules
		}
	}
	for c := noChain + 1; c < numChains; c++ {
		lines := chains[c.String()]
		v, led := c.jump(chains[c.table().String()+" "+c.from()])
		owned := slices.ContainsFunc(lines, func(l xtables.Line) bool { return l.Rule().Equal(ownerRule()) })
		if !owned && (len(lines) > 0 || !led) {
			continue
		}
		emit(Key{Kind: KindChain, Family: f, Chain: c}, Value{Rules: xtables.Canonical(lines...)})
		if led {
			emit(Key{Kind: kindJump, Family: f, Chain: c}, v)
		}
	}
	return nil
}

// jump finds the jumps to a chain among the rules of its parent chain. There may be
// several: kube-proxy's, or duplicates inserted externally.
func (c ChainID) jump(rules []xtables.Line) (v Value, there bool) {
	var all []xtables.Line
	for _, l := range rules {
		r := l.Rule()
		if r.Chain() != c.name() {
			continue
		}
		for _, known := range [...]Value{{OldOnly: true}, {}} {
			if r.Equal(c.jumpRule(known.OldOnly)) {
				v, all = known, append(all, l)
			}
		}
	}
	if len(all) == 1 {
		return v, true
	}
	return Value{Rules: xtables.Printed(all...)}, len(all) > 0
}
