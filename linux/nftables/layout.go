package nftables

import (
	"slices"
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
const tableComment = tableOwner + " (layout 1)"

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
	L4                      // protocols with ports
	VIPs                    // front -> what to do
	VIPsPod                 // the same for senders whose answer is not the common one
	VIPsHost
	Slots     // front . number -> endpoint
	NodePorts // node ports have no address of their own
	NodePortsPod
	NodePortsHost
	NodeSlots

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
	slot
	flowProto // l4proto, as a rule reads it from the tracked connection
)

// data is what a map gives for a key.
type data uint8

const (
	nothing  data = iota // a set, no map
	verdict              // goto a chain, or drop
	endpoint             // address . port
)

// Set is the definition of a set or map.
type Set struct {
	key      []field
	data     data
	interval bool // the last field is a range
	clients  bool // filled by a rule: addresses that are forgotten after a time
}

// The fields of keys. An address always comes first, so that all keys of a
// family are alike.
var (
	frontKey = []field{daddr, l4proto, dport}
	nodeKey  = []field{l4proto, dport}
)

var sets = [numSets]struct {
	name string
	Set
}{
	ClusterIPs:        {"cluster-ips", Set{key: []field{daddr}}},
	Guarded:           {"guarded", Set{key: frontKey}},
	Allowed:           {"allowed", Set{key: []field{daddr, l4proto, dport, saddr}, interval: true}},
	Hairpin:           {"hairpin", Set{key: []field{saddr, daddr}}},
	NodePortAddresses: {"nodeport-addresses", Set{key: []field{daddr}, interval: true}},
	ServiceCIDRs:      {"service-cidrs", Set{key: []field{daddr}, interval: true}},
	L4:                {"l4", Set{key: []field{l4proto}}},
	VIPs:              {"vips", Set{key: frontKey, data: verdict}},
	VIPsPod:           {"vips-pod", Set{key: frontKey, data: verdict}},
	VIPsHost:          {"vips-host", Set{key: frontKey, data: verdict}},
	Slots:             {"slots", Set{key: []field{daddr, l4proto, dport, slot}, data: endpoint}},
	NodePorts:         {"nodeports", Set{key: nodeKey, data: verdict}},
	NodePortsPod:      {"nodeports-pod", Set{key: nodeKey, data: verdict}},
	NodePortsHost:     {"nodeports-host", Set{key: nodeKey, data: verdict}},
	NodeSlots:         {"nodeslots", Set{key: []field{l4proto, dport, slot}, data: endpoint}},
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

// lookup is the key as a rule reads it from a packet. For keys with ranges nft
// turns each field to the byte order of the network, l4proto with an expression
// that Linux 6.12 refuses for a single byte; the protocol of a connection is in
// that order. Packets of no connection meet no chain of ours that looks up ranges.
func (s SetID) lookup() []field {
	key := sets[s].key
	if i := slices.Index(key, l4proto); i >= 0 && sets[s].interval {
		key = slices.Clone(key)
		key[i] = flowProto
	}
	return key
}

// ranges reports whether elements of the set are ranges and nothing else.
func (s SetID) ranges() bool { return s < numSets && sets[s].interval && len(sets[s].key) == 1 }

// clientSet is the definition of the sets that remember clients (ClientIP
// affinity). How long they remember is said by the rule that adds them, so that
// another timeout needs no other set.
var clientSet = Set{key: []field{saddr}, clients: true}

// clientSetSize is how many clients a set remembers; it is what nft gives to
// dynamic sets that name no size.
const clientSetSize = 65535

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
	chainFilterForward  = "filter-forward" // only where ranges of cluster IPs are known
	chainFilterOutput   = "filter-output"
	chainNodePrerouting = "nodeports-prerouting"
	chainNodeOutput     = "nodeports-output"
	chainNoService      = "no-service"
	chainRefuse         = "refuse"
	chainMasquerading   = "masquerading"
)

// addressFamily is the family's number on the wire (AF_INET, AF_INET6), the
// same on every Linux.
func addressFamily(f model.Family) byte {
	if f == model.IPv4 {
		return 2
	}
	return 10
}

func addressLen(f model.Family) int { return f.Bits() / 8 }
