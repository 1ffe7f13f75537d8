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
// set, a map or a rule does, or the name of a set: where rules look up a new set before
// it has its elements, clients outside of source ranges would be let in for a moment.
const comment = nft.Owner + " (layout 3)"

// The fields of keys. An address always comes first, so that all keys of a
// family are alike.
var (
	addrKey     = []nft.Field{nft.Daddr}
	sourceKey   = []nft.Field{nft.Saddr}
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
// order. Packets of no connection traverse no owned chain that looks up ranges.
var rangeLoad = []nft.Field{nft.Daddr, nft.CtProto, nft.Dport, nft.Saddr}

var (
	// setClusterIPs may have frontends of other kinds, too: their other ports are rejected.
	setClusterIPs = &nft.Set{Name: "cluster-ips", Key: addrKey}

	// setSourceRanges are frontends with source ranges, setAllowed such a frontend and a range
	// that may use it.
	setSourceRanges = &nft.Set{Name: "source-ranges", Key: frontKey}
	setAllowed      = &nft.Set{Name: "allowed", Key: handleKey, Interval: true, Loads: rangeLoad}

	// setHairpin has each endpoint of this node as source and destination: its connections
	// to itself.
	setHairpin = &nft.Set{Name: "hairpin", Key: []nft.Field{nft.Saddr, nft.Daddr}}

	// setNodePortAddresses is where node ports answer, setServiceCIDRs where cluster IPs are
	// and nothing else.
	setNodePortAddresses = &nft.Set{Name: "nodeport-addresses", Key: addrKey, Interval: true}
	setServiceCIDRs      = &nft.Set{Name: "service-cidrs", Key: addrKey, Interval: true}

	// setEndpointPorts are protocols and ports from which endpoints answer, setL4 the
	// protocols with ports.
	setEndpointPorts = &nft.Set{Name: "endpoint-ports", Key: []nft.Field{nft.L4Proto, nft.Sport}}
	setL4            = &nft.Set{Name: "l4", Key: protoKey}

	// setVIPs state what to do for a frontend; the other two for senders whose answer is
	// not the common one.
	setVIPs     = &nft.Set{Name: "vips", Key: frontKey, Data: nft.DataVerdict}
	setVIPsPod  = &nft.Set{Name: "vips-pod", Key: frontKey, Data: nft.DataVerdict}
	setVIPsHost = &nft.Set{Name: "vips-host", Key: frontKey, Data: nft.DataVerdict}

	// setSlots have the endpoint for a frontend and a number.
	setSlots = &nft.Set{Name: "slots", Key: slotKey, Data: nft.DataEndpoint}

	// Node ports have no address of their own.
	setNodePorts     = &nft.Set{Name: "nodeports", Key: nodeKey, Data: nft.DataVerdict}
	setNodePortsPod  = &nft.Set{Name: "nodeports-pod", Key: nodeKey, Data: nft.DataVerdict}
	setNodePortsHost = &nft.Set{Name: "nodeports-host", Key: nodeKey, Data: nft.DataVerdict}
	setNodeSlots     = &nft.Set{Name: "nodeslots", Key: nodeSlotKey, Data: nft.DataEndpoint}
)

// The sets and maps of ports with ClientIP affinity (affinity.go).
var (
	// setAffinityPorts have the identity of a frontend's port in setAffinity (portCompiler.identity).
	setAffinityPorts     = &nft.Set{Name: "affinity-ports", Key: frontKey, Data: nft.DataAddress, Loads: cameFor}
	setAffinityNodePorts = &nft.Set{Name: "affinity-nodeports", Key: nodeKey, Data: nft.DataAddress}

	// setAffinitySlots have an endpoint's handle for a frontend and a number.
	setAffinitySlots     = &nft.Set{Name: "affinity-slots", Key: slotKey, Data: nft.DataAddress, Loads: append(cameFor[:3:3], nft.Number)}
	setAffinityNodeSlots = &nft.Set{Name: "affinity-nodeslots", Key: nodeSlotKey, Data: nft.DataAddress}

	// setAffinityEndpoints have the endpoint for a frontend and a handle, of the
	// frontend's first pool or its second.
	setAffinityEndpoints           = &nft.Set{Name: "affinity-endpoints", Key: handleKey, Data: nft.DataEndpoint, Loads: handleLoad}
	setAffinityEndpointsSecond     = &nft.Set{Name: "affinity-endpoints-second", Key: handleKey, Data: nft.DataEndpoint, Loads: handleLoad}
	setAffinityNodeEndpoints       = &nft.Set{Name: "affinity-nodeendpoints", Key: nodeHandleKey, Data: nft.DataEndpoint, Loads: nodeHandleLoad}
	setAffinityNodeEndpointsSecond = &nft.Set{Name: "affinity-nodeendpoints-second", Key: nodeHandleKey, Data: nft.DataEndpoint, Loads: nodeHandleLoad}

	// setAffinity has, for a client and a port, the handle of the endpoint that it had
	// last. Its elements are not read back.
	setAffinity = &nft.Set{
		Name: "affinity", Key: []nft.Field{nft.Saddr, nft.Daddr, nft.L4Proto}, Data: nft.DataAddress, Size: affinitySize, Unread: true,
		Loads: []nft.Field{nft.CtSaddr, nft.Saddr, nft.L4Proto},
	}

	// setAffinitySpare is the same for clients beyond the share of their port or its
	// namespace, as many as it has room for, first come, first served.
	setAffinitySpare = &nft.Set{
		Name: "affinity-spare", Key: setAffinity.Key, Data: nft.DataAddress, Size: affinitySpareSize, Unread: true, Loads: setAffinity.Loads,
	}

	// setAffinityTenants state by which number the namespace of a frontend is counted.
	setAffinityTenants     = &nft.Set{Name: "affinity-tenants", Key: frontKey, Data: nft.DataAddress, Loads: cameFor}
	setAffinityNodeTenants = &nft.Set{Name: "affinity-nodetenants", Key: nodeKey, Data: nft.DataAddress}

	// setAffinityPortShares and setAffinityShares count the clients that setAffinity was given
	// for a port and for a namespace.
	setAffinityPortShares = &nft.Set{Name: "affinity-port-shares", Key: sourceKey, Size: affinityShares, Unread: true}
	setAffinityShares     = &nft.Set{Name: "affinity-shares", Key: addrKey, Size: affinityShares, Unread: true}

	// setAffinityFull are ports, by identity, whose clients found no room lately.
	setAffinityFull = &nft.Set{Name: "affinity-crowded", Key: sourceKey, Size: affinityShares, Unread: true}
)

// affinitySets are those that rules fill: they exist only while a port needs them.
var affinitySets = []*nft.Set{setAffinity, setAffinitySpare, setAffinityPortShares, setAffinityShares, setAffinityFull}

// earlierAffinityFull is a set that earlier versions had in place of setAffinityFull. Chains that
// refer to it may go later than it would.
const earlierAffinityFull = "affinity-full"

// How many entries the maps of a table have room for. Buckets for all of
// them are allocated with the maps: 5 MB, and 43 MB more when they are full (some 62
// for IPv6). kube-proxy remembers up to 65,535 clients for each endpoint; here all
// Services share the room. affinityShares is for how many namespaces, and how many ports, there is a count: a port
// beyond them is held to the share of its namespace alone.
const (
	affinitySize      = 1 << 18
	affinitySpareSize = 1 << 16
	affinityShares    = 1 << 14
)

// table is Tandem's, with its sets in the order in which they are listed.
var table = nft.NewTable(Table, nft.Owner, comment,
	setClusterIPs, setSourceRanges, setAllowed, setHairpin, setNodePortAddresses,
	setServiceCIDRs, setEndpointPorts, setL4, setVIPs, setVIPsPod,
	setVIPsHost, setSlots, setNodePorts, setNodePortsPod, setNodePortsHost,
	setNodeSlots, setAffinityPorts, setAffinityNodePorts, setAffinitySlots, setAffinityNodeSlots,
	setAffinityEndpoints, setAffinityEndpointsSecond, setAffinityNodeEndpoints, setAffinityNodeEndpointsSecond, setAffinity,
	setAffinityTenants, setAffinityNodeTenants, setAffinitySpare, setAffinityPortShares, setAffinityShares, setAffinityFull,
).Lead(func(chain string) (*nft.Set, uint16, int) {
	p, ok := parsePick(chain)
	if !ok {
		return nil, 0, 0
	}
	return p.slots, uint16(p.first()), int(p.count)
})

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
	chainReject         = "reject-chain" // as kube-proxy calls it: "reject" is a keyword of nft
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
			Comment:    "unallocated cluster IP",
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
			{Statements: []nft.Statement{nft.CtDNAT{}, nft.Lookup{Set: setHairpin}, nft.Masquerade{}}, Comment: "hairpin"},
		}},
		chainNodePrerouting: {Rules: in.nodePorts()},
		chainNodeOutput:     {Rules: out.nodePorts()},
		chainNoService: {Rules: []nft.Rule{
			{Statements: []nft.Statement{nft.Lookup{Set: setClusterIPs}, nft.Goto{Chain: chainReject}}, Comment: "unallocated port of a cluster IP"},
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
		{Statements: []nft.Statement{nft.Lookup{Set: setSourceRanges}, nft.Lookup{Set: setAllowed, Not: true}, nft.Drop{}}, Comment: "not in source ranges"},
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
