// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// Owner is the prefix of the comments of all of Tandem's tables.
const Owner = "Kubernetes Services, kept by Tandem"

// Table is a table of one name in each of the families ip and ip6, with the sets
// and maps that it may have.
type Table struct {
	Name string

	// Owner is the prefix of the table's comment in all layout versions. A table of that
	// name without it is foreign: it is neither adopted nor changed.
	Owner string

	// Comment is visible to users and has the layout version. An owned table with another
	// comment is re-created, so the version must change when the meaning of a set, a
	// map or a rule does.
	Comment string

	sets  []*Set
	named map[string]*Set
	flags uint32 // NFT_TABLE_F_*
	leads Leads
}

// Leads returns the elements that a chain looks up for a packet that an element of a verdict
// map sends to it: elements of set with the same address, protocol and port, and with n numbers
// from first on; n is 0 for other chains. By them very large sets can be read by their
// keys.
type Leads func(chain string) (set *Set, first uint16, n int)

// Lead sets leads and returns the table. In NewTable, verdict maps come before the sets that
// they lead to.
func (t *Table) Lead(leads Leads) *Table {
	t.leads = leads
	return t
}

// NewTable returns a table with sets, in the order of listings. A Set belongs to one Table.
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

// digest returns a hash of a rule, which is stored with the rule in the kernel and compared
// when it is read: the kernel does not return rules byte for byte as written.
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
	Number // a number that a rule generates, of at most 16 bits

	// Only for rules' lookups: the original addresses, the protocol and the kernel's number of the
	// packet's connection, and hashes of the client and of Saddr.
	CtSaddr
	CtDaddr
	CtProto
	CtID
	hash1
	hash2
)

// Data is the type of a map's data.
type Data uint8

const (
	NoData       Data = iota // a set
	DataVerdict              // goto a chain, or drop
	DataEndpoint             // address . port
	DataAddress
)

var (
	endpointFields = []Field{Daddr, Dport}
	addressFields  = []Field{Daddr}
)

// Set is the definition of a set or map of one Table, identified by its pointer. It is not
// changed once it is in a Table.
type Set struct {
	Name     string
	Key      []Field
	Data     Data
	Interval bool    // the last field is a range of addresses
	Size     int     // capacity of a set that rules fill, with timeouts; 0 for sets that the driver fills
	Unread   bool    // elements added by rules are not read back
	Loads    []Field // the fields that rules look up, if other than Key

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

// ranges reports whether a range is the only field of the set's keys.
func (s *Set) ranges() bool { return s.Interval && len(s.Key) == 1 }

// rangeBehind reports whether the set's keys have a range after other fields.
func (s *Set) rangeBehind() bool { return s.Interval && len(s.Key) > 1 }

// hashed reports whether the set's keys have hashes instead of addresses: for IPv6, since
// nft 1.0.6 aborts on rules that update a map with more than 16 bytes of key in several
// fields. Two hashes of 32 bits make collisions practically impossible.
func (s *Set) hashed(f model.Family) bool { return f == model.IPv6 && s.Dynamic() && len(s.Key) > 1 }

// hashedFields are the fields that the hashes in a key are of.
var hashedFields = []Field{CtSaddr, Saddr}

// hashValues is the modulus of hashes, the largest that nft accepts.
const hashValues = 1<<32 - 1

// stored returns the fields of a set's key as the kernel keeps it.
func (s *Set) stored(f model.Family) []Field {
	if s.hashed(f) {
		return []Field{Number, Number, L4Proto}
	}
	return s.Key
}

// loaded returns the fields that rules look up in the set.
func (s *Set) loaded(f model.Family) []Field {
	switch {
	case s.hashed(f):
		return []Field{hash1, hash2, L4Proto}
	case s.Loads != nil:
		return s.Loads
	}
	return s.Key
}

// shape is a set's definition as the kernel keeps it. It cannot be changed while the set
// exists.
type shape struct {
	flags, keyType, keyLen, dataType, dataLen, size uint32
}

// Flags of sets (enum nft_set_flags).
const (
	setInterval = 0x4
	setMap      = 0x8
	setTimeout  = 0x10
	setEval     = 0x20
	setConcat   = 0x80
)

// dataVerdict is the data type of verdicts (NFT_DATA_VERDICT).
const dataVerdict = 0xffffff00

// nft's numbers of data types (enum datatypes), which the kernel keeps uninterpreted.
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

// keyType returns nft's number of a concatenation of types, six bits for each.
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

// fieldLen returns the length of a field in bytes, without padding.
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

// keyLen returns the length of a key in bytes. In a key of several fields each is padded to
// a multiple of four.
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
	// To and Port are the data of an element of DataEndpoint or DataAddress.
	To   [16]byte
	Port uint16
	// Body is the rest of an object's content; nil for elements of sets, and for endpoints without
	// counter and comment. It is not changed once it is in a Value.
	Body *Body
}

// Body is an object's content except an endpoint.
type Body struct {
	Comment string  // of tables and of elements
	Verdict Verdict // of elements of verdict maps
	Goto    string  // the chain of VerdictGoto
	Set     shape   // of sets
	Chain   *Chain  // of chains

	// Counter is the counter of a map's element: its initial count, or the count that was read;
	// nil for none. Values that differ only in the count are equal.
	Counter *Count
}

// Verdict is the verdict of an element of a verdict map.
type Verdict uint8

const (
	NoVerdict Verdict = iota
	VerdictGoto
	VerdictDrop
	verdictOther // a verdict that Tandem never writes
)

// Chain is the content of a chain.
type Chain struct {
	Hook  Hook // zero for chains without a hook
	Rules []Rule
	// Digest is a hash of Hook and Rules. Of rules only it is read back.
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

// PolicyAccept is the policy accept (NF_ACCEPT).
const PolicyAccept = 1

// NATHook returns the hook of a NAT chain: with the priority of destination NAT
// (NF_IP_PRI_NAT_DST), also in output, or in postrouting that of source NAT
// (NF_IP_PRI_NAT_SRC).
func NATHook(p Point) Hook {
	priority := int32(-100)
	if p == PostRouting {
		priority = 100
	}
	return Hook{Type: "nat", Point: p, Priority: priority, Policy: PolicyAccept}
}

// EndpointValue is the value of an element of DataEndpoint.
func EndpointValue(to netip.AddrPort) Value {
	return Value{To: packed(to.Addr()), Port: to.Port()}
}

// AddressValue is the value of an element of DataAddress.
func AddressValue(a netip.Addr) Value { return Value{To: packed(a)} }

// GotoValue is the value of an element of a verdict map that goes to a chain.
func GotoValue(chain, comment string) Value {
	return Value{Body: &Body{Verdict: VerdictGoto, Goto: chain, Comment: comment}}
}

// DropValue is the value of an element of a verdict map that drops.
func DropValue(comment string) Value {
	return Value{Body: &Body{Verdict: VerdictDrop, Comment: comment}}
}

// Endpoint returns the address and port of an element; the port is 0 for DataAddress.
func (v Value) Endpoint(f model.Family) netip.AddrPort {
	return netip.AddrPortFrom(unpacked(f, v.To), v.Port)
}

// Equal reports whether two values of one key are the same in the kernel and in listings,
// counts aside.
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
