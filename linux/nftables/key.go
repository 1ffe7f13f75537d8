package nftables

import (
	"fmt"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// Kind is the kind of an object.
type Kind uint8

// The kinds of object.
const (
	KindTable   Kind = iota
	KindSet          // the definition of a set or map, named Rest
	KindChain        // a chain with its rules, named Rest
	KindElement      // an element of a set or map
	KindAlien        // an element that we cannot have written; Rest is its raw key
)

// Key names an object. It is small because there is one for every endpoint of
// every front: 40 bytes, without pointers to anything but shared memory for the
// common kinds.
type Key struct {
	Kind   Kind
	Family model.Family
	Set    SetID // of elements
	Proto  model.Proto
	Port   uint16
	Slot   uint16
	Addr   [16]byte // in the first 4 bytes for IPv4

	// Rest is the name of a set or chain. Of an element it is what the other
	// fields do not hold: the first and last address of a range, or a second
	// address that is not the first one again.
	Rest string
}

// Value is the content of an object.
type Value struct {
	// To and Port are the endpoint that an element of slots gives.
	To   [16]byte
	Port uint16
	// Body is all that other objects have; nil for elements of slots and of
	// plain sets. It is never changed once it is in a Value.
	Body *Body
}

// Body is the content of an object that is no endpoint.
type Body struct {
	Comment string  // of tables and of elements
	Verdict Verdict // of elements of verdict maps
	Goto    string  // the chain it goes to
	Set     shape   // of sets
	Chain   *Chain  // of chains
}

// Verdict is the answer of an element of a verdict map.
type Verdict uint8

// The verdicts.
const (
	noVerdict Verdict = iota
	VerdictGoto
	VerdictDrop
	verdictOther // nothing that we write
)

// Chain is the content of a chain.
type Chain struct {
	Hook  Hook // zero for chains that are only gone to
	Rules []Rule
	// Digest stands for all of the above. It is what can be read back.
	Digest uint64
}

// Hook attaches a chain to the path of packets.
type Hook struct {
	Type     string // "nat" or "filter"; empty for no hook
	Point    Point
	Priority int32
	Policy   uint32
}

// Point is a place in the path of packets (NF_INET_PRE_ROUTING and so on).
type Point uint32

// The points that we use.
const (
	PreRouting  Point = 0
	Forward     Point = 2
	LocalOut    Point = 3
	PostRouting Point = 4
)

const policyAccept = 1

// tableKey names a table.
func tableKey(f model.Family) Key { return Key{Kind: KindTable, Family: f} }

func chainKey(f model.Family, name string) Key {
	return Key{Kind: KindChain, Family: f, Rest: name}
}

func setKey(f model.Family, name string) Key {
	return Key{Kind: KindSet, Family: f, Rest: name}
}

// frontElement names the element for a front in one of the maps of fronts.
func frontElement(set SetID, proto model.Proto, at netip.AddrPort) Key {
	return Key{Kind: KindElement, Family: model.FamilyOf(at.Addr()), Set: set, Proto: proto, Port: at.Port(), Addr: packed(at.Addr())}
}

// nodeElement names the element for a node port, or another port without address.
func nodeElement(set SetID, f model.Family, proto model.Proto, port uint16) Key {
	return Key{Kind: KindElement, Family: f, Set: set, Proto: proto, Port: port}
}

// addressElement names the element for an address alone.
func addressElement(set SetID, a netip.Addr) Key {
	return Key{Kind: KindElement, Family: model.FamilyOf(a), Set: set, Addr: packed(a)}
}

// packed returns the bytes of an address, IPv4 in the first four.
func packed(a netip.Addr) (b [16]byte) {
	if a.Is4() {
		v4 := a.As4()
		copy(b[:], v4[:])
		return b
	}
	return a.As16()
}

// unpacked is the reverse of packed.
func unpacked(f model.Family, b [16]byte) netip.Addr {
	if f == model.IPv4 {
		return netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.AddrFrom16(b)
}

// endpointValue is the value of an element of slots.
func endpointValue(to netip.AddrPort) Value {
	return Value{To: packed(to.Addr()), Port: to.Port()}
}

// addressValue is the value of an element that gives an address alone.
func addressValue(a netip.Addr) Value { return Value{To: packed(a)} }

func (v Value) endpoint(f model.Family) netip.AddrPort {
	return netip.AddrPortFrom(unpacked(f, v.To), v.Port)
}

// equal reports whether two values of one key are the same to the kernel and to
// who lists it.
func (v Value) equal(o Value) bool {
	if v.To != o.To || v.Port != o.Port {
		return false
	}
	if v.Body == o.Body {
		return true
	}
	return v.Body != nil && o.Body != nil && v.Body.equal(o.Body)
}

func (b *Body) equal(o *Body) bool {
	if b.Comment != o.Comment || b.Verdict != o.Verdict || b.Goto != o.Goto || b.Set != o.Set {
		return false
	}
	if b.Chain == nil || o.Chain == nil {
		return b.Chain == o.Chain
	}
	return b.Chain.Digest == o.Chain.Digest
}

// familyName is a family's name in nft.
func familyName(f model.Family) string {
	if f == model.IPv4 {
		return "ip"
	}
	return "ip6"
}

// String names the object for people, as one of our own tables.
func (k Key) String() string { return k.in(Table) }

// in names the object for people, for instance in errors, with its table's name.
func (k Key) in(table string) string {
	table = familyName(k.Family) + " " + table
	switch k.Kind {
	case KindTable:
		return "table " + table
	case KindSet:
		return "set " + table + " " + k.Rest
	case KindChain:
		return "chain " + table + " " + k.Rest
	case KindAlien:
		return fmt.Sprintf("foreign element %x of %s %s", k.Rest, table, k.Set)
	}
	return fmt.Sprintf("element { %s } of %s %s", k.elementText(), table, k.Set)
}
