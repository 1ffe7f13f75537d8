// SPDX-License-Identifier: Apache-2.0

package ipset

import (
	"encoding/binary"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// decode reads a part of a listing: the definition is in the first one of each
// set only.
func decode(m netlink.Message, s *Set, entries []Entry) []Entry {
	for kind, v := range m.Attrs() {
		switch kind {
		case attrName:
			s.Name = netlink.Text(v)
		case attrType:
			s.Type = netlink.Text(v)
		case attrFamily:
			if len(v) == 1 && v[0] == netlink.FamilyOf(model.IPv6) {
				s.Family = model.IPv6
			}
		case attrData:
			decodeDefinition(v, s)
		case attrADT:
			for _, e := range netlink.Attrs(v) {
				entries = append(entries, decodeEntry(e))
			}
		}
	}
	return entries
}

func decodeDefinition(b []byte, s *Set) {
	for kind, v := range netlink.Attrs(b) {
		switch {
		case kind == dataMaxElems && len(v) == 4:
			s.MaxEntries = binary.BigEndian.Uint32(v)
		case kind == dataFlags && len(v) == 4:
			s.Marks = binary.BigEndian.Uint32(v)&flagMarks != 0
		}
	}
}

func decodeEntry(b []byte) (e Entry) {
	for kind, v := range netlink.Attrs(b) {
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
	for _, v := range netlink.Attrs(b) {
		a, _ = netip.AddrFromSlice(v)
	}
	return a
}
