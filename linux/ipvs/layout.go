// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Name is how --proxy-mode names this mode.
const Name config.Mode = "ipvs"

// Link is the dummy device that holds the cluster IPs, as in kube-proxy.
const Link = "kube-ipvs0"

// The rule that has service packets delivered here: frontends other than cluster IPs
// are on no device, so that all else about their addresses stays as the network
// has it. kube-proxy puts them on kube-ipvs0, and with that takes over all their
// ports and answers ARP for them. The table has each of those addresses and no
// others: a service packet that another proxy has translated goes its way.
const (
	RoutePriority = 99     // behind the table of local addresses, before all others
	RouteTable    = 254514 // local routes to external and load balancer IPs
)

// SetID is one of the ipsets that each family has.
type SetID uint8

// The sets, most with kube-proxy's names. Those with marks say what is done with
// a packet: see Mark.
const (
	noSet        SetID = iota
	ClusterIPs         // frontends, with marks
	ExternalIPs        // frontends, with marks
	LoadBalancer       // frontends, with marks
	NodePortTCP        // node ports, with marks
	NodePortUDP
	NodePortSCTP    // the same by address, since bitmaps of ports know no SCTP
	Pods            // frontends where this node's pods get another action than all others, with marks
	Host            // frontends where the host itself does, with marks
	Restricted      // frontends with source ranges
	SourceRanges    // a restricted frontend and a range that may use it
	LoopBack        // endpoints of this node, twice: connections back to their sender
	VirtualIPs      // the cluster IPs: their other ports are refused
	NodePortRanges  // where node ports answer
	ServiceCIDRs    // where cluster IPs are, and nothing else
	HealthCheckPort // healthCheckNodePorts
	numSets
)

// setKind is the data type of a set.
type setKind uint8

const (
	hashIPPort setKind = iota
	hashIPPortIP
	hashIPPortNet
	hashIP
	hashNet
	bitmapPort
)

var setTypes = [...]string{"hash:ip,port", "hash:ip,port,ip", "hash:ip,port,net", "hash:ip", "hash:net", "bitmap:port"}

func (k setKind) String() string { return setTypes[k] }

var setTable = [numSets]struct {
	name  string
	kind  setKind
	marks bool
}{
	ClusterIPs:      {"CLUSTER-IP", hashIPPort, true},
	ExternalIPs:     {"EXTERNAL-IP", hashIPPort, true},
	LoadBalancer:    {"LOAD-BALANCER", hashIPPort, true},
	NodePortTCP:     {"NODE-PORT-TCP", bitmapPort, true},
	NodePortUDP:     {"NODE-PORT-UDP", bitmapPort, true},
	NodePortSCTP:    {"NODE-PORT-SCTP-HASH", hashIPPort, true},
	Pods:            {"FROM-POD", hashIPPort, true},
	Host:            {"FROM-HOST", hashIPPort, true},
	Restricted:      {"LOAD-BALANCER-FW", hashIPPort, false},
	SourceRanges:    {"LOAD-BALANCER-SOURCE-CIDR", hashIPPortNet, false},
	LoopBack:        {"LOOP-BACK", hashIPPortIP, false},
	VirtualIPs:      {"IPVS-IPS", hashIP, false},
	NodePortRanges:  {"NODE-PORT-ADDRESSES", hashNet, false},
	ServiceCIDRs:    {"SERVICE-CIDR", hashNet, false},
	HealthCheckPort: {"HEALTH-CHECK-NODE-PORT", bitmapPort, false},
}

func (s SetID) kind() setKind { return setTable[s].kind }
func (s SetID) marks() bool   { return setTable[s].marks }

// maxSetName is what the kernel takes (IPSET_MAXNAMELEN without its zero).
const maxSetName = 31

// maxEntries is more than there ever are. It costs nothing: sets grow as they
// are filled. kube-proxy's are full at 65,536.
const maxEntries = 1 << 24

// Name returns the name of the set in a family.
func (s SetID) Name(f model.Family) string {
	name := "KUBE-" + setTable[s].name
	if f == model.IPv6 {
		name = "KUBE-6-" + setTable[s].name
	}
	return name[:min(len(name), maxSetName)]
}

// setNamed finds one of our sets by its name.
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

// ChainID is one of the chains of iptables that each family has.
type ChainID uint8

// The chains. Those that the iptables mode has in the same table have names of
// their own, so that one mode can work beside the other while a node changes over.
const (
	noChain    ChainID = iota
	mangleIn           // mark what is for a frontend: KUBE-SERVICES
	mangleOut          // the same for what the host sends
	manglePort         // node ports
	mangleLast         // clear marks behind IPVS
	natIn              // leave service packets to IPVS
	natOut
	natLast  // masquerade
	filterIn // reject
	filterOut
	filterPort
	filterForward
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

// ownerRule is the first rule of all our chains, which does nothing. A chain without it
// is not ours, whatever its name: kube-proxy uses the same.
func ownerRule() xtables.Rule { return xtables.Rule{Comment: "kept by Tandem (ipvs, layout 1)"} }

// classifies reports whether a chain decides what IPVS gets.
func (c ChainID) classifies() bool { return c == mangleIn || c == mangleOut }

// What connection tracking says of the first packets of connections, and of others.
var (
	isNew         = xtables.State{Any: "NEW"}
	isEstablished = xtables.State{Any: "NEW", Not: true}
)

// jumpRule is the rule that leads to a chain, for all packets or those of old
// connections only.
func (c ChainID) jumpRule(oldOnly bool) xtables.Rule {
	r := xtables.JumpTo(c.name())
	r.Comment = chainTable[c].comment
	if oldOnly {
		r = r.With(isEstablished)
	}
	return r
}
