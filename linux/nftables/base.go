package nftables

import (
	"maps"
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
	for id := noSet + 1; id < ownSets; id++ {
		if !id.ruled() {
			emit(SetObject(f, id))
		}
	}
	for _, proto := range []model.Proto{model.TCP, model.UDP, model.SCTP} {
		emit(Key{Kind: KindElement, Family: f, Set: L4, Proto: proto}, Value{})
	}
	emitRanges(NodePortAddresses, f, host.NodePorts.Prefixes, emit)
	emitRanges(ServiceCIDRs, f, host.ServiceCIDRs, emit)
	chains := c.chains(f, host)
	maps.Copy(chains, c.filters(len(disjoint(host.ServiceCIDRs, f)) > 0))
	for name, chain := range chains {
		emit(chainKey(f, name), Value{Body: &Body{Chain: newChain(f, chain.Hook, chain.Rules)}})
	}
}

// emitRanges emits the elements of a set of ranges.
func emitRanges(set SetID, f model.Family, all []netip.Prefix, emit func(Key, Value)) {
	for _, p := range disjoint(all, f) {
		k := addressElement(set, p.Addr())
		k.Rest = within(p)
		emit(k, Value{})
	}
}

// filters are the chains that see every packet. They come behind destination NAT,
// since an address that no Service of ours has may be another proxy's (label
// service-proxy-name). With unallocated they drop what is for a cluster IP that
// there is not.
func (c *Compiler) filters(unallocated bool) map[string]Chain {
	var forward, output []Rule
	if !c.options.Liberal {
		forward = invalid()
	}
	if unallocated {
		output = []Rule{{
			Statements: []Statement{IsNew{}, In{Set: ServiceCIDRs}, WasBalanced{Not: true}, DestinationIsLocal{Not: true}, Discard{}},
			Comment:    "for cluster IPs, and none of them",
		}}
		forward = append(forward, output...)
	}
	chains := map[string]Chain{}
	hook := func(p Point) Hook { return Hook{Type: "filter", Point: p, Policy: policyAccept} }
	if len(forward) > 0 {
		chains[chainFilterForward] = Chain{Hook: hook(Forward), Rules: forward}
	}
	if len(output) > 0 {
		chains[chainFilterOutput] = Chain{Hook: hook(LocalOut), Rules: output}
	}
	return chains
}

// invalid drops what could be an endpoint's answer that connection tracking finds
// invalid: its source would not become the Service's address, and who gets it
// resets the connection (kubernetes/kubernetes issue 74839). kube-proxy drops all
// invalid packets in iptables mode, and so those of connections of which this host
// sees one direction only, and which no Service is for. Here that is left to
// packets from a port that endpoints have; answers to connections that this host
// has not seen begin (SYN, ACK) pass, too. Nearly all packets end at the first
// rule.
func invalid() []Rule {
	return []Rule{
		rule(IsKnown{}, Accept{}),
		{
			Statements: []Statement{IsInvalid{}, ProtocolIs{model.TCP}, NotSYN{}, In{Set: EndpointPorts}, Discard{}},
			Comment:    "would reset a connection",
		},
	}
}

// natHook attaches a chain where addresses are rewritten: at the priority of
// destination NAT, -100, in output as well, or at that of source NAT.
func natHook(p Point) Hook {
	priority := int32(-100)
	if p == PostRouting {
		priority = 100
	}
	return Hook{Type: "nat", Point: p, Priority: priority, Policy: policyAccept}
}

// chains are those of every table.
func (c *Compiler) chains(f model.Family, host *model.Host) map[string]Chain {
	arriving, sent := podRules(f, host.Pods)
	in := origins{c.bit, arriving, VIPs, NodePorts}
	out := origins{c.bit, sent, VIPsHost, NodePortsHost}
	return map[string]Chain{
		chainPrerouting: {Hook: natHook(PreRouting), Rules: in.entrance(f, chainNodePrerouting)},
		chainOutput:     {Hook: natHook(LocalOut), Rules: out.entrance(f, chainNodeOutput)},
		chainPostrouting: {Hook: natHook(PostRouting), Rules: []Rule{
			rule(MarkHas{Bit: c.bit}, Goto{chainMasquerading}),
			{Statements: []Statement{WasBalanced{}, In{Set: Hairpin}, Masquerade{}}, Comment: "back to its sender"},
		}},
		chainNodePrerouting: {Rules: in.nodePorts()},
		chainNodeOutput:     {Rules: out.nodePorts()},
		chainNoService: {Rules: []Rule{
			{Statements: []Statement{In{Set: ClusterIPs}, Goto{chainRefuse}}, Comment: "cluster IPs have no other ports"},
			rule(ClearMark{c.bit}),
		}},
		chainRefuse:       {Rules: []Rule{rule(Refuse{})}},
		chainMasquerading: {Rules: []Rule{rule(ClearMark{c.bit}, Masquerade{})}},
	}
}

// podRules tell this node's pods, among what arrives and what the host sends
// itself: that comes by no interface and can only be told by address.
func podRules(f model.Family, pods model.PodMatch) (arriving, sent []Statement) {
	switch {
	case pods.Interface != "":
		return []Statement{InputIs{Name: pods.Interface}}, nil
	case pods.Prefix != "":
		return []Statement{InputIs{Name: pods.Prefix, Prefix: true}}, nil
	}
	for _, p := range disjoint(pods.CIDRs, f) {
		arriving = append(arriving, SourceIn{p})
	}
	return arriving, arriving
}

// origins are the senders of one entrance: pods, told by any of the matches,
// and one kind of others. From the entrance on, a clear masquerade bit means
// "pod".
//
// The maps that everybody uses are looked up in one place for each entrance, and
// not once for each origin: when an answer changes, the kernel checks the whole
// table along every path.
type origins struct {
	bit   uint32
	pods  []Statement
	vips  SetID // what only the others look at; VIPs for nothing
	nodes SetID // the same for node ports
}

// entrance is the chain that every first packet meets. Fronts with an address
// come before node ports.
func (o origins) entrance(f model.Family, nodePorts string) []Rule {
	loopback := netip.MustParsePrefix("127.0.0.0/8")
	if f == model.IPv6 {
		loopback = netip.MustParsePrefix("::1/128")
	}
	rules := []Rule{
		{Statements: []Statement{In{Set: Guarded}, In{Set: Allowed, Not: true}, Discard{}}, Comment: "outside of the source ranges"},
		rule(SetMark{o.bit}),
	}
	for _, pod := range o.pods {
		rules = append(rules, Rule{Statements: []Statement{pod, ClearMark{o.bit}}, Comment: "a pod of this node"})
	}
	rules = append(rules, o.look(VIPsPod, o.vips, VIPs)...)
	return append(rules,
		rule(DestinationIsLocal{}, DestinationNotIn{loopback}, In{Set: NodePortAddresses}, Goto{nodePorts}),
		rule(Goto{chainNoService}))
}

func (o origins) nodePorts() []Rule {
	return append(o.look(NodePortsPod, o.nodes, NodePorts), rule(Goto{chainNoService}))
}

// look looks a packet up in the map of its origin and in that of all.
func (o origins) look(pod, other, all SetID) (rules []Rule) {
	if len(o.pods) > 0 {
		rules = append(rules, rule(MarkHas{Bit: o.bit, Not: true}, Look{pod}))
	}
	if other != all {
		rules = append(rules, rule(MarkHas{Bit: o.bit}, Look{other}))
	}
	return append(rules, rule(Look{all}))
}
