package conformance

import "net/netip"

// NodeName is the node under test.
const NodeName = "node-1"

// DefaultNodeFile is the name of DefaultNode in the folder.
const DefaultNodeFile = "node-1.yaml"

// DefaultNode is the Node of every scenario that does not bring its own.
const DefaultNode = `apiVersion: v1
kind: Node
metadata:
  name: node-1
  labels:
    kubernetes.io/hostname: node-1
    topology.kubernetes.io/zone: zone-a
spec:
  podCIDR: 10.244.1.0/24
  podCIDRs:
  - 10.244.1.0/24
  - fd00:10:244:1::/64
status:
  addresses:
  - type: InternalIP
    address: 192.0.2.1
  - type: InternalIP
    address: 2001:db8::1
  - type: Hostname
    address: node-1
`

// Place is where in the little world an address lives.
type Place uint8

// The places.
const (
	AtNode   Place = iota // on the node under test: its own addresses and loopback
	AtPod                 // a pod of this node
	AtOthers              // node-2, node-3 and their pods
	Outside               // any other machine
)

// String returns a short name for people.
func (p Place) String() string { return [...]string{"node", "pod", "others", "outside"}[p] }

// PlaceOf tells where an address lives.
func PlaceOf(a netip.Addr) Place {
	const (
		self   = "192.0.2.1/32 2001:db8::1/128 127.0.0.0/8 ::1/128"
		pods   = "10.244.1.0/24 fd00:10:244:1::/64"
		others = "10.244.0.0/16 fd00:10:244::/56 192.0.2.2/31 2001:db8::2/127"
	)
	switch {
	case within(self, a):
		return AtNode
	case within(pods, a):
		return AtPod
	case within(others, a):
		return AtOthers
	}
	return Outside
}

// address returns what a word in the from column stands for, in the family of
// the other end.
func address(word string, v4 bool) (netip.Addr, bool) {
	known := map[string][2]string{
		"pod":        {"10.244.1.10", "fd00:10:244:1::10"},
		"host":       {"192.0.2.1", "2001:db8::1"},
		"outside":    {"192.0.2.100", "2001:db8::100"},
		"remote-pod": {"10.244.2.10", "fd00:10:244:2::10"},
	}
	pair, ok := known[word]
	if !ok {
		return netip.Addr{}, false
	}
	if v4 {
		return netip.MustParseAddr(pair[0]), true
	}
	return netip.MustParseAddr(pair[1]), true
}
