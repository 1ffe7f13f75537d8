// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"maps"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// Table is the name of Tandem's tables, one of family ip and one of family ip6.
const Table = "tandem"

// comment is the comment of the tables. Its number must change when the meaning of a set, a
// map or a rule changes, or the name of a set: rules that look up a new set before
// it has its elements would admit clients outside of source ranges.
const comment = nft.Owner + " (layout 3)"

// The fields of keys. If a key has an address, it comes first.
var (
	addrKey     = []nft.Field{nft.Daddr}
	sourceKey   = []nft.Field{nft.Saddr}
	protoKey    = []nft.Field{nft.L4Proto}
	frontKey    = []nft.Field{nft.Daddr, nft.L4Proto, nft.Dport}
	nodeKey     = []nft.Field{nft.L4Proto, nft.Dport}
	slotKey     = append(frontKey[:3:3], nft.Number)
	nodeSlotKey = append(nodeKey[:2:2], nft.Number)

	// Rules for affinity change addresses of the packet before they look them up.
	cameFor        = []nft.Field{nft.CtDaddr, nft.L4Proto, nft.Dport}
	handleKey      = append(frontKey[:3:3], nft.Saddr)
	handleLoad     = append(cameFor[:3:3], nft.Daddr)
	nodeHandleKey  = []nft.Field{nft.Saddr, nft.L4Proto, nft.Dport}
	nodeHandleLoad = []nft.Field{nft.Daddr, nft.L4Proto, nft.Dport}
)

// rangeLoad are the fields that rules look up in setAllowed. nft converts each field of a key
// with ranges to network byte order, l4proto with an expression that
// Linux 6.12 rejects for a single byte; "ct original protocol" needs no conversion. Packets
// without a connection traverse no chain that looks up ranges.
var rangeLoad = []nft.Field{nft.Daddr, nft.CtProto, nft.Dport, nft.Saddr}

var (
	// setClusterIPs are the cluster IPs, whose unused ports are rejected.
	setClusterIPs = &nft.Set{Name: "cluster-ips", Key: addrKey}

	// setSourceRanges are frontends with source ranges, setAllowed pairs of such a frontend and
	// a range of permitted clients.
	setSourceRanges = &nft.Set{Name: "source-ranges", Key: frontKey}
	setAllowed      = &nft.Set{Name: "allowed", Key: handleKey, Interval: true, Loads: rangeLoad}

	// setHairpin has endpoints' addresses as both source and destination: connections to
	// themselves, which are masqueraded.
	setHairpin = &nft.Set{Name: "hairpin", Key: []nft.Field{nft.Saddr, nft.Daddr}}

	// setNodePortAddresses are the addresses of node ports, setServiceCIDRs the ranges of
	// cluster IPs.
	setNodePortAddresses = &nft.Set{Name: "nodeport-addresses", Key: addrKey, Interval: true}
	setServiceCIDRs      = &nft.Set{Name: "service-cidrs", Key: addrKey, Interval: true}

	// setEndpointPorts are protocols and ports of endpoints, setL4 the protocols with ports.
	setEndpointPorts = &nft.Set{Name: "endpoint-ports", Key: []nft.Field{nft.L4Proto, nft.Sport}}
	setL4            = &nft.Set{Name: "l4", Key: protoKey}

	// setVIPs has the answers of frontends with an address; the other two have those for one
	// origin that differ.
	setVIPs     = &nft.Set{Name: "vips", Key: frontKey, Data: nft.DataVerdict}
	setVIPsPod  = &nft.Set{Name: "vips-pod", Key: frontKey, Data: nft.DataVerdict}
	setVIPsHost = &nft.Set{Name: "vips-host", Key: frontKey, Data: nft.DataVerdict}

	// setSlots has the endpoint for a frontend and a slot number.
	setSlots = &nft.Set{Name: "slots", Key: slotKey, Data: nft.DataEndpoint}

	// The same for node ports, whose keys have no address.
	setNodePorts     = &nft.Set{Name: "nodeports", Key: nodeKey, Data: nft.DataVerdict}
	setNodePortsPod  = &nft.Set{Name: "nodeports-pod", Key: nodeKey, Data: nft.DataVerdict}
	setNodePortsHost = &nft.Set{Name: "nodeports-host", Key: nodeKey, Data: nft.DataVerdict}
	setNodeSlots     = &nft.Set{Name: "nodeslots", Key: nodeSlotKey, Data: nft.DataEndpoint}
)

// The sets and maps of ports with ClientIP affinity (affinity.go).
var (
	// setAffinityPorts has the identity of a frontend's port in setAffinity (portCompiler.identity).
	setAffinityPorts     = &nft.Set{Name: "affinity-ports", Key: frontKey, Data: nft.DataAddress, Loads: cameFor}
	setAffinityNodePorts = &nft.Set{Name: "affinity-nodeports", Key: nodeKey, Data: nft.DataAddress}

	// setAffinitySlots has an endpoint's handle for a frontend and a slot number.
	setAffinitySlots     = &nft.Set{Name: "affinity-slots", Key: slotKey, Data: nft.DataAddress, Loads: append(cameFor[:3:3], nft.Number)}
	setAffinityNodeSlots = &nft.Set{Name: "affinity-nodeslots", Key: nodeSlotKey, Data: nft.DataAddress}

	// setAffinityEndpoints has the endpoint for a frontend and a handle, of the
	// frontend's first pool; the Second of its second.
	setAffinityEndpoints           = &nft.Set{Name: "affinity-endpoints", Key: handleKey, Data: nft.DataEndpoint, Loads: handleLoad}
	setAffinityEndpointsSecond     = &nft.Set{Name: "affinity-endpoints-second", Key: handleKey, Data: nft.DataEndpoint, Loads: handleLoad}
	setAffinityNodeEndpoints       = &nft.Set{Name: "affinity-nodeendpoints", Key: nodeHandleKey, Data: nft.DataEndpoint, Loads: nodeHandleLoad}
	setAffinityNodeEndpointsSecond = &nft.Set{Name: "affinity-nodeendpoints-second", Key: nodeHandleKey, Data: nft.DataEndpoint, Loads: nodeHandleLoad}

	// setAffinity has, for a client and a port, the handle of the client's last endpoint. Its
	// elements are not read back.
	setAffinity = &nft.Set{
		Name: "affinity", Key: []nft.Field{nft.Saddr, nft.Daddr, nft.L4Proto}, Data: nft.DataAddress, Size: affinitySize, Unread: true,
		Loads: []nft.Field{nft.CtSaddr, nft.Saddr, nft.L4Proto},
	}

	// setAffinitySpare is the same for clients beyond the share of their port or its
	// namespace, first come, first served.
	setAffinitySpare = &nft.Set{
		Name: "affinity-spare", Key: setAffinity.Key, Data: nft.DataAddress, Size: affinitySpareSize, Unread: true, Loads: setAffinity.Loads,
	}

	// setAffinityTenants has the number by which a frontend's namespace is counted.
	setAffinityTenants     = &nft.Set{Name: "affinity-tenants", Key: frontKey, Data: nft.DataAddress, Loads: cameFor}
	setAffinityNodeTenants = &nft.Set{Name: "affinity-nodetenants", Key: nodeKey, Data: nft.DataAddress}

	// setAffinityPortShares and setAffinityShares limit the entries added to setAffinity
	// for a port and for a namespace.
	setAffinityPortShares = &nft.Set{Name: "affinity-port-shares", Key: sourceKey, Size: affinityShares, Unread: true}
	setAffinityShares     = &nft.Set{Name: "affinity-shares", Key: addrKey, Size: affinityShares, Unread: true}

	// setAffinityFull are ports, by identity, whose clients found no room in the last fullFor.
	setAffinityFull = &nft.Set{Name: "affinity-crowded", Key: sourceKey, Size: affinityShares, Unread: true}
)

// affinitySets are the sets that rules fill: they exist only while a port needs them.
var affinitySets = []*nft.Set{setAffinity, setAffinitySpare, setAffinityPortShares, setAffinityShares, setAffinityFull}

// earlierAffinityFull is the set that earlier versions had instead of setAffinityFull. Its deletion
// is delayed like that of chains that refer to it.
const earlierAffinityFull = "affinity-full"

// The sizes of the maps that rules fill. The kernel allocates buckets for all entries with the
// maps: 5 MB, and 43 MB more when they are full (some 62 MB
// for IPv6). kube-proxy remembers up to 65,535 clients for each endpoint; here all
// Services share the room. affinityShares bounds the ports and the namespaces that are counted: a port
// beyond it is limited by the share of its namespace only.
const (
	affinitySize      = 1 << 18
	affinitySpareSize = 1 << 16
	affinityShares    = 1 << 14
)

// table is Tandem's table, with its sets in the order of listings.
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

// bankSize is the room for one pool of a frontend in a map of slots. There is room for two: the second
// pool's slots begin at bankSize.
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

// Base emits the tables, sets, maps and chains that do not depend on Services.
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

// filters returns the chains that see every packet. They come after destination NAT,
// since an address without a Service of Tandem's may be another proxy's (label
// service-proxy-name). With unallocated they drop packets to unallocated
// cluster IPs.
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

// invalid drops answers of endpoints that connection tracking finds
// invalid: their source would not be translated to the Service's address, and the client
// would reset the connection (kubernetes/kubernetes issue 74839). In iptables mode, kube-proxy drops all
// invalid packets, also those of connections without a Service of which this host
// sees only one direction. Here only packets from a port of endpoints are dropped, and SYN, ACK
// of connections whose beginning this host has not seen pass. Nearly all packets end at the first
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

// chains returns the chains of every table.
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

// podRules returns matches of packets from this node's pods: among arriving packets, and among those
// sent by the host, which have no input interface and can only be matched by address.
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

// origins are the senders of packets in prerouting or output: pods, recognised by any of the
// matches, and others, from outside or from the host. After entrance, a clear masquerade bit
// means "pod".
//
// Each map is looked up in one rule of these chains, not once for each origin: when an answer
// changes, the kernel checks the whole table along every path.
type origins struct {
	bit   uint32
	pods  []nft.Statement
	vips  *nft.Set // the map that only the other senders look up; setVIPs for none
	nodes *nft.Set // the same for node ports
}

// entrance returns the rules of prerouting or output. Frontends with an address come before
// node ports.
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

// vmaps returns rules that look a packet up in the map of its origin, then in that of all.
func (o origins) vmaps(pod, other, all *nft.Set) (rules []nft.Rule) {
	if len(o.pods) > 0 {
		rules = append(rules, nft.NewRule(nft.MarkHas{Bit: o.bit, Not: true}, nft.Vmap{Map: pod}))
	}
	if other != all {
		rules = append(rules, nft.NewRule(nft.MarkHas{Bit: o.bit}, nft.Vmap{Map: other}))
	}
	return append(rules, nft.NewRule(nft.Vmap{Map: all}))
}
