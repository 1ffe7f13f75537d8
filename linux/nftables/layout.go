// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"maps"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// Table is the name of our tables, one of family ip and one of family ip6.
const Table = "tandem"

// comment is that of our tables. The number must change whenever the meaning of a
// set, a map or a rule does.
const comment = nft.Owner + " (layout 2)"

// The fields of keys. An address always comes first, so that all keys of a
// family are alike.
var (
	addrKey     = []nft.Field{nft.Daddr}
	protoKey    = []nft.Field{nft.L4Proto}
	frontKey    = []nft.Field{nft.Daddr, nft.L4Proto, nft.Dport}
	nodeKey     = []nft.Field{nft.L4Proto, nft.Dport}
	slotKey     = append(frontKey[:3:3], nft.Number)
	nodeSlotKey = append(nodeKey[:2:2], nft.Number)

	// A rule for affinity changes addresses of the packet before it looks them up.
	cameFor        = []nft.Field{nft.CtDaddr, nft.L4Proto, nft.Dport}
	handleKey      = append(frontKey[:3:3], nft.Saddr)
	handleLoad     = append(cameFor[:3:3], nft.Daddr)
	nodeHandleKey  = []nft.Field{nft.Saddr, nft.L4Proto, nft.Dport}
	nodeHandleLoad = []nft.Field{nft.Daddr, nft.L4Proto, nft.Dport}
)

// rangeLoad is what a rule looks up in a key with ranges. nft turns each field of
// such a key to the byte order of the network, l4proto with an expression that
// Linux 6.12 rejects for a single byte; the protocol of a connection is in that
// order. Packets of no connection meet no chain of ours that looks up ranges.
var rangeLoad = []nft.Field{nft.Daddr, nft.CtProto, nft.Dport, nft.Saddr}

// The sets and maps.
var (
	// ClusterIPs may have frontends of other kinds, too: their other ports are rejected.
	ClusterIPs = &nft.Set{Name: "cluster-ips", Key: addrKey}

	// Guarded are frontends with source ranges, Allowed such a frontend and a range
	// that may use it.
	Guarded = &nft.Set{Name: "guarded", Key: frontKey}
	Allowed = &nft.Set{Name: "allowed", Key: handleKey, Interval: true, Loads: rangeLoad}

	// Hairpin has endpoints of this node, twice: connections back to their sender.
	Hairpin = &nft.Set{Name: "hairpin", Key: []nft.Field{nft.Saddr, nft.Daddr}}

	// NodePortAddresses is where node ports answer, ServiceCIDRs where cluster IPs are
	// and nothing else.
	NodePortAddresses = &nft.Set{Name: "nodeport-addresses", Key: addrKey, Interval: true}
	ServiceCIDRs      = &nft.Set{Name: "service-cidrs", Key: addrKey, Interval: true}

	// EndpointPorts are protocols and ports from which endpoints answer, L4 the
	// protocols with ports.
	EndpointPorts = &nft.Set{Name: "endpoint-ports", Key: []nft.Field{nft.L4Proto, nft.Sport}}
	L4            = &nft.Set{Name: "l4", Key: protoKey}

	// VIPs say what to do for a frontend; the other two for senders whose answer is
	// not the common one.
	VIPs     = &nft.Set{Name: "vips", Key: frontKey, Data: nft.DataVerdict}
	VIPsPod  = &nft.Set{Name: "vips-pod", Key: frontKey, Data: nft.DataVerdict}
	VIPsHost = &nft.Set{Name: "vips-host", Key: frontKey, Data: nft.DataVerdict}

	// Slots have the endpoint for a frontend and a number.
	Slots = &nft.Set{Name: "slots", Key: slotKey, Data: nft.DataEndpoint}

	// Node ports have no address of their own.
	NodePorts     = &nft.Set{Name: "nodeports", Key: nodeKey, Data: nft.DataVerdict}
	NodePortsPod  = &nft.Set{Name: "nodeports-pod", Key: nodeKey, Data: nft.DataVerdict}
	NodePortsHost = &nft.Set{Name: "nodeports-host", Key: nodeKey, Data: nft.DataVerdict}
	NodeSlots     = &nft.Set{Name: "nodeslots", Key: nodeSlotKey, Data: nft.DataEndpoint}
)

// The sets and maps of ports with ClientIP affinity (affinity.go).
var (
	// AffinityPorts say what a frontend's port is known by in Affinity.
	AffinityPorts     = &nft.Set{Name: "affinity-ports", Key: frontKey, Data: nft.DataAddress, Loads: cameFor}
	AffinityNodePorts = &nft.Set{Name: "affinity-nodeports", Key: nodeKey, Data: nft.DataAddress}

	// AffinitySlots have an endpoint's handle for a frontend and a number.
	AffinitySlots     = &nft.Set{Name: "affinity-slots", Key: slotKey, Data: nft.DataAddress, Loads: append(cameFor[:3:3], nft.Number)}
	AffinityNodeSlots = &nft.Set{Name: "affinity-nodeslots", Key: nodeSlotKey, Data: nft.DataAddress}

	// AffinityEndpoints have the endpoint for a frontend and a handle, of the
	// frontend's first pool or its second.
	AffinityEndpoints           = &nft.Set{Name: "affinity-endpoints", Key: handleKey, Data: nft.DataEndpoint, Loads: handleLoad}
	AffinityEndpointsSecond     = &nft.Set{Name: "affinity-endpoints-second", Key: handleKey, Data: nft.DataEndpoint, Loads: handleLoad}
	AffinityNodeEndpoints       = &nft.Set{Name: "affinity-nodeendpoints", Key: nodeHandleKey, Data: nft.DataEndpoint, Loads: nodeHandleLoad}
	AffinityNodeEndpointsSecond = &nft.Set{Name: "affinity-nodeendpoints-second", Key: nodeHandleKey, Data: nft.DataEndpoint, Loads: nodeHandleLoad}

	// Affinity has, for a client and a port, the handle of the endpoint that it had
	// last. Which clients there are is not ours to know.
	Affinity = &nft.Set{
		Name: "affinity", Key: []nft.Field{nft.Saddr, nft.Daddr, nft.L4Proto}, Data: nft.DataAddress, Size: affinitySize, Unread: true,
		Loads: []nft.Field{nft.CtSaddr, nft.Saddr, nft.L4Proto},
	}

	// AffinityFull are protocols whose clients found no room in Affinity lately.
	AffinityFull = &nft.Set{Name: "affinity-full", Key: protoKey, Size: 8}
)

// affinitySize is how many entries a table's map has room for. Buckets for all of
// them are allocated with the map: 4 MB, and 34 MB more when it is full (some 50
// for IPv6). kube-proxy remembers up to 65,535 clients for each endpoint; here all
// Services share the room. When it is used up, new clients are served and not
// remembered until others' time is over: AffinityFull shows that.
const affinitySize = 1 << 18

// table is ours, with its sets in the order in which they are listed.
var table = nft.NewTable(Table, nft.Owner, comment,
	ClusterIPs, Guarded, Allowed, Hairpin, NodePortAddresses,
	ServiceCIDRs, EndpointPorts, L4, VIPs, VIPsPod,
	VIPsHost, Slots, NodePorts, NodePortsPod, NodePortsHost,
	NodeSlots, AffinityPorts, AffinityNodePorts, AffinitySlots, AffinityNodeSlots,
	AffinityEndpoints, AffinityEndpointsSecond, AffinityNodeEndpoints, AffinityNodeEndpointsSecond, Affinity,
	AffinityFull,
)

// A map has room for two pools of a frontend: the second one's slots start here.
const bankSize = 1 << 15

// The chains that every table has.
const (
	chainPrerouting     = "prerouting"
	chainOutput         = "output"
	chainPostrouting    = "postrouting"
	chainFilterForward  = "filter-forward" // (*Compiler).filters
	chainFilterOutput   = "filter-output"
	chainNodePrerouting = "nodeports-prerouting"
	chainNodeOutput     = "nodeports-output"
	chainNoService      = "no-service"
	chainReject         = "refuse"
	chainMasquerading   = "masquerading"
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
		if !s.Dynamic() { // those are there only as long as a port needs them
			emit(nft.SetObject(f, s))
		}
	}
	for _, proto := range []model.Proto{model.TCP, model.UDP, model.SCTP} {
		emit(nft.Key{Kind: nft.KindElement, Family: f, Set: L4, Proto: proto}, nft.Value{})
	}
	emitRanges(NodePortAddresses, f, host.NodePorts.Prefixes, emit)
	emitRanges(ServiceCIDRs, f, host.ServiceCIDRs, emit)
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

// filters are the chains that see every packet. They come behind destination NAT,
// since an address that no Service of ours has may be another proxy's (label
// service-proxy-name). With unallocated they drop what is for a cluster IP that
// there is not.
func (c *Compiler) filters(unallocated bool) map[string]nft.Chain {
	var forward, output []nft.Rule
	if !c.options.Liberal {
		forward = invalid()
	}
	if unallocated {
		output = []nft.Rule{{
			Statements: []nft.Statement{nft.CtState{States: nft.CtNew}, nft.Lookup{Set: ServiceCIDRs}, nft.CtDNAT{Not: true}, nft.FibLocal{Not: true}, nft.Drop{}},
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

// invalid drops what could be an endpoint's answer that connection tracking finds
// invalid: its source would not become the Service's address, and who gets it
// resets the connection (kubernetes/kubernetes issue 74839). kube-proxy drops all
// invalid packets in iptables mode, and so those of connections of which this host
// sees one direction only, and which no Service is for. Here that is left to
// packets from a port that endpoints have; answers to connections that this host
// has not seen begin (SYN, ACK) pass, too. Nearly all packets end at the first
// rule.
func invalid() []nft.Rule {
	return []nft.Rule{
		nft.NewRule(nft.CtState{States: nft.CtKnown}, nft.Accept{}),
		{
			Statements: []nft.Statement{nft.CtState{States: nft.CtInvalid}, nft.L4ProtoIs{Proto: model.TCP}, nft.NotSYN{}, nft.Lookup{Set: EndpointPorts}, nft.Drop{}},
			Comment:    "would reset a connection",
		},
	}
}

// chains are those of every table.
func (c *Compiler) chains(f model.Family, host *model.Host) map[string]nft.Chain {
	arriving, sent := podRules(f, host.Pods)
	in := origins{c.bit, arriving, VIPs, NodePorts}
	out := origins{c.bit, sent, VIPsHost, NodePortsHost}
	return map[string]nft.Chain{
		chainPrerouting: {Hook: nft.NATHook(nft.PreRouting), Rules: in.entrance(f, chainNodePrerouting)},
		chainOutput:     {Hook: nft.NATHook(nft.LocalOut), Rules: out.entrance(f, chainNodeOutput)},
		chainPostrouting: {Hook: nft.NATHook(nft.PostRouting), Rules: []nft.Rule{
			nft.NewRule(nft.MarkHas{Bit: c.bit}, nft.Goto{Chain: chainMasquerading}),
			{Statements: []nft.Statement{nft.CtDNAT{}, nft.Lookup{Set: Hairpin}, nft.Masquerade{}}, Comment: "back to its sender"},
		}},
		chainNodePrerouting: {Rules: in.nodePorts()},
		chainNodeOutput:     {Rules: out.nodePorts()},
		chainNoService: {Rules: []nft.Rule{
			{Statements: []nft.Statement{nft.Lookup{Set: ClusterIPs}, nft.Goto{Chain: chainReject}}, Comment: "cluster IPs have no other ports"},
			nft.NewRule(nft.ClearMark{Bit: c.bit}),
		}},
		chainReject:       {Rules: []nft.Rule{nft.NewRule(nft.Reject{})}},
		chainMasquerading: {Rules: []nft.Rule{nft.NewRule(nft.ClearMark{Bit: c.bit}, nft.Masquerade{})}},
	}
}

// podRules tell this node's pods, among what arrives and what the host sends
// itself: that comes by no interface and can only be told by address.
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

// origins are the senders of one entrance: pods, told by any of the matches,
// and one kind of others. From the entrance on, a clear masquerade bit means
// "pod".
//
// The maps that everybody uses are looked up in one place for each entrance, and
// not once for each origin: when an answer changes, the kernel checks the whole
// table along every path.
type origins struct {
	bit   uint32
	pods  []nft.Statement
	vips  *nft.Set // what only the others look at; VIPs for nothing
	nodes *nft.Set // the same for node ports
}

// entrance is the chain that every first packet meets. Frontends with an address
// come before node ports.
func (o origins) entrance(f model.Family, nodePorts string) []nft.Rule {
	loopback := netip.MustParsePrefix("127.0.0.0/8")
	if f == model.IPv6 {
		loopback = netip.MustParsePrefix("::1/128")
	}
	rules := []nft.Rule{
		{Statements: []nft.Statement{nft.Lookup{Set: Guarded}, nft.Lookup{Set: Allowed, Not: true}, nft.Drop{}}, Comment: "outside of the source ranges"},
		nft.NewRule(nft.SetMark{Bit: o.bit}),
	}
	for _, pod := range o.pods {
		rules = append(rules, nft.Rule{Statements: []nft.Statement{pod, nft.ClearMark{Bit: o.bit}}, Comment: "a pod of this node"})
	}
	rules = append(rules, o.vmaps(VIPsPod, o.vips, VIPs)...)
	return append(rules,
		nft.NewRule(nft.FibLocal{}, nft.DestinationIn{Prefix: loopback, Not: true}, nft.Lookup{Set: NodePortAddresses}, nft.Goto{Chain: nodePorts}),
		nft.NewRule(nft.Goto{Chain: chainNoService}))
}

func (o origins) nodePorts() []nft.Rule {
	return append(o.vmaps(NodePortsPod, o.nodes, NodePorts), nft.NewRule(nft.Goto{Chain: chainNoService}))
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
