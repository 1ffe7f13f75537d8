// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"encoding/binary"
	"iter"
)

// Flags in the type of an attribute.
const (
	nested       = 0x8000 // NLA_F_NESTED
	NetworkOrder = 0x4000 // NLA_F_NET_BYTEORDER
)

const attrHeaderLen = 4

// Attr is one attribute.
type Attr struct {
	Type  uint16 // without flags
	Value []byte
	Whole []byte // with header and padding, as it was sent
}

// CutAttr returns the first attribute of b and the bytes after it; ok is false if b
// is empty or does not begin with an attribute.
func CutAttr(b []byte) (a Attr, rest []byte, ok bool) {
	size := attrSize(b)
	if size == 0 {
		return a, nil, false
	}
	end := min(align(size), len(b))
	return Attr{Type: attrType(b), Value: b[attrHeaderLen:size], Whole: b[:end]}, b[end:], true
}

// Attrs ranges over attributes: their types without flags, and their values. It stops
// at the first malformed one; callers check that they found all they need.
func Attrs(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for {
			size := attrSize(b)
			if size == 0 || !yield(attrType(b), b[attrHeaderLen:size]) {
				return
			}
			b = b[min(align(size), len(b)):]
		}
	}
}

// attrSize is the size of the attribute that b begins with, its padding left out; 0
// if b does not begin with an attribute.
func attrSize(b []byte) int {
	if len(b) < attrHeaderLen {
		return 0
	}
	size := int(binary.NativeEndian.Uint16(b))
	if size < attrHeaderLen || size > len(b) {
		return 0
	}
	return size
}

func attrType(b []byte) uint16 {
	return binary.NativeEndian.Uint16(b[2:]) &^ (nested | NetworkOrder)
}

// Uint32 reads a number in network order; 0 if it is not four bytes.
func Uint32(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// Text reads a string up to the zero byte at its end.
func Text(b []byte) string { return string(TextBytes(b)) }

// TextBytes is Text without a copy.
func TextBytes(b []byte) []byte {
	if n := len(b); n > 0 && b[n-1] == 0 {
		return b[:n-1]
	}
	return b
}

// align rounds up to the alignment of messages and attributes.
func align(n int) int { return (n + 3) &^ 3 }
