package nftables

import (
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// Base emits the tables, sets, maps and chains that are there before any
// Service.
func (c *Compiler) Base(host *model.Host, emit func(Key, Value)) {
	for _, f := range c.options.families() {
		c.base(f, host, emit)
	}
}

func (c *Compiler) base(f model.Family, host *model.Host, emit func(Key, Value)) {
	emit(tableKey(f), Value{Body: &Body{Comment: tableComment}})
	for id := noSet + 1; id < numSets; id++ {
		emit(setKey(f, sets[id].name), Value{Body: &Body{Set: shapeOf(f, sets[id].Set)}})
	}
	for _, proto := range []model.Proto{model.TCP, model.UDP, model.SCTP} {
		emit(Key{Kind: KindElement, Family: f, Set: L4, Proto: proto}, Value{})
	}
	for _, p := range disjoint(host.NodePorts.Prefixes, f) {
		k := addressElement(NodePortAddresses, p.Addr())
		k.Rest = within(p)
		emit(k, Value{})
	}
	chain := func(name string, hook Hook, rules ...Rule) {
		emit(chainKey(f, name), Value{Body: &Body{Chain: newChain(f, hook, rules)}})
	}
	c.entrances(f, host, chain)
	c.origins(f, chain)
	chain(chainElse, Hook{},
		Rule{Statements: []Statement{In{Set: ClusterIPs}, Goto{chainRefuse}}, Comment: "cluster IPs have no other ports"},
		rule(ClearMark{c.bit}))
	chain(chainRefuse, Hook{}, rule(Refuse{}))
	chain(chainMasquerade, Hook{}, rule(ClearMark{c.bit}, Masquerade{}))
}

type chainMaker func(name string, hook Hook, rules ...Rule)

// entrances are the chains on the path of packets. The priority is that of
// destination NAT, -100, also in output.
func (c *Compiler) entrances(f model.Family, host *model.Host, chain chainMaker) {
	hook := func(p Point, priority int32) Hook {
		return Hook{Type: "nat", Point: p, Priority: priority, Policy: policyAccept}
	}
	arriving, sent := podRules(f, host.Pods)
	chain(chainPrerouting, hook(PreRouting, -100), append(arriving, rule(Goto{chainFromOutside}))...)
	chain(chainOutput, hook(LocalOut, -100), append(sent, rule(Goto{chainFromHost}))...)
	chain(chainPostrouting, hook(PostRouting, 100),
		rule(MarkHas{c.bit}, Goto{chainMasquerade}),
		Rule{Statements: []Statement{WasBalanced{}, In{Set: Hairpin}, Masquerade{}}, Comment: "back to its sender"})
}

// podRules tell this node's pods, among what arrives and what the host sends
// itself: that comes by no interface and can only be told by address.
func podRules(f model.Family, pods model.PodMatch) (arriving, sent []Rule) {
	toPod := Goto{chainFromPod}
	switch {
	case pods.Interface != "":
		return []Rule{rule(InputIs{Name: pods.Interface}, toPod)}, nil
	case pods.Prefix != "":
		return []Rule{rule(InputIs{Name: pods.Prefix, Prefix: true}, toPod)}, nil
	}
	for _, p := range disjoint(pods.CIDRs, f) {
		arriving = append(arriving, rule(SourceIn{p}, toPod))
		sent = append(sent, rule(SourceIn{p}, toPod))
	}
	return arriving, sent
}

// origins are the chains for each kind of sender. Fronts with an address come
// before node ports.
func (c *Compiler) origins(f model.Family, chain chainMaker) {
	loopback := netip.MustParsePrefix("127.0.0.0/8")
	if f == model.IPv6 {
		loopback = netip.MustParsePrefix("::1/128")
	}
	own := []Statement{DestinationIsLocal{}, DestinationNotIn{loopback}, In{Set: NodePortAddresses}}
	guard := Rule{Statements: []Statement{In{Set: Guarded}, In{Set: Allowed, Not: true}, Discard{}}, Comment: "source ranges"}

	chain(chainFromPod, Hook{}, guard, rule(ClearMark{c.bit}),
		rule(Look{VIPsPod}), rule(Look{VIPs}),
		rule(append(own[:3:3], Goto{chainNodeFromPod})...), rule(Goto{chainElse}))
	chain(chainNodeFromPod, Hook{}, rule(Look{NodePortsPod}), rule(Look{NodePorts}), rule(Goto{chainElse}))

	chain(chainFromHost, Hook{}, guard, rule(SetMark{c.bit}),
		rule(Look{VIPsHost}), rule(Look{VIPs}),
		rule(append(own[:3:3], Goto{chainNodeFromHost})...), rule(Goto{chainElse}))
	chain(chainNodeFromHost, Hook{}, rule(Look{NodePortsHost}), rule(Look{NodePorts}), rule(Goto{chainElse}))

	chain(chainFromOutside, Hook{}, guard, rule(SetMark{c.bit}),
		rule(Look{VIPs}),
		rule(append(own[:3:3], Goto{chainNodeFromOutside})...), rule(Goto{chainElse}))
	chain(chainNodeFromOutside, Hook{}, rule(Look{NodePorts}), rule(Goto{chainElse}))
}
