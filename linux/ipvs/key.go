package ipvs

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Kind is a kind of object.
type Kind uint8

// The kinds.
const (
	KindLink    Kind = iota // kube-ipvs0
	KindRule                // claimed packets look into RouteTable first
	KindSet                 // an ipset
	KindChain               // a chain of iptables with its rules
	KindJump                // the jump to a chain
	KindServer              // a virtual server
	KindDest                // a destination (real server) of a virtual server
	KindEntry               // an entry of an ipset
	KindAddress             // an address on kube-ipvs0
	KindRoute               // RouteTable: packets for an address are delivered here
)

// together groups kinds that are written at once; 0 is written alone.
func together(k Kind) int {
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
	Bits   uint8          // entry with a source range: the prefix length of To
	Mark   uint32         // orphan; rule for another mark than today's
	At     netip.AddrPort // server, destination, entry, address, route; of servers by mark, the lowest front that leads there
	To     netip.AddrPort // destination: the endpoint; entry: its second address
}

// String describes the object for people.
func (k Key) String() string {
	switch k.Kind {
	case KindLink:
		return "link " + Link
	case KindRule:
		return k.Family.String() + " routing rule"
	case KindRoute:
		return "local route to " + k.At.Addr().String()
	case KindSet:
		return "ipset " + k.Set.Name(k.Family)
	case KindChain:
		return k.Family.String() + " chain " + k.Chain.String()
	case KindJump:
		return k.Family.String() + " jump to " + k.Chain.String()
	case KindAddress:
		return "address " + k.At.Addr().String() + " on " + Link
	case KindEntry:
		return "entry " + k.Set.Name(k.Family) + " " + k.entryText()
	case KindDest:
		return fmt.Sprintf("destination %s of virtual server %s", k.To, k.server())
	}
	return "virtual server " + k.server()
}

func (k Key) server() string {
	if k.Via == ByAddress {
		return k.Proto.String() + " " + k.At.String()
	}
	if k.Via == Orphan {
		return fmt.Sprintf("by mark %#x", k.Mark)
	}
	return fmt.Sprintf("%s %s (by mark %d)", k.Proto, k.At, k.Via)
}

// orphan is a virtual server of ours by a mark that no entry gives. It may be from
// a time when the user had chosen another bit of the mark: all of the mark is its
// name.
func orphan(f model.Family, mark uint32) Key {
	return Key{Kind: KindServer, Family: f, Via: Orphan, Mark: mark}
}

// serverOf returns the virtual server of a destination.
func (k Key) serverOf() Key {
	k.Kind, k.To = KindServer, netip.AddrPort{}
	return k
}

func compareKeys(a, b Key) int {
	return cmp.Or(
		cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Family, b.Family), cmp.Compare(a.Set, b.Set),
		cmp.Compare(a.Chain, b.Chain), a.At.Compare(b.At), cmp.Compare(a.Proto, b.Proto),
		cmp.Compare(a.Via, b.Via), a.To.Compare(b.To), cmp.Compare(a.Bits, b.Bits), cmp.Compare(a.Mark, b.Mark),
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

// entryText is an entry as ipset writes it.
func (k Key) entryText() string {
	port := fmt.Sprintf("%s:%d", k.Proto, k.At.Port())
	switch k.Set.kind() {
	case hashIP:
		return k.At.Addr().String()
	case bitmapPort:
		return fmt.Sprint(k.At.Port())
	case hashIPPortIP:
		return fmt.Sprintf("%s,%s,%s", k.At.Addr(), port, k.To.Addr())
	case hashIPPortNet:
		return fmt.Sprintf("%s,%s,%s/%d", k.At.Addr(), port, k.To.Addr(), k.Bits)
	case hashNet:
		return fmt.Sprintf("%s/%d", k.To.Addr(), k.Bits)
	}
	return fmt.Sprintf("%s,%s", k.At.Addr(), port)
}
