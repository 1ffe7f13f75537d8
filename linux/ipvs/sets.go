// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/ipset"
)

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
	SourceRanges    // a restricted frontend and a range that may use it
	loopBack        // endpoints of this node, twice: connections back to their sender
	virtualIPs      // the cluster IPs: their other ports are rejected
	nodePortRanges  // where node ports answer
	ServiceCIDRs    // where cluster IPs are, and nothing else
	healthCheckPort // healthCheckNodePorts
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
	nodePortTCP:     {"NODE-PORT-TCP", bitmapPort, true},
	nodePortUDP:     {"NODE-PORT-UDP", bitmapPort, true},
	nodePortSCTP:    {"NODE-PORT-SCTP-HASH", hashIPPort, true},
	Pods:            {"FROM-POD", hashIPPort, true},
	Host:            {"FROM-HOST", hashIPPort, true},
	Restricted:      {"LOAD-BALANCER-FW", hashIPPort, false},
	SourceRanges:    {"LOAD-BALANCER-SOURCE-CIDR", hashIPPortNet, false},
	loopBack:        {"LOOP-BACK", hashIPPortIP, false},
	virtualIPs:      {"IPVS-IPS", hashIP, false},
	nodePortRanges:  {"NODE-PORT-ADDRESSES", hashNet, false},
	ServiceCIDRs:    {"SERVICE-CIDR", hashNet, false},
	healthCheckPort: {"HEALTH-CHECK-NODE-PORT", bitmapPort, false},
}

func (s SetID) kind() setKind { return setTable[s].kind }

func (s SetID) marks() bool { return setTable[s].marks }

// maxSetName is what the kernel takes (IPSET_MAXNAMELEN without its zero).
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

// entryText is an entry as ipset writes it.
func (k Key) entryText() string { return entryOf(k).Text(k.Set.kind().String()) }

// definition is the definition of an owned set. kube-proxy's sets of the same names
// differ.
func definition(k Key) ipset.Set {
	s := ipset.Set{Name: k.Set.Name(k.Family), Type: k.Set.kind().String(), Family: k.Family, Marks: k.Set.marks()}
	if k.Set.kind() == bitmapPort {
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
	case hashNet:
		return ipset.Entry{IP: k.Peer.addr, Bits: uint8(k.Peer.n)}
	case hashIPPortNet:
		e.IP2, e.Bits = k.Peer.addr, uint8(k.Peer.n)
	case hashIPPortIP:
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
	case hashNet:
		k.Dst, k.Proto, k.Peer = netip.AddrPort{}, 0, Peer{e.IP, uint16(e.Bits)}
	case hashIPPortNet:
		k.Peer = Peer{e.IP2, uint16(e.Bits)}
	case hashIPPortIP:
		k.Peer = peerClient(e.IP2)
	}
	return k
}

// emitPrefix emits entries that cover a prefix: ipsets have none of length 0.
func emitPrefix(k Key, p netip.Prefix, emit func(Key, Value)) {
	if p.Bits() > 0 {
		k.Peer = peerNetwork(p)
		emit(k, Value{})
		return
	}
	for _, half := range halves(model.FamilyOf(p.Addr())) {
		emitPrefix(k, half, emit)
	}
}

func halves(f model.Family) [2]netip.Prefix {
	if f == model.IPv4 {
		return [2]netip.Prefix{netip.MustParsePrefix("0.0.0.0/1"), netip.MustParsePrefix("128.0.0.0/1")}
	}
	return [2]netip.Prefix{netip.MustParsePrefix("::/1"), netip.MustParsePrefix("8000::/1")}
}
