// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/ipset"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Kind is a kind of object.
type Kind uint8

// The kinds.
const (
	KindLink    Kind = iota // kube-ipvs0
	KindRule                // service packets look into RouteTable first
	KindSet                 // an ipset
	KindChain               // a chain of iptables with its rules
	KindJump                // the jump to a chain
	KindServer              // a virtual server
	KindDest                // a destination (real server) of a virtual server
	KindEntry               // an entry of an ipset
	KindAddress             // an address on kube-ipvs0
	KindRoute               // RouteTable: packets for an address are delivered here
)

// batchKind groups kinds that are written at once; 0 is written alone.
func batchKind(k Kind) int {
	switch k {
	case KindEntry:
		return 1
	case KindChain, KindJump:
		return 2
	}
	return 0
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
	Dst    netip.AddrPort // server, destination, entry, address, route: what packets are sent to, see dstAddr and dstPort; of servers by mark, the lowest frontend that leads there
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

func (p Peer) compare(q Peer) int { return cmp.Or(p.addr.Compare(q.addr), cmp.Compare(p.n, q.n)) }

// String describes the object for people.
func (k Key) String() string {
	switch k.Kind {
	case KindLink:
		return "link " + Link
	case KindRule:
		return k.Family.String() + " routing rule"
	case KindRoute:
		return "local route to " + k.Dst.Addr().String()
	case KindSet:
		return "ipset " + k.Set.Name(k.Family)
	case KindChain:
		return k.Family.String() + " chain " + k.Chain.String()
	case KindJump:
		return k.Family.String() + " jump to " + k.Chain.String()
	case KindAddress:
		return "address " + k.Dst.Addr().String() + " on " + Link
	case KindEntry:
		return "entry " + k.Set.Name(k.Family) + " " + k.entryText()
	case KindDest:
		return fmt.Sprintf("destination %s of virtual server %s", k.Peer.endpoint(), k.server())
	}
	return "virtual server " + k.server()
}

func (k Key) server() string {
	if k.Via == ByAddress {
		return k.Proto.String() + " " + k.Dst.String()
	}
	if k.Via == Orphan {
		return fmt.Sprintf("by mark %#x", k.Mark)
	}
	return fmt.Sprintf("%s %s (by mark %d)", k.Proto, k.Dst, k.Via)
}

// orphan is a virtual server of ours by a mark that no entry gives. It may be from
// a time when the user had chosen another bit of the mark: all of the mark is its
// name.
func orphan(f model.Family, mark uint32) Key {
	return Key{Kind: KindServer, Family: f, Via: Orphan, Mark: mark}
}

// serverOf returns the virtual server of a destination.
func (k Key) serverOf() Key {
	k.Kind, k.Peer = KindServer, Peer{}
	return k
}

func compareKeys(a, b Key) int {
	return cmp.Or(
		cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Family, b.Family), cmp.Compare(a.Set, b.Set),
		cmp.Compare(a.Chain, b.Chain), a.Dst.Compare(b.Dst), cmp.Compare(a.Proto, b.Proto),
		cmp.Compare(a.Via, b.Via), a.Peer.compare(b.Peer), cmp.Compare(a.Mark, b.Mark),
	)
}

// Value is the content of an object.
type Value struct {
	Mark Mark // entry of a set with marks

	// Server is the virtual server by mark that an entry leads to, as far as an
	// entry does not say it itself: its address and way. The driver chooses the
	// number.
	Server netip.AddrPort
	Via    Via

	Timeout   uint32 // server: seconds for which clients stay with their destination; 0 for not at all
	Flags     uint32 // server: of the scheduler
	Scheduler string

	Rules xtables.Rules // chain; jump: all of it, as it is printed, where it is there more than once

	OldOnly bool // jump: not for the first packets of connections, while we leave (Drain)

	// Source is what the host's own packets to an address on kube-ipvs0 come
	// from, where that was diverted; else it is the zero Addr.
	Source netip.Addr
}

// Via says how packets get to a virtual server.
type Via uint8

// The ways. Virtual servers are found by address, or by the mark of a packet
// where the action depends on its origin.
const (
	ByAddress  Via = iota
	ByMark         // marked, endpoints see the client
	ByMarkSNAT     // marked, endpoints see the node
	Orphan         // found in the kernel with a mark that no entry of ours sets, now
)

// Mark is what an entry of a set does to the mark of a packet: the bits of Mask
// become those of Value. It is the finished action of a frontend.
type Mark struct{ Value, Mask uint32 }

// String returns the mark as ipset writes it.
func (m Mark) String() string { return fmt.Sprintf("0x%x/0x%x", m.Value, m.Mask) }

// entryText is an entry as ipset writes it.
func (k Key) entryText() string {
	port := fmt.Sprintf("%s:%d", k.Proto, k.Dst.Port())
	switch k.Set.kind() {
	case hashIP:
		return k.Dst.Addr().String()
	case bitmapPort:
		return fmt.Sprint(k.Dst.Port())
	case hashIPPortIP:
		return fmt.Sprintf("%s,%s,%s", k.Dst.Addr(), port, k.Peer.addr)
	case hashIPPortNet:
		return fmt.Sprintf("%s,%s,%s", k.Dst.Addr(), port, k.Peer.network())
	case hashNet:
		return k.Peer.network().String()
	}
	return fmt.Sprintf("%s,%s", k.Dst.Addr(), port)
}

// definition is what a set of ours is like in the kernel. kube-proxy's sets of
// the same names differ.
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
	k.Kind = KindEntry
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
