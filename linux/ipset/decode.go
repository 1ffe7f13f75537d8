package ipset

import (
	"encoding/binary"
	"errors"
	"iter"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

var errShort = errors.New("a message of the kernel is cut off")

// message is a netlink message.
type message struct {
	kind, flags uint16
	seq         uint32
	body        []byte
}

// messages cuts what was read into messages.
func messages(b []byte) iter.Seq2[message, error] {
	return func(yield func(message, error) bool) {
		for len(b) >= 16 {
			n := int(binary.NativeEndian.Uint32(b))
			if n < 16 || n > len(b) {
				yield(message{}, errShort)
				return
			}
			m := message{
				kind: binary.NativeEndian.Uint16(b[4:]), flags: binary.NativeEndian.Uint16(b[6:]),
				seq: binary.NativeEndian.Uint32(b[8:]), body: b[16:n],
			}
			if !yield(m, nil) {
				return
			}
			b = b[min((n+3)&^3, len(b)):]
		}
	}
}

// attrs ranges over attributes, without their flags. What is cut off ends it.
func attrs(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= 4 {
			n := int(binary.NativeEndian.Uint16(b))
			if n < 4 || n > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[2:])&^(nested|networkOrder), b[4:n]) {
				return
			}
			b = b[min((n+3)&^3, len(b)):]
		}
	}
}

// decode reads a part of a listing: the definition is in the first one of each
// set only.
func decode(body []byte, s *Set, entries []Entry) []Entry {
	if len(body) < 4 {
		return entries
	}
	for kind, v := range attrs(body[4:]) {
		switch kind {
		case attrName:
			s.Name = text(v)
		case attrType:
			s.Type = text(v)
		case attrFamily:
			if len(v) == 1 && v[0] == familyNumber(model.IPv6) {
				s.Family = model.IPv6
			}
		case attrData:
			decodeDefinition(v, s)
		case attrADT:
			for _, e := range attrs(v) {
				entries = append(entries, decodeEntry(e))
			}
		}
	}
	return entries
}

func decodeDefinition(b []byte, s *Set) {
	for kind, v := range attrs(b) {
		switch {
		case kind == dataMaxElems && len(v) == 4:
			s.MaxEntries = binary.BigEndian.Uint32(v)
		case kind == dataFlags && len(v) == 4:
			s.Marks = binary.BigEndian.Uint32(v)&flagMarks != 0
		}
	}
}

func decodeEntry(b []byte) (e Entry) {
	for kind, v := range attrs(b) {
		switch {
		case kind == dataIP:
			e.IP = decodeAddr(v)
		case kind == dataIP2:
			e.IP2 = decodeAddr(v)
		case (kind == dataBits || kind == dataBits2) && len(v) == 1:
			e.Bits = v[0]
		case kind == dataPort && len(v) == 2:
			e.Port = binary.BigEndian.Uint16(v)
		case kind == dataProto && len(v) == 1:
			e.Proto = model.Proto(v[0])
		case kind == dataMark && len(v) == 8:
			e.Mark, e.MarkMask = binary.BigEndian.Uint32(v), binary.BigEndian.Uint32(v[4:])
		}
	}
	return e
}

func decodeAddr(b []byte) (a netip.Addr) {
	for _, v := range attrs(b) {
		a, _ = netip.AddrFromSlice(v)
	}
	return a
}

func text(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}
