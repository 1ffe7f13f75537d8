// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/hex"
	"hash/fnv"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// Location is where in the test network an address is.
type Location uint8

// The senders' locations.
const (
	AtNode   Location = iota // on the node under test: its own addresses and loopback
	AtPod                    // a pod of this node
	AtOthers                 // node-2, node-3 and their pods
	Outside                  // any other machine
)

// String returns a short name for people.
func (p Location) String() string { return [...]string{"node", "pod", "others", "outside"}[p] }

// LocationOf returns where an address is.
func LocationOf(a netip.Addr) Location {
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

// Uplink is the interface by which the node reaches the world.
const Uplink = oracle.Uplink

// Oracle returns a row's packet as the node sees it: with its source address and
// the interface it comes in by.
func (s *Scenario) Oracle(host *model.Host, p Packet) oracle.Packet {
	o := oracle.Packet{Src: p.Src, Proto: p.Proto, Dst: p.To}
	if p.From == "host" && !p.To.Addr().IsLoopback() {
		o.Src = ownSource(host, p.Src)
	}
	switch {
	case p.From == "host" || slices.Contains(host.IPs, p.Src):
	case LocationOf(p.Src) == AtNode:
	case LocationOf(p.Src) == AtPod:
		o.Iface = Interface(s.Host, p.Src)
	default:
		o.Iface = Uplink
	}
	return o
}

// ownSource is the address that the node's own packets carry.
func ownSource(host *model.Host, usual netip.Addr) netip.Addr {
	if a, ok := host.Primary(model.FamilyOf(usual)); ok {
		return a
	}
	return usual
}

// Interface returns the name of the node's interface to one of its pods. Both
// addresses of the client `pod` share one, which bears the name the settings ask
// for; other pods have one for each address. No name is longer than Linux
// allows.
func Interface(c config.Config, pod netip.Addr) string {
	const longest = 15
	if client(pod) && c.DetectLocal == config.DetectBridgeInterface {
		return c.PodBridge
	}
	prefix := "pod"
	if c.DetectLocal == config.DetectInterfacePrefix {
		prefix = c.PodInterfacePrefix
	}
	if client(pod) {
		pod, _ = address("pod", true)
	}
	sum := fnv.New32a()
	sum.Write(pod.AsSlice())
	name := prefix + hex.EncodeToString(sum.Sum(nil))
	return name[:min(len(name), longest)]
}

// client reports whether an address is one of the client `pod`.
func client(a netip.Addr) bool {
	c, _ := address("pod", a.Is4())
	return a == c
}
