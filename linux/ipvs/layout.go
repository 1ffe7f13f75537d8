// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/ipset"
	"github.com/tandem-proxy/tandem/linux/virtualserver"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Name is how --proxy-mode names this mode.
const Name config.Mode = "ipvs"

// Link is the dummy device that holds the cluster IPs, as in kube-proxy.
const Link = "kube-ipvs0"

// flagOwned marks a virtual server as owned. The kernel keeps unknown flags, and
// ipvsadm does not show them.
const flagOwned = 1 << 24

// tenantBits are the flags of a virtual server by mark that hold a hash of its namespace, never 0. So
// counts by namespace survive a restart.
const tenantBits, tenantShift = 0xffff << tenantShift, 8

// The routing rule that delivers service packets locally. External and load balancer
// IPs are on no device, so their other ports are not affected; kube-proxy binds them
// to kube-ipvs0, which captures all their ports and answers ARP for them. The table
// has only those addresses, so packets that another proxy has translated are routed
// as usual.
const (
	routePriority = 99     // after the rule for the local table, before all others
	routeTable    = 254514 // local routes to external and load balancer IPs
)

// ChainID is one of the chains of iptables that each family has.
type ChainID uint8

// The chains. Their names differ from those of the iptables mode in the same table,
// so that both modes can coexist while a node switches.
const (
	noChain    ChainID = iota
	mangleIn           // mark packets to a frontend: KUBE-SERVICES
	mangleOut          // the same for packets of the host
	manglePort         // node ports
	mangleLast         // clear marks after IPVS
	natIn              // leave service packets to IPVS
	natOut
	natLast       // masquerade
	filterIn      // reject
	filterOut     // reject, drop
	filterPort    // accept health checks
	filterForward // reject, drop
	numChains
)

var chainTable = [numChains]struct {
	table               xtables.Table
	name, from, comment string
}{
	mangleIn:      {xtables.Mangle, "KUBE-SERVICES", xtables.PreRouting, "kubernetes service portals"},
	mangleOut:     {xtables.Mangle, "KUBE-SERVICES-OUT", xtables.Output, "kubernetes service portals"},
	manglePort:    {xtables.Mangle, "KUBE-NODE-PORT", "", ""},
	mangleLast:    {xtables.Mangle, "KUBE-IPVS-POSTROUTING", xtables.PostRouting, "kubernetes postrouting rules"},
	natIn:         {xtables.NAT, "KUBE-IPVS-SERVICES", xtables.PreRouting, "kubernetes service portals"},
	natOut:        {xtables.NAT, "KUBE-IPVS-SERVICES-OUT", xtables.Output, "kubernetes service portals"},
	natLast:       {xtables.NAT, "KUBE-IPVS-POSTROUTING", xtables.PostRouting, "kubernetes postrouting rules"},
	filterIn:      {xtables.Filter, "KUBE-IPVS-FILTER", xtables.Input, "kubernetes ipvs access filter"},
	filterOut:     {xtables.Filter, "KUBE-IPVS-OUT-FILTER", xtables.Output, "kubernetes ipvs access filter"},
	filterPort:    {xtables.Filter, "KUBE-NODE-PORT", xtables.Input, "kubernetes health check rules"},
	filterForward: {xtables.Filter, "KUBE-IPVS-FORWARD", xtables.Forward, "kubernetes forwarding rules"},
}

func (c ChainID) table() xtables.Table { return chainTable[c].table }
func (c ChainID) name() string         { return chainTable[c].name }
func (c ChainID) from() string         { return chainTable[c].from }

// String returns table and chain.
func (c ChainID) String() string { return c.table().String() + " " + c.name() }

// ownerRule is the first rule of all owned chains, without effect. A chain without it
// is foreign, whatever its name: kube-proxy uses the same names.
func ownerRule() xtables.Rule { return xtables.Rule{Comment: "kept by Tandem (ipvs, layout 1)"} }

// classifies reports whether a chain decides what IPVS gets.
func (c ChainID) classifies() bool { return c == mangleIn || c == mangleOut }

// Connection tracking states of the first packets of connections, and of all others.
var (
	isNew         = xtables.State{Any: "NEW"}
	isEstablished = xtables.State{Any: "NEW", Not: true}
)

// jumpRule is the rule that jumps to a chain, for all packets or those of existing
// connections only.
func (c ChainID) jumpRule(oldOnly bool) xtables.Rule {
	r := xtables.JumpTo(c.name())
	r.Comment = chainTable[c].comment
	if oldOnly {
		r = r.With(isEstablished)
	}
	return r
}

// Kind is a kind of object.
type Kind uint8

// The kinds.
const (
	kindLink    Kind = iota // kube-ipvs0
	kindRule                // the routing rule that selects routeTable for service packets
	KindSet                 // an ipset
	KindChain               // a chain of iptables with its rules
	kindJump                // the jump to a chain
	kindServer              // a virtual server
	kindDest                // a destination (real server) of a virtual server
	kindEntry               // an entry of an ipset
	kindAddress             // an address on kube-ipvs0
	kindRoute               // a route of routeTable that delivers packets to an address locally
)

// batch is how consecutive ops are written together.
type batch uint8

const (
	batchNone    batch = iota // each op alone
	batchEntries              // entries, in few netlink messages
	batchRules                // chains and jumps, by one iptables-restore per family
)

func batchOf(k Kind) batch {
	switch k {
	case kindEntry:
		return batchEntries
	case KindChain, kindJump:
		return batchRules
	}
	return batchNone
}

// Key names an object. Which fields are used depends on Kind; all others are
// zero.
type Key struct {
	Kind   Kind
	Family model.Family
	Proto  model.Proto    // server, destination, entry
	Via    Via            // server, destination
	Set    SetID          // set, entry
	Chain  ChainID        // chain, jump
	Mark   uint32         // orphan: its fwmark; rule: its bit, if that is not the configured one
	Dst    netip.AddrPort // server, destination, entry, address, route: destination of packets, see dstAddr and dstPort; of servers by mark: the frontend, for node ports with the unspecified address
	Peer   Peer           // destination: the endpoint; entry: a client, or a network
}

// dstAddr is the Dst of objects for all ports of an address.
func dstAddr(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, 0) }

// dstPort is the Dst of entries for a port of all addresses.
func dstPort(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.Addr{}, port) }

// Peer is the second address of an object: an endpoint, a single client or a
// network.
type Peer struct {
	addr netip.Addr
	n    uint16 // port of an endpoint, prefix length of a network
}

func peerEndpoint(a netip.AddrPort) Peer { return Peer{a.Addr(), a.Port()} }

func peerClient(a netip.Addr) Peer { return Peer{addr: a} }

func peerNetwork(p netip.Prefix) Peer { return Peer{p.Masked().Addr(), uint16(p.Bits())} }

// endpoint returns the address and port of an endpoint.
func (p Peer) endpoint() netip.AddrPort { return netip.AddrPortFrom(p.addr, p.n) }

// network returns the prefix of a network.
func (p Peer) network() netip.Prefix { return netip.PrefixFrom(p.addr, int(p.n)) }

func (p Peer) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%s %d", p.addr, p.n), nil }

func (p *Peer) UnmarshalText(text []byte) (err error) {
	addr, n, _ := strings.Cut(string(text), " ")
	if addr != (netip.Addr{}).String() {
		if p.addr, err = netip.ParseAddr(addr); err != nil {
			return err
		}
	}
	number, err := strconv.ParseUint(n, 10, 16)
	p.n = uint16(number)
	return err
}

func (p Peer) compare(q Peer) int { return cmp.Or(p.addr.Compare(q.addr), cmp.Compare(p.n, q.n)) }

// String names the object in logs and errors.
func (k Key) String() string {
	switch k.Kind {
	case kindLink:
		return "link " + Link
	case kindRule:
		return k.Family.String() + " routing rule"
	case kindRoute:
		return "local route to " + k.Dst.Addr().String()
	case KindSet:
		return "ipset " + k.Set.Name(k.Family)
	case KindChain:
		return k.Family.String() + " chain " + k.Chain.String()
	case kindJump:
		return k.Family.String() + " jump to " + k.Chain.String()
	case kindAddress:
		return "address " + k.Dst.Addr().String() + " on " + Link
	case kindEntry:
		return "entry " + k.Set.Name(k.Family) + " " + entryOf(k).Text(k.Set.kind())
	case kindDest:
		return fmt.Sprintf("destination %s of virtual server %s", k.Peer.endpoint(), k.server())
	}
	return "virtual server " + k.server()
}

func (k Key) server() string {
	name := k.Proto.String() + " " + k.Dst.String()
	switch k.Via {
	case ByMark:
		return name + " (by fwmark)"
	case ByMarkSNAT:
		return name + " (by fwmark, SNAT)"
	case Orphan:
		return fmt.Sprintf("by fwmark %#x", k.Mark)
	}
	return name
}

// orphan is an owned virtual server by an fwmark that no entry sets. The user may
// have chosen another masquerade bit since, so it is named by the whole fwmark.
func orphan(f model.Family, mark uint32) Key {
	return Key{Kind: kindServer, Family: f, Via: Orphan, Mark: mark}
}

// serverOf returns the virtual server of a destination.
func (k Key) serverOf() Key {
	k.Kind, k.Peer = kindServer, Peer{}
	return k
}

// dest returns the key of a destination of a virtual server.
func (k Key) dest(to netip.AddrPort) Key {
	k.Kind, k.Peer = kindDest, peerEndpoint(to)
	return k
}

// Last reports whether a key is the only destination of its virtual server. A Commit in which another
// destination could not be created does not delete it: the virtual server would have none until the
// retry.
func Last(objects map[Key]Value, k Key) bool {
	if k.Kind != kindDest {
		return false
	}
	for other := range objects {
		if other != k && other.Kind == kindDest && other.serverOf() == k.serverOf() {
			return false
		}
	}
	return true
}

// SameServer reports whether both keys are destinations of one virtual server.
func SameServer(a, b Key) bool {
	return a.Kind == kindDest && b.Kind == kindDest && a.serverOf() == b.serverOf()
}

func compareKeys(a, b Key) int {
	return cmp.Or(
		cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Family, b.Family), cmp.Compare(a.Set, b.Set),
		cmp.Compare(a.Chain, b.Chain), cmp.Compare(a.Via, b.Via), a.Dst.Compare(b.Dst), cmp.Compare(a.Proto, b.Proto),
		a.Peer.compare(b.Peer), cmp.Compare(a.Mark, b.Mark),
	)
}

// Value is the content of an object.
type Value struct {
	Mark Mark // entry of a set with marks

	// ByMark and Via name the virtual server by mark that an entry leads to: ByMark is its
	// frontend. The driver chooses the number.
	ByMark netip.AddrPort
	Via    Via

	virtualserver.Server // server, without flagOwned

	Weighted bool   // server: by a scheduler that looks at weights, and they differ
	Weight   uint16 // destination: at least 1

	Rules xtables.Rules // chain: its rules; jump: as printed, if it exists more than once

	OldOnly bool // jump: for existing connections only (Drain)

	// Source is the source of the host's own packets to an address on kube-ipvs0, if
	// Drain has changed it.
	Source netip.Addr
}

// Via is how packets are matched to a virtual server.
type Via uint8

// The ways. IPVS looks up virtual servers by address, or by fwmark where the action depends on
// a packet's origin.
const (
	ByAddress  Via = iota
	ByMark         // marked, endpoints see the client
	ByMarkSNAT     // marked, endpoints see the node
	Orphan         // found in the kernel with an fwmark that no entry sets
)

// Mark is what an entry of a set does to the fwmark of a packet: the bits of Mask
// become those of Value. It encodes the action of a frontend.
type Mark struct{ Value, Mask uint32 }

// String returns the mark as ipset writes it.
func (m Mark) String() string { return fmt.Sprintf("0x%x/0x%x", m.Value, m.Mask) }

// SetID is one of the ipsets that each family has.
type SetID uint8

// The sets, most with kube-proxy's names. The marks of entries are actions: see Mark.
const (
	noSet        SetID = iota
	ClusterIPs         // frontends, with marks
	ExternalIPs        // frontends, with marks
	LoadBalancer       // frontends, with marks
	nodePortTCP        // node ports, with marks
	nodePortUDP
	nodePortSCTP    // the same by address, since bitmap:port does not support SCTP
	Pods            // frontends with another action for this node's pods, with marks
	Host            // frontends with another action for the host itself, with marks
	Restricted      // frontends with source ranges
	SourceRanges    // pairs of a restricted frontend and a permitted range
	loopBack        // endpoints of this node as destination and source: hairpins
	virtualIPs      // the cluster IPs, whose unused ports are rejected
	nodePortRanges  // the addresses of node ports
	ServiceCIDRs    // the ranges of cluster IPs
	healthCheckPort // healthCheckNodePorts
	numSets
)

var setTable = [numSets]struct {
	name  string
	kind  string // ipset's type
	marks bool
}{
	ClusterIPs:      {"CLUSTER-IP", ipset.HashIPPort, true},
	ExternalIPs:     {"EXTERNAL-IP", ipset.HashIPPort, true},
	LoadBalancer:    {"LOAD-BALANCER", ipset.HashIPPort, true},
	nodePortTCP:     {"NODE-PORT-TCP", ipset.BitmapPort, true},
	nodePortUDP:     {"NODE-PORT-UDP", ipset.BitmapPort, true},
	nodePortSCTP:    {"NODE-PORT-SCTP-HASH", ipset.HashIPPort, true},
	Pods:            {"FROM-POD", ipset.HashIPPort, true},
	Host:            {"FROM-HOST", ipset.HashIPPort, true},
	Restricted:      {"LOAD-BALANCER-FW", ipset.HashIPPort, false},
	SourceRanges:    {"LOAD-BALANCER-SOURCE-CIDR", ipset.HashIPPortNet, false},
	loopBack:        {"LOOP-BACK", ipset.HashIPPortIP, false},
	virtualIPs:      {"IPVS-IPS", ipset.HashIP, false},
	nodePortRanges:  {"NODE-PORT-ADDRESSES", ipset.HashNet, false},
	ServiceCIDRs:    {"SERVICE-CIDR", ipset.HashNet, false},
	healthCheckPort: {"HEALTH-CHECK-NODE-PORT", ipset.BitmapPort, false},
}

func (s SetID) kind() string { return setTable[s].kind }

func (s SetID) marks() bool { return setTable[s].marks }

// maxSetName is the length of the longest name (IPSET_MAXNAMELEN without the terminating zero).
const maxSetName = 31

// maxEntries is more than any cluster needs. It costs nothing, since sets grow as
// they are filled. kube-proxy's sets are full at 65,536.
const maxEntries = 1 << 24

// setNames are the names of the sets by family. A simulated packet meets many.
var setNames = func() (names [numSets][2]string) {
	for s := range names {
		for f, prefix := range [...]string{model.IPv4: "KUBE-", model.IPv6: "KUBE-6-"} {
			name := prefix + setTable[s].name
			names[s][f] = name[:min(len(name), maxSetName)]
		}
	}
	return names
}()

// Name returns the name of the set in a family.
func (s SetID) Name(f model.Family) string { return setNames[s][f] }

// setNamed returns the set with a name, noSet if there is none.
func setNamed(name string) (SetID, model.Family) {
	for s := noSet + 1; s < numSets; s++ {
		for _, f := range model.Families() {
			if s.Name(f) == name {
				return s, f
			}
		}
	}
	return noSet, 0
}

// definition is the definition of an owned set. Those of kube-proxy's sets with the same names
// differ.
func definition(k Key) ipset.Set {
	s := ipset.Set{Name: k.Set.Name(k.Family), Type: k.Set.kind(), Family: k.Family, Marks: k.Set.marks()}
	if k.Set.kind() == ipset.BitmapPort {
		s.Family = 0
	} else {
		s.MaxEntries = maxEntries
	}
	return s
}

// entryOf is the entry that a key names, without its mark.
func entryOf(k Key) ipset.Entry {
	e := ipset.Entry{IP: k.Dst.Addr(), Port: k.Dst.Port(), Proto: k.Proto}
	switch k.Set.kind() {
	case ipset.HashNet:
		return ipset.Entry{IP: k.Peer.addr, Bits: uint8(k.Peer.n)}
	case ipset.HashIPPortNet:
		e.IP2, e.Bits = k.Peer.addr, uint8(k.Peer.n)
	case ipset.HashIPPortIP:
		e.IP2 = k.Peer.addr
	}
	return e
}

// keyOf is the key of an entry of a set.
func keyOf(set Key, e ipset.Entry) Key {
	k := set
	k.Kind = kindEntry
	k.Dst, k.Proto = netip.AddrPortFrom(e.IP, e.Port), e.Proto
	switch set.Set.kind() {
	case ipset.HashNet:
		k.Dst, k.Proto, k.Peer = netip.AddrPort{}, 0, Peer{e.IP, uint16(e.Bits)}
	case ipset.HashIPPortNet:
		k.Peer = Peer{e.IP2, uint16(e.Bits)}
	case ipset.HashIPPortIP:
		k.Peer = peerClient(e.IP2)
	}
	return k
}

// emitPrefix emits entries that cover a prefix: ipsets accept no prefix length 0.
func emitPrefix(k Key, p netip.Prefix, emit func(Key, Value)) {
	if p.Bits() > 0 {
		k.Peer = peerNetwork(p)
		emit(k, Value{})
		return
	}
	halves := [...][2]string{model.IPv4: {"0.0.0.0/1", "128.0.0.0/1"}, model.IPv6: {"::/1", "8000::/1"}}
	for _, half := range halves[model.FamilyOf(p.Addr())] {
		emitPrefix(k, netip.MustParsePrefix(half), emit)
	}
}
