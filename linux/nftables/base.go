// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"maps"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// Base emits the tables, sets, maps and chains that are there before any
// Service.
func (c *Compiler) Base(host *model.Host, emit func(nft.Key, nft.Value)) {
	for _, f := range c.options.families() {
		c.base(f, host, emit)
	}
}

func (c *Compiler) base(f model.Family, host *model.Host, emit func(nft.Key, nft.Value)) {
	emit(table.Object(f))
	for _, s := range table.Sets() {
		if !s.Dynamic() { // those exist only while a port needs them
			emit(nft.SetObject(f, s))
		}
	}
	for _, proto := range []model.Proto{model.TCP, model.UDP, model.SCTP} {
		emit(nft.Key{Kind: nft.KindElement, Family: f, Set: setL4, Proto: proto}, nft.Value{})
	}
	emitRanges(setNodePortAddresses, f, host.NodePorts.Prefixes, emit)
	emitRanges(setServiceCIDRs, f, host.ServiceCIDRs, emit)
	chains := c.chains(f, host)
	maps.Copy(chains, c.filters(len(f.Prefixes(host.ServiceCIDRs)) > 0))
	for name, chain := range chains {
		emit(table.ChainObject(f, name, chain.Hook, chain.Rules))
	}
}

// emitRanges emits the elements of a set of ranges.
func emitRanges(set *nft.Set, f model.Family, all []netip.Prefix, emit func(nft.Key, nft.Value)) {
	for _, p := range f.Prefixes(all) {
		emit(nft.AddrKey(set, p.Addr()).Within(p), nft.Value{})
	}
}

func (c *Compiler) ServiceCIDRs(k nft.Key, _ nft.Value) []netip.Prefix {
	if k.Kind != nft.KindElement || k.Set != setServiceCIDRs {
		return nil
	}
	if p := k.Prefix(); p.IsValid() {
		return []netip.Prefix{p}
	}
	return nil
}

// filters are the chains that see every packet. They come behind destination NAT,
// since an address that none of our Services has may be another proxy's (label
// service-proxy-name). With unallocated they drop packets to an unallocated
// cluster IP.
func (c *Compiler) filters(unallocated bool) map[string]nft.Chain {
	var forward, output []nft.Rule
	if !c.options.Liberal {
		forward = invalid()
	}
	if unallocated {
		output = []nft.Rule{{
			Statements: []nft.Statement{nft.CtState{States: nft.CtNew}, nft.Lookup{Set: setServiceCIDRs}, nft.CtDNAT{Not: true}, nft.FibLocal{Not: true}, nft.Drop{}},
			Comment:    "for cluster IPs, and none of them",
		}}
		forward = append(forward, output...)
	}
	chains := map[string]nft.Chain{}
	hook := func(p nft.Point) nft.Hook { return nft.Hook{Type: "filter", Point: p, Policy: nft.PolicyAccept} }
	if len(forward) > 0 {
		chains[chainFilterForward] = nft.Chain{Hook: hook(nft.Forward), Rules: forward}
	}
	if len(output) > 0 {
		chains[chainFilterOutput] = nft.Chain{Hook: hook(nft.LocalOut), Rules: output}
	}
	return chains
}

// invalid drops packets that could be an endpoint's answer and that connection tracking finds
// invalid: its source would not become the Service's address, and the client
// would reset the connection (kubernetes/kubernetes issue 74839). kube-proxy drops all
// invalid packets in iptables mode, and so those of connections of which this host
// sees one direction only, and which no Service is for. Here that is left to
// packets from a port that endpoints have; answers to connections that this host
// has not seen begin (SYN, ACK) pass, too. Nearly all packets end at the first
// rule.
func invalid() []nft.Rule {
	return []nft.Rule{
		nft.NewRule(nft.CtState{States: nft.CtKnown}, nft.Accept{}),
		{
			Statements: []nft.Statement{nft.CtState{States: nft.CtInvalid}, nft.L4ProtoIs{Proto: model.TCP}, nft.NotSYN{}, nft.Lookup{Set: setEndpointPorts}, nft.Drop{}},
			Comment:    "would reset a connection",
		},
	}
}

// chains are those of every table.
func (c *Compiler) chains(f model.Family, host *model.Host) map[string]nft.Chain {
	arriving, sent := podRules(f, host.Pods)
	in := origins{c.bit, arriving, setVIPs, setNodePorts}
	out := origins{c.bit, sent, setVIPsHost, setNodePortsHost}
	return map[string]nft.Chain{
		chainPrerouting: {Hook: nft.NATHook(nft.PreRouting), Rules: in.entrance(f, chainNodePrerouting)},
		chainOutput:     {Hook: nft.NATHook(nft.LocalOut), Rules: out.entrance(f, chainNodeOutput)},
		chainPostrouting: {Hook: nft.NATHook(nft.PostRouting), Rules: []nft.Rule{
			nft.NewRule(nft.MarkHas{Bit: c.bit}, nft.Goto{Chain: chainMasquerading}),
			{Statements: []nft.Statement{nft.CtDNAT{}, nft.Lookup{Set: setHairpin}, nft.Masquerade{}}, Comment: "back to its sender"},
		}},
		chainNodePrerouting: {Rules: in.nodePorts()},
		chainNodeOutput:     {Rules: out.nodePorts()},
		chainNoService: {Rules: []nft.Rule{
			{Statements: []nft.Statement{nft.Lookup{Set: setClusterIPs}, nft.Goto{Chain: chainReject}}, Comment: "cluster IPs have no other ports"},
			nft.NewRule(nft.ClearMark{Bit: c.bit}),
		}},
		chainReject:       {Rules: []nft.Rule{nft.NewRule(nft.Reject{})}},
		chainMasquerading: {Rules: []nft.Rule{nft.NewRule(nft.ClearMark{Bit: c.bit}, nft.Masquerade{})}},
	}
}

// podRules match this node's pods, among arriving packets and those that the host sends
// itself: the latter have no input interface and can only be matched by address.
func podRules(f model.Family, pods model.PodMatch) (arriving, sent []nft.Statement) {
	switch {
	case pods.Interface != "":
		return []nft.Statement{nft.IifName{Name: pods.Interface}}, nil
	case pods.Prefix != "":
		return []nft.Statement{nft.IifName{Name: pods.Prefix, Prefix: true}}, nil
	}
	for _, p := range f.Prefixes(pods.CIDRs) {
		arriving = append(arriving, nft.SourceIn{Prefix: p})
	}
	return arriving, arriving
}

// origins are the senders of one entrance: pods, recognised by any of the matches,
// and one kind of others. From the entrance on, a clear masquerade bit means
// "pod".
//
// The maps for all origins are looked up in one chain for each entrance, and
// not once for each origin: when an answer changes, the kernel checks the whole
// table along every path.
type origins struct {
	bit   uint32
	pods  []nft.Statement
	vips  *nft.Set // the map that only the others look up; setVIPs for none
	nodes *nft.Set // the same for node ports
}

// entrance is the chain that every first packet meets. Frontends with an address
// come before node ports.
func (o origins) entrance(f model.Family, nodePorts string) []nft.Rule {
	rules := []nft.Rule{
		{Statements: []nft.Statement{nft.Lookup{Set: setRestricted}, nft.Lookup{Set: setAllowed, Not: true}, nft.Drop{}}, Comment: "outside of the source ranges"},
		nft.NewRule(nft.SetMark{Bit: o.bit}),
	}
	for _, pod := range o.pods {
		rules = append(rules, nft.Rule{Statements: []nft.Statement{pod, nft.ClearMark{Bit: o.bit}}, Comment: "a pod of this node"})
	}
	rules = append(rules, o.vmaps(setVIPsPod, o.vips, setVIPs)...)
	return append(rules,
		nft.NewRule(nft.FibLocal{}, nft.DestinationIn{Prefix: f.Loopbacks(), Not: true}, nft.Lookup{Set: setNodePortAddresses}, nft.Goto{Chain: nodePorts}),
		nft.NewRule(nft.Goto{Chain: chainNoService}))
}

func (o origins) nodePorts() []nft.Rule {
	return append(o.vmaps(setNodePortsPod, o.nodes, setNodePorts), nft.NewRule(nft.Goto{Chain: chainNoService}))
}

// vmaps look a packet up in the map of its origin and in that of all.
func (o origins) vmaps(pod, other, all *nft.Set) (rules []nft.Rule) {
	if len(o.pods) > 0 {
		rules = append(rules, nft.NewRule(nft.MarkHas{Bit: o.bit, Not: true}, nft.Vmap{Map: pod}))
	}
	if other != all {
		rules = append(rules, nft.NewRule(nft.MarkHas{Bit: o.bit}, nft.Vmap{Map: other}))
	}
	return append(rules, nft.NewRule(nft.Vmap{Map: all}))
}
