// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// Owner is what the comments of all tables of Tandem begin with.
const Owner = "Kubernetes Services, kept by Tandem"

// Table is a table of one name in each of the families ip and ip6, with the sets
// and maps that it may have.
type Table struct {
	Name string

	// Owner is what the comment of the table begins with, whatever its version. A
	// table of that name without it is foreign: it is neither adopted nor written to.
	Owner string

	// Comment is visible to users and has the layout version. An owned table with
	// another one is re-created, so it must change whenever the meaning of a set, a
	// map or a rule does.
	Comment string

	sets  []*Set
	named map[string]*Set
	flags uint32 // NFT_TABLE_F_*
	leads Leads
}

// Leads states what a packet looks up in a chain that an element of a verdict map sends it
// to: elements of another set with the same address, protocol and port, and with n numbers
// from first on. N is 0 for chains that look up nothing like that. So elements that are
// there by the hundred thousand can be read by their keys.
type Leads func(chain string) (set *Set, first uint16, n int)

// Lead returns the table with leads. The sets that lead to one come before it.
func (t *Table) Lead(leads Leads) *Table {
	t.leads = leads
	return t
}

// NewTable returns a table with sets, which are listed in that order. A set is of
// one table.
func NewTable(name, owner, comment string, sets ...*Set) *Table {
	t := &Table{Name: name, Owner: owner, Comment: comment, sets: sets, named: map[string]*Set{}}
	for i, s := range sets {
		s.order = i
		t.named[s.Name] = s
	}
	return t
}

// Sets returns the sets, for reading only.
func (t *Table) Sets() []*Set { return t.sets }

// Object returns the table of a family.
func (t *Table) Object(f model.Family) (Key, Value) {
	return TableKey(f), Value{Body: &Body{Comment: t.Comment}}
}

// SetObject returns a set or a map, without elements.
func SetObject(f model.Family, s *Set) (Key, Value) {
	return SetKey(f, s.Name), Value{Body: &Body{Set: shapeOf(f, s)}}
}

// ChainObject returns a chain with its rules.
func (t *Table) ChainObject(f model.Family, name string, h Hook, rules []Rule) (Key, Value) {
	return ChainKey(f, name), Value{Body: &Body{Chain: t.newChain(f, h, rules)}}
}

func (t *Table) newChain(f model.Family, h Hook, rules []Rule) *Chain {
	digests := make([]uint64, len(rules))
	for i, r := range rules {
		digests[i] = t.digest(f, r)
	}
	return &Chain{Hook: h, Rules: rules, Digest: chainDigest(h, digests)}
}

// digest is a hash of a rule, stored with the rule in the kernel. It reports whether
// the rule is the one that we would write now: the kernel does not return a rule byte
// for byte as written.
func (t *Table) digest(f model.Family, r Rule) uint64 {
	return digestOf(t.Comment + "\n" + r.Text(f))
}

func chainDigest(h Hook, rules []uint64) uint64 {
	return digestOf(fmt.Sprintf("%+v %x", h, rules))
}

func digestOf(s string) uint64 {
	sum := sha256.Sum256([]byte(s))
	return binary.BigEndian.Uint64(sum[:])
}

// Field is one part of a set's key.
type Field uint8

const (
	Daddr Field = iota
	Saddr
	L4Proto
	Dport
	Sport
	Number // any number that a rule makes, 16 bits of it

	// Only for rules' lookups: the original addresses, the protocol and the kernel's number of the
	// packet's connection, and hashes of the client and of Saddr.
	CtSaddr
	CtDaddr
	CtProto
	CtID
	hash1
	hash2
)

// Data is what a map gives for a key.
type Data uint8

const (
	NoData       Data = iota // a set, no map
	DataVerdict              // goto a chain, or drop
	DataEndpoint             // address . port
	DataAddress
)

var (
	endpointFields = []Field{Daddr, Dport}
	addressFields  = []Field{Daddr}
)

// Set is the definition of a set or map: of one Table, and known by its address.
// It is never changed once it is in a Table.
type Set struct {
	Name     string
	Key      []Field
	Data     Data
	Interval bool    // the last field is a range of addresses
	Size     int     // capacity of a set that rules fill, with timeouts; 0: the driver fills it
	Unread   bool    // elements added by rules are not read back
	Loads    []Field // the fields that a rule looks up, if other than Key

	order int // among the sets of its table
}

// String returns the name of the set.
func (s *Set) String() string {
	if s == nil {
		return "no set"
	}
	return s.Name
}

// Dynamic reports whether rules fill the set, not the driver.
func (s *Set) Dynamic() bool { return s.Size > 0 }

// ranges reports whether elements of the set are ranges and nothing else.
func (s *Set) ranges() bool { return s.Interval && len(s.Key) == 1 }

// rangeBehind reports whether elements of the set are ranges behind other fields.
func (s *Set) rangeBehind() bool { return s.Interval && len(s.Key) > 1 }

// hashed reports whether addresses in the set's key are kept as hashes. nft 1.0.6
// aborts where a rule updates a map with more than 16 bytes of key in several fields:
// for IPv6 such a key has hashes of the addresses (64 bits together, so that
// collisions are practically impossible).
func (s *Set) hashed(f model.Family) bool { return f == model.IPv6 && s.Dynamic() && len(s.Key) > 1 }

// hashedFields are what a hash in a key is of.
var hashedFields = []Field{CtSaddr, Saddr}

// hashValues keeps as many bits of a hash as nft can express.
const hashValues = 1<<32 - 1

// stored are the fields of a set's key as the kernel keeps it.
func (s *Set) stored(f model.Family) []Field {
	if s.hashed(f) {
		return []Field{Number, Number, L4Proto}
	}
	return s.Key
}

// loaded are the fields that a rule looks up in the set.
func (s *Set) loaded(f model.Family) []Field {
	switch {
	case s.hashed(f):
		return []Field{hash1, hash2, L4Proto}
	case s.Loads != nil:
		return s.Loads
	}
	return s.Key
}

// shape is a set's definition as the kernel keeps it. None of it can be changed
// while the set exists.
type shape struct {
	flags, keyType, keyLen, dataType, dataLen, size uint32
}

// Flags of sets.
const (
	setInterval = 0x4
	setMap      = 0x8
	setTimeout  = 0x10
	setEval     = 0x20
	setConcat   = 0x80
)

// dataVerdict is the data type of verdicts (NFT_DATA_VERDICT).
const dataVerdict = 0xffffff00

// nft's numbers for the types of fields; the kernel only keeps them.
const (
	typeInteger = 4
	typeIP      = 7
	typeIP6     = 8
	typeProto   = 12
	typePort    = 13
)

// shapeOf returns the shape of a declared set.
func shapeOf(f model.Family, s *Set) shape {
	key := s.stored(f)
	sh := shape{keyType: keyType(f, key), keyLen: uint32(keyLen(f, key))}
	switch s.Data {
	case DataVerdict:
		sh.flags, sh.dataType, sh.dataLen = setMap, dataVerdict, 16
	case DataEndpoint:
		to := endpointFields
		sh.flags, sh.dataType, sh.dataLen = setMap, keyType(f, to), uint32(keyLen(f, to))
	case DataAddress:
		to := addressFields
		sh.flags, sh.dataType, sh.dataLen = setMap, keyType(f, to), uint32(keyLen(f, to))
	}
	if s.Interval {
		sh.flags |= setInterval
		if len(s.Key) > 1 {
			sh.flags |= setConcat
		}
	}
	if s.Size > 0 {
		sh.flags |= setTimeout | setEval
		sh.size = uint32(s.Size)
	}
	return sh
}

// keyType puts the types of the fields together, six bits for each.
func keyType(f model.Family, key []Field) (t uint32) {
	ip := uint32(typeIP)
	if f == model.IPv6 {
		ip = typeIP6
	}
	for _, k := range key {
		t = t<<6 | [...]uint32{Daddr: ip, Saddr: ip, L4Proto: typeProto, Dport: typePort, Sport: typePort, Number: typeInteger}[k]
	}
	return t
}

// fieldLen is the length of a field alone.
func fieldLen(f model.Family, k Field) int {
	switch k {
	case L4Proto, CtProto:
		return 1
	case Dport, Sport:
		return 2
	case Number, CtID, hash1, hash2:
		return 4
	}
	return addressLen(f)
}

// keyLen is the length of a key. In a key of several fields each takes a
// multiple of four bytes.
func keyLen(f model.Family, key []Field) (n int) {
	if len(key) == 1 {
		return fieldLen(f, key[0])
	}
	for _, k := range key {
		n += (fieldLen(f, k) + 3) &^ 3
	}
	return n
}

func addressLen(f model.Family) int { return f.Bits() / 8 }

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

// The points that Tandem uses.
const (
	PreRouting  Point = 0
	LocalIn     Point = 1
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
