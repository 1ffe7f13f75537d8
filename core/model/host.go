// SPDX-License-Identifier: Apache-2.0

package model

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
)

// Host describes the machine to policy and data planes: the Node
// object and the configuration, merged by resolve.Host. It changes rarely, and
// when it does everything that depends on it is planned again.
type Host struct {
	Name, Zone    string
	IPs           []netip.Addr // this node's own addresses, primary first in each family
	Pods          PodMatch
	PodCIDRs      []netip.Prefix // of the Node object: whether only pods of this node have addresses there is the CNI plug-in's affair
	NodePorts     NodePortMatch
	MasqueradeAll bool

	// ServiceCIDRs are ranges that have cluster IPs and nothing else in them. A packet
	// to one of their addresses that no Service has is dropped, whatever sends
	// it: forwarded, it could loop between routers. Canonical, and
	// empty where no range is known.
	ServiceCIDRs []netip.Prefix

	Guard Guard // what Services must leave alone; only core/resolve looks at it

	// Salt is that of the Machine: a data plane that makes numbers of names or addresses mixes it in,
	// so that nobody can choose an address whose number is that of another's.
	Salt uint64
}

// Number is a hash of something of a kind, with the Salt.
func (h *Host) Number(kind string, what []byte) [sha256.Size]byte {
	var text [128]byte
	b := binary.BigEndian.AppendUint64(text[:0], h.Salt)
	return sha256.Sum256(append(append(b, kind...), what...))
}

// Guard is what core/resolve protects from Services: addresses that are
// another program's. Its lists are sorted and have nothing twice.
type Guard struct {
	NodeIPs        []netip.Addr     // this node's addresses: Host.IPs and those the system has
	FixedIPs       []netip.Addr     // those of NodeIPs that have a subnet: others, a /32 or /128 of kube-vip say, may move to another node
	Broadcasts     []netip.Addr     // of the IPv4 networks that this node is in
	APIServers     []netip.AddrPort // as they are connected to, and the endpoints of default/kubernetes
	Pods           []netip.Prefix   // ranges that have pods and nothing else in them
	ProtectedPorts []uint16         // TCP ports of this node's own programs: no node port and no load balancer IP on FixedIPs may use them
	Reserved       bool             // addresses of 240.0.0.0/4 are in use in this cluster

	Allowed     []netip.Prefix // external IPs that are allowed whatever else they are
	AllowedOnly bool           // and no others are

	// Listeners are those of this node's own addresses and ports that Services ask for and on which a
	// process listens; nil is unknown. Equal leaves it out.
	Listeners *Listeners
}

// Equal reports whether two guards protect the same.
func (g *Guard) Equal(o *Guard) bool {
	return slices.Equal(g.NodeIPs, o.NodeIPs) && slices.Equal(g.FixedIPs, o.FixedIPs) && slices.Equal(g.Broadcasts, o.Broadcasts) && slices.Equal(g.APIServers, o.APIServers) &&
		slices.Equal(g.Pods, o.Pods) && slices.Equal(g.ProtectedPorts, o.ProtectedPorts) && g.Reserved == o.Reserved &&
		slices.Equal(g.Allowed, o.Allowed) && g.AllowedOnly == o.AllowedOnly
}

// SamePolicy reports whether two hosts that have the SamePorts differ in nothing
// but their zone that decides about the addresses of Services.
func (h *Host) SamePolicy(o *Host) bool {
	return h.Guard.Equal(&o.Guard) && slices.Equal(h.ServiceCIDRs, o.ServiceCIDRs)
}

// SameDataPlane reports whether a data plane compiles the same for two hosts: their zone
// and their Guard matter to policy alone.
func (h *Host) SameDataPlane(o *Host) bool {
	return h.SamePorts(o) && slices.Equal(h.ServiceCIDRs, o.ServiceCIDRs)
}

// SamePorts reports whether two hosts differ in nothing that matters to a port
// that has been resolved: what policy alone looks at may differ, and so may
// ServiceCIDRs.
func (h *Host) SamePorts(o *Host) bool {
	return h.Name == o.Name && h.Salt == o.Salt && h.MasqueradeAll == o.MasqueradeAll && slices.Equal(h.IPs, o.IPs) && slices.Equal(h.PodCIDRs, o.PodCIDRs) &&
		h.Pods.Interface == o.Pods.Interface && h.Pods.Prefix == o.Pods.Prefix && slices.Equal(h.Pods.CIDRs, o.Pods.CIDRs) &&
		h.NodePorts.Loopback == o.NodePorts.Loopback && h.NodePorts.LoopbackTCPOnly == o.NodePorts.LoopbackTCPOnly && slices.Equal(h.NodePorts.Prefixes, o.NodePorts.Prefixes)
}

// Primary returns the node's main address of a family; ok is false when it is
// not known.
func (h *Host) Primary(f Family) (addr netip.Addr, ok bool) {
	for _, a := range h.IPs {
		if FamilyOf(a) == f {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// NeedsHairpinSNAT reports whether connections from the endpoint to itself need SNAT on this
// host, whatever the Action says: else the endpoint would answer itself directly, with its
// own address instead of the Service's. An endpoint with an address of this host
// answers through it in any case.
func (h *Host) NeedsHairpinSNAT(e Endpoint) bool {
	return e.MayHairpin() && !slices.Contains(h.IPs, e.Addr.Addr())
}

// PodMatch recognises packets of this node's pods ("detect local").
// At most one of its fields is set; the zero value knows no pods.
type PodMatch struct {
	CIDRs     []netip.Prefix // source addresses; at most one a family
	Interface string         // the bridge that local pods are attached to
	Prefix    string         // the start of the names of the pods' interfaces
}

// Known reports whether pods of family f can be recognised.
func (m PodMatch) Known(f Family) bool {
	if m.Interface != "" || m.Prefix != "" {
		return true
	}
	return slices.ContainsFunc(m.CIDRs, func(p netip.Prefix) bool { return FamilyOf(p.Addr()) == f })
}

// Match reports whether a packet is from a local pod, given its source address
// and the interface it came in by (empty for packets of the host itself).
func (m PodMatch) Match(src netip.Addr, iface string) bool {
	switch {
	case m.Interface != "":
		return iface == m.Interface
	case m.Prefix != "":
		return iface != "" && strings.HasPrefix(iface, m.Prefix)
	}
	return Contains(m.CIDRs, src)
}

// NodePortMatch states on which of the host's own addresses NodePorts answer: the
// local ones inside Prefixes. A family without a prefix has none. Of loopback
// addresses 127.0.0.1 and ::1 answer, only where Loopback is set for the family, and only in modes that
// can; no others, as relays listen on one address each.
type NodePortMatch struct {
	Prefixes []netip.Prefix
	Loopback [2]bool // by family
	// LoopbackTCPOnly is kube-proxy's nftables mode: without a listener the kernel rejects others.
	LoopbackTCPOnly bool
}

// OnLoopback reports whether they answer on any loopback address.
func (m NodePortMatch) OnLoopback() bool { return m.Loopback != [2]bool{} }

// Answers reports whether node ports of a protocol answer on a, which must be one of the host's
// own addresses.
func (m NodePortMatch) Answers(a netip.Addr, proto Proto) bool {
	return m.Contains(a) && !(m.LoopbackTCPOnly && proto != TCP && a.IsLoopback())
}

// Contains reports whether NodePorts answer on a, which must be one of the
// host's own addresses.
func (m NodePortMatch) Contains(a netip.Addr) bool {
	if a.IsLoopback() && (!m.Loopback[FamilyOf(a)] || a != FamilyOf(a).Loopback()) {
		return false
	}
	return Contains(m.Prefixes, a)
}
