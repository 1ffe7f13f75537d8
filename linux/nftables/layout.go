package nftables

import (
	"strconv"

	"github.com/tandem-proxy/tandem/core/model"
)

// Table is the name of our tables, one of family ip and one of family ip6.
const Table = "tandem"

// tableOwner is what the comments of all our tables begin with, whatever their
// layout. A table of our name without it is somebody else's: it is neither read
// as ours nor written to.
const tableOwner = "Kubernetes Services, kept by Tandem"

// tableComment is seen by people and tells the layout's version. A table of ours
// with another one is made anew, so the number must change whenever the meaning
// of a set, a map or a rule does.
const tableComment = tableOwner + " (layout 2)"

// SetID is one of the sets and maps that there are.
type SetID uint8

// The sets and maps. The userspace mode keeps tables of its own with some of them
// (linux/userspace).
const (
	noSet             SetID = iota
	ClusterIPs              // cluster IPs, which may have fronts of other kinds, too: their other ports are refused
	Guarded                 // fronts with source ranges
	Allowed                 // a guarded front and a range that may use it
	Hairpin                 // endpoints of this node, twice: connections back to their sender
	NodePortAddresses       // where node ports answer
	ServiceCIDRs            // where cluster IPs are, and nothing else
	EndpointPorts           // protocols and ports from which endpoints answer
	L4                      // protocols with ports
	VIPs                    // front -> what to do
	VIPsPod                 // the same for senders whose answer is not the common one
	VIPsHost
	Slots     // front . number -> endpoint
	NodePorts // node ports have no address of their own
	NodePortsPod
	NodePortsHost
	NodeSlots

	// Of ports with ClientIP affinity (affinity.go).
	AffinityPorts     // front -> what the port is known by in Affinity
	AffinityNodePorts // node ports have no address of their own
	AffinitySlots     // front . number -> an endpoint's handle
	AffinityNodeSlots
	AffinityEndpoints // front . handle -> endpoint, of the front's first pool
	AffinityEndpointsSecond
	AffinityNodeEndpoints
	AffinityNodeEndpointsSecond
	Affinity     // client . port -> the handle of the endpoint that it had last
	AffinityFull // protocols whose clients found no room in Affinity of late

	// Of the userspace mode's tables alone: front -> relay, by who sends.
	PortalsPod
	PortalsContainer
	PortalsHost
	NodePortPod // node ports have no address of their own
	NodePortContainer
	NodePortHost
	numSets
)

// ownSets is where those of our own tables end.
const ownSets = PortalsPod

// field is one part of a key.
type field uint8

const (
	daddr field = iota
	saddr
	l4proto
	dport
	sport
	slot

	// What rules look up only: the addresses that a packet came with, hashes of its
	// client and of the port (see affinity.go), and the protocol of its connection.
	client
	frontAddr
	hash1
	hash2
	flowProto
)

// data is what a map gives for a key.
type data uint8

const (
	nothing  data = iota // a set, no map
	verdict              // goto a chain, or drop
	endpoint             // address . port
	address
)

// Set is the definition of a set or map.
type Set struct {
	key      []field
	data     data
	interval bool    // the last field is a range
	size     int     // at most as many elements, which rules put there for a time; 0: they are ours
	loads    []field // what a rule looks up where that is not what the key's fields are in the packet
}

// The fields of keys. An address always comes first, so that all keys of a
// family are alike.
var (
	frontKey    = []field{daddr, l4proto, dport}
	nodeKey     = []field{l4proto, dport}
	slotKey     = append(frontKey[:3:3], slot)
	nodeSlotKey = append(nodeKey[:2:2], slot)

	// A rule for affinity changes addresses of the packet before it looks them up.
	cameFor        = []field{frontAddr, l4proto, dport}
	handleKey      = append(frontKey[:3:3], saddr)
	nodeHandleKey  = []field{saddr, l4proto, dport}
	nodeHandleLoad = []field{daddr, l4proto, dport}
)

// rangeLoad is what a rule looks up in a key with ranges. nft turns each field of
// such a key to the byte order of the network, l4proto with an expression that
// Linux 6.12 refuses for a single byte; the protocol of a connection is in that
// order. Packets of no connection meet no chain of ours that looks up ranges.
var rangeLoad = []field{daddr, flowProto, dport, saddr}

var sets = [numSets]struct {
	name string
	Set
}{
	ClusterIPs:        {"cluster-ips", Set{key: []field{daddr}}},
	Guarded:           {"guarded", Set{key: frontKey}},
	Allowed:           {"allowed", Set{key: []field{daddr, l4proto, dport, saddr}, interval: true, loads: rangeLoad}},
	Hairpin:           {"hairpin", Set{key: []field{saddr, daddr}}},
	NodePortAddresses: {"nodeport-addresses", Set{key: []field{daddr}, interval: true}},
	ServiceCIDRs:      {"service-cidrs", Set{key: []field{daddr}, interval: true}},
	EndpointPorts:     {"endpoint-ports", Set{key: []field{l4proto, sport}}},
	L4:                {"l4", Set{key: []field{l4proto}}},
	VIPs:              {"vips", Set{key: frontKey, data: verdict}},
	VIPsPod:           {"vips-pod", Set{key: frontKey, data: verdict}},
	VIPsHost:          {"vips-host", Set{key: frontKey, data: verdict}},
	Slots:             {"slots", Set{key: slotKey, data: endpoint}},
	NodePorts:         {"nodeports", Set{key: nodeKey, data: verdict}},
	NodePortsPod:      {"nodeports-pod", Set{key: nodeKey, data: verdict}},
	NodePortsHost:     {"nodeports-host", Set{key: nodeKey, data: verdict}},
	NodeSlots:         {"nodeslots", Set{key: nodeSlotKey, data: endpoint}},

	AffinityPorts:               {"affinity-ports", Set{key: frontKey, data: address, loads: cameFor}},
	AffinityNodePorts:           {"affinity-nodeports", Set{key: nodeKey, data: address}},
	AffinitySlots:               {"affinity-slots", Set{key: slotKey, data: address, loads: append(cameFor[:3:3], slot)}},
	AffinityNodeSlots:           {"affinity-nodeslots", Set{key: nodeSlotKey, data: address}},
	AffinityEndpoints:           {"affinity-endpoints", Set{key: handleKey, data: endpoint, loads: append(cameFor[:3:3], daddr)}},
	AffinityEndpointsSecond:     {"affinity-endpoints-second", Set{key: handleKey, data: endpoint, loads: append(cameFor[:3:3], daddr)}},
	AffinityNodeEndpoints:       {"affinity-nodeendpoints", Set{key: nodeHandleKey, data: endpoint, loads: nodeHandleLoad}},
	AffinityNodeEndpointsSecond: {"affinity-nodeendpoints-second", Set{key: nodeHandleKey, data: endpoint, loads: nodeHandleLoad}},
	Affinity:                    {"affinity", Set{key: []field{saddr, daddr, l4proto}, data: address, size: affinitySize, loads: []field{client, saddr, l4proto}}},
	AffinityFull:                {"affinity-full", Set{key: []field{l4proto}, size: 8}},

	PortalsPod:        {"portals-pod", Set{key: frontKey, data: endpoint}},
	PortalsContainer:  {"portals-container", Set{key: frontKey, data: endpoint}},
	PortalsHost:       {"portals-host", Set{key: frontKey, data: endpoint}},
	NodePortPod:       {"nodeport-pod", Set{key: nodeKey, data: endpoint}},
	NodePortContainer: {"nodeport-container", Set{key: nodeKey, data: endpoint}},
	NodePortHost:      {"nodeport-host", Set{key: nodeKey, data: endpoint}},
}

// String returns the name of the set as nft lists it.
func (s SetID) String() string {
	if s < numSets {
		return sets[s].name
	}
	return "set " + strconv.Itoa(int(s))
}

// ranges reports whether elements of the set are ranges and nothing else.
func (s SetID) ranges() bool { return s < numSets && sets[s].interval && len(sets[s].key) == 1 }

// ruled reports whether rules fill the set, and not we. Such a set is there only
// as long as a port needs it.
func (s SetID) ruled() bool { return s < numSets && sets[s].size > 0 }

// stored are the fields of a set's key as the kernel keeps it. nft 1.0.6 aborts
// where a rule updates a map with more than 16 bytes of key in several fields:
// for IPv6 Affinity has hashes of the addresses (64 bits together, so that two
// clients are as good as never taken for one).
func (s Set) stored(f model.Family) []field {
	if f == model.IPv6 && s.size > 0 && len(s.key) > 1 {
		return []field{slot, slot, l4proto}
	}
	return s.key
}

// loaded are the fields that a rule looks up in the set.
func (s Set) loaded(f model.Family) []field {
	switch {
	case f == model.IPv6 && s.size > 0 && len(s.key) > 1:
		return []field{hash1, hash2, l4proto}
	case s.loads != nil:
		return s.loads
	}
	return s.key
}

// A map has room for two pools of a front: the second one's slots start here.
const bankSize = 1 << 15

// setNamed finds one of our sets by its name.
func setNamed(name string) SetID {
	for id := noSet + 1; id < numSets; id++ {
		if sets[id].name == name {
			return id
		}
	}
	return noSet
}

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
	chainRefuse         = "refuse"
	chainMasquerading   = "masquerading"
)

func addressLen(f model.Family) int { return f.Bits() / 8 }
