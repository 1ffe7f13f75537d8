// SPDX-License-Identifier: Apache-2.0

package nft

import "github.com/tandem-proxy/tandem/core/model"

// Field is one part of a set's key.
type Field uint8

// The fields of keys.
const (
	Daddr Field = iota
	Saddr
	L4Proto
	Dport
	Sport
	Number // any number that a rule makes, 16 bits of it

	// Only for rules' lookups: the original addresses and the protocol of the
	// packet's connection, and hashes of the client and of Saddr.
	CtSaddr
	CtDaddr
	CtProto
	hash1
	hash2
)

// Data is what a map gives for a key.
type Data uint8

// The data of maps.
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

// hashModulus keeps as many bits of a hash as nft can express.
const hashModulus = 1<<32 - 1

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
	case Number, hash1, hash2:
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
