// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// Value is the content of an object.
type Value struct {
	// To and Port are the endpoint that an element of slots gives.
	To   [16]byte
	Port uint16
	// Body is the content of all other objects; nil for elements of slots that do not
	// count, and of plain sets. It is never changed once it is in a Value.
	Body *Body
}

// Body is the content of an object that is no endpoint.
type Body struct {
	Comment string  // of tables and of elements
	Verdict Verdict // of elements of verdict maps
	Goto    string  // the chain it goes to
	Set     shape   // of sets
	Chain   *Chain  // of chains

	// Counter is that of an element of a map: where it begins, or has come to when it was
	// read; nil for none. Values that differ in its count alone are equal.
	Counter *Count
}

// Verdict is the answer of an element of a verdict map.
type Verdict uint8

// The verdicts.
const (
	NoVerdict Verdict = iota
	VerdictGoto
	VerdictDrop
	verdictOther // a verdict that we never write
)

// Chain is the content of a chain.
type Chain struct {
	Hook  Hook // zero for chains without a hook
	Rules []Rule
	// Digest is a hash of all of the above. Only it is read back.
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

// PolicyAccept is the policy of a chain that lets packets pass.
const PolicyAccept = 1

// NATHook attaches a chain where addresses are rewritten: at the priority of
// destination NAT, -100, in output as well, or at that of source NAT.
func NATHook(p Point) Hook {
	priority := int32(-100)
	if p == PostRouting {
		priority = 100
	}
	return Hook{Type: "nat", Point: p, Priority: priority, Policy: PolicyAccept}
}

// EndpointValue is the value of an element that gives an address and port.
func EndpointValue(to netip.AddrPort) Value {
	return Value{To: packed(to.Addr()), Port: to.Port()}
}

// AddressValue is the value of an element that gives an address alone.
func AddressValue(a netip.Addr) Value { return Value{To: packed(a)} }

// GotoValue is the value of an element of a verdict map that goes to a chain.
func GotoValue(chain, comment string) Value {
	return Value{Body: &Body{Verdict: VerdictGoto, Goto: chain, Comment: comment}}
}

// DropValue is the value of an element of a verdict map that drops.
func DropValue(comment string) Value {
	return Value{Body: &Body{Verdict: VerdictDrop, Comment: comment}}
}

// Endpoint returns the address, and port if there is one, that an element gives.
func (v Value) Endpoint(f model.Family) netip.AddrPort {
	return netip.AddrPortFrom(unpacked(f, v.To), v.Port)
}

// Equal reports whether two values of one key are the same to the kernel and in
// listings.
func (v Value) Equal(o Value) bool {
	if v.To != o.To || v.Port != o.Port {
		return false
	}
	if v.Body == o.Body {
		return true
	}
	return v.Body != nil && o.Body != nil && v.Body.equal(o.Body)
}

func (b *Body) equal(o *Body) bool {
	if b.Comment != o.Comment || b.Verdict != o.Verdict || b.Goto != o.Goto || (b.Counter == nil) != (o.Counter == nil) || b.Set != o.Set {
		return false
	}
	if b.Chain == nil || o.Chain == nil {
		return b.Chain == o.Chain
	}
	return b.Chain.Digest == o.Chain.Digest
}

// attachment is a point in the path of packets of a family.
type attachment struct {
	model.Family
	Point
}
