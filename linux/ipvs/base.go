package ipvs

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Base emits what is there before any Service (dataplane.Compiler).
func (c *Compiler) Base(host *model.Host, emit func(Key, Value)) {
	emit(Key{Kind: KindLink}, Value{})
	for _, f := range c.options.families() {
		emit(Key{Kind: KindRule, Family: f}, Value{})
		for s := noSet + 1; s < numSets; s++ {
			emit(Key{Kind: KindSet, Family: f, Set: s}, Value{})
		}
		emitRanges(NodePortRanges, f, host.NodePorts.Prefixes, emit)
		emitRanges(ServiceCIDRs, f, host.ServiceCIDRs, emit)
		for id, rules := range c.chains(f, host) {
			if len(rules) == 0 {
				continue
			}
			emit(Key{Kind: KindChain, Family: f, Chain: ChainID(id)}, owned(rules...))
			if ChainID(id).from() != "" {
				emit(Key{Kind: KindJump, Family: f, Chain: ChainID(id)}, Value{})
			}
		}
	}
}

// emitRanges emits the entries of a set of prefixes.
func emitRanges(set SetID, f model.Family, all []netip.Prefix, emit func(Key, Value)) {
	for _, p := range model.Canonical(slices.Clone(all)) {
		if model.FamilyOf(p.Addr()) == f {
			emitPrefix(Key{Kind: KindEntry, Family: f, Set: set}, p, emit)
		}
	}
}

func loopback(f model.Family) netip.Prefix {
	if f == model.IPv4 {
		return netip.MustParsePrefix("127.0.0.0/8")
	}
	return netip.MustParsePrefix("::1/128")
}

// owned is a chain with some rules, and the one that says whose it is.
func owned(rules ...xtables.Rule) Value {
	return Value{Rules: xtables.List(append([]xtables.Rule{owner()}, rules...)...)}
}

// chains are the rules of every chain.
func (c *Compiler) chains(f model.Family, host *model.Host) (all [numChains][]xtables.Rule) {
	r := rules{c.marks, f}
	arriving, sent := r.pods(host.Pods)
	all[mangleIn] = r.classify(arriving, false)
	// What IPVS has forwarded comes through here as well. It must not be routed by
	// our rule once more.
	forwarded := xtables.Rule{Matches: []xtables.Match{has(r.claimed)}, Target: xtables.Goto{Chain: mangleLast.name()}}
	all[mangleOut] = slices.Insert(r.classify(sent, true), 0, forwarded)
	all[manglePort] = []xtables.Rule{
		{Proto: model.TCP, Target: r.translate(NodePortTCP, "dst")},
		{Proto: model.UDP, Target: r.translate(NodePortUDP, "dst")},
		{Target: r.translate(NodePortSCTP, "dst,dst")},
	}
	all[mangleLast] = []xtables.Rule{rule(xtables.SetMark{Mask: r.claimed | r.denied | r.numberMask()}, has(r.claimed))}
	all[natIn] = []xtables.Rule{rule(xtables.Accept, has(r.claimed))}
	all[natOut] = all[natIn]
	masquerade := xtables.Masquerade{RandomFully: !c.options.NoRandomFully}
	all[natLast] = []xtables.Rule{
		rule(xtables.Masquerade{}, r.in(LoopBack, "dst,dst,src")),
		rule(xtables.Masquerade{}, r.in(VirtualIPs, "src"), r.notIn(VirtualIPs, "dst")),
		rule(xtables.Return, hasNot(r.masquerade)),
		rule(xtables.SetMark{Mask: r.masquerade}),
		rule(masquerade),
	}
	refuse := rule(xtables.Reject, has(r.denied)) // what has no endpoint
	// What IPVS has forwarded comes through here as well, most of it from others.
	all[filterIn] = []xtables.Rule{refuse}
	all[filterOut] = []xtables.Rule{refuse, r.unallocated().With(xtables.SrcLocal{})}
	all[filterPort] = []xtables.Rule{rule(xtables.Accept, r.in(HealthCheckPort, "dst"))}
	all[filterForward] = []xtables.Rule{refuse, r.unallocated(), rule(xtables.Accept, xtables.State{Any: "RELATED,ESTABLISHED"})}
	return all
}

// rules makes the rules of one family.
type rules struct {
	marks
	family model.Family
}

func rule(to xtables.Target, asks ...xtables.Match) xtables.Rule {
	return xtables.Rule{Matches: asks, Target: to}
}

func has(bits uint32) xtables.HasMark { return xtables.HasMark{Value: bits, Mask: bits} }

func hasNot(bits uint32) xtables.HasMark {
	return xtables.HasMark{Value: bits, Mask: bits, Not: true}
}

func (r rules) in(s SetID, fields string) xtables.InSet {
	return xtables.InSet{Set: s.Name(r.family), Fields: fields}
}

func (r rules) notIn(s SetID, fields string) xtables.InSet {
	return xtables.InSet{Set: s.Name(r.family), Fields: fields, Not: true}
}

func (r rules) translate(s SetID, fields string) xtables.MapMark {
	return xtables.MapMark{Set: s.Name(r.family), Fields: fields}
}

// pods are matches of this node's pods, among what arrives and what the host
// sends itself: that comes by no interface and can only be told by address.
func (r rules) pods(m model.PodMatch) (arriving, sent []xtables.Rule) {
	switch {
	case m.Interface != "":
		return []xtables.Rule{{In: xtables.Interface{Name: m.Interface}}}, nil
	case m.Prefix != "":
		return []xtables.Rule{{In: xtables.Interface{Name: m.Prefix + "+"}}}, nil
	}
	for _, p := range model.Canonical(m.CIDRs) {
		if model.FamilyOf(p.Addr()) == r.family {
			arriving = append(arriving, xtables.Rule{Src: xtables.Within(p)})
		}
	}
	return arriving, arriving
}

// classify turns the mark of a packet into the answer of its front for its
// sender. Only the first packet of a connection is dropped, refused or
// masqueraded; all others must only find their way to IPVS.
func (r rules) classify(pods []xtables.Rule, host bool) []xtables.Rule {
	all := []xtables.Rule{
		// Connections of another proxy, from before we took over.
		rule(xtables.Return, xtables.State{Any: "DNAT"}),
		rule(xtables.Drop, r.in(Guarded, "dst,dst"), r.notIn(Allowed, "dst,dst,src"), isNew),
		rule(xtables.SetMark{Value: r.masquerade, Mask: r.all()}),
	}
	for _, pod := range pods {
		pod.Target = xtables.SetMark{Mask: r.masquerade}
		all = append(all, pod)
	}
	for _, s := range []SetID{ClusterIPs, ExternalIPs, LoadBalancer} {
		all = append(all, rule(r.translate(s, "dst,dst")))
	}
	for _, proto := range []model.Proto{model.TCP, model.UDP, model.SCTP} { // cluster IPs have no other ports
		other := rule(xtables.SetMark{Value: r.claimed | r.denied, Mask: r.all()}, hasNot(r.claimed), r.in(VirtualIPs, "dst"))
		other.Proto = proto
		all = append(all, other)
	}
	nodePort := rule(xtables.Jump{Chain: manglePort.name()}, hasNot(r.claimed), r.in(NodePortRanges, "dst"), xtables.DstLocal{})
	nodePort.Dst = xtables.Addrs{Prefix: loopback(r.family), Not: true}
	all = append(all, nodePort)
	if host {
		all = append(all, rule(r.translate(Host, "dst,dst")))
	}
	for _, pod := range pods {
		pod.Target = r.translate(Pods, "dst,dst")
		all = append(all, pod)
	}
	return append(all,
		rule(xtables.Drop, has(r.all()), isNew),
		rule(xtables.SetMark{Mask: r.masquerade | r.denied}, hasNot(r.claimed)),
		rule(xtables.SetMark{Mask: r.masquerade | r.denied}, isOld),
		// What is refused is not delivered here: an answer needs an address that
		// this host has, and that of the front it has not.
		rule(xtables.SetMark{Mask: r.claimed}, has(r.claimed|r.denied)),
	)
}

// unallocated is the rule for what could be for a cluster IP, and is for none. It
// comes behind destination NAT: an address that no Service of ours has may be
// another proxy's (label service-proxy-name).
func (r rules) unallocated() xtables.Rule {
	return rule(xtables.Drop, r.in(ServiceCIDRs, "dst"), xtables.DstLocal{Not: true}, isNew, xtables.State{Any: "DNAT", Not: true})
}
