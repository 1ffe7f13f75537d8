// SPDX-License-Identifier: Apache-2.0

package ipset

import (
	"encoding/binary"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// Commands.
const (
	cmdCreate  = 2
	cmdDestroy = 3
	cmdSwap    = 6
	cmdList    = 7
	cmdAdd     = 9
	cmdDel     = 10
)

// Attributes of messages.
const (
	attrProtocol = 1
	attrName     = 2
	attrType     = 3 // the second set's name in a swap
	attrRevision = 4
	attrFamily   = 5
	attrData     = 7
	attrADT      = 8
)

// Attributes of definitions and entries.
const (
	dataIP       = 1
	dataBits     = 3
	dataPort     = 4
	dataPortTo   = 5
	dataProto    = 7
	dataFlags    = 8
	dataMaxElems = 19
	dataIP2      = 20
	dataBits2    = 21
	dataMark     = 27
)

const (
	protocol  = 6
	subsystem = 6      // NFNL_SUBSYS_IPSET
	flagMarks = 1 << 6 // of dataFlags: IPSET_FLAG_WITH_SKBINFO
)

// messageType is the type of a netlink message for a command.
func messageType(cmd byte) uint16 { return subsystem<<8 | uint16(cmd) }

// writer writes the attributes of messages.
type writer struct{ *netlink.Writer }

// number and port write attributes flagged as network byte order.
func (w writer) number(kind uint16, n uint32) { w.Uint32(kind|netlink.NetworkOrder, n) }

func (w writer) port(kind, n uint16) { w.Uint16(kind|netlink.NetworkOrder, n) }

func (w writer) addr(kind uint16, a netip.Addr) {
	at := w.Nest(kind)
	w.Bytes(1+uint16(model.FamilyOf(a))|netlink.NetworkOrder, a.AsSlice())
	w.NestEnd(at)
}

// familyOf is the address family of a set on the wire.
func (s Set) familyOf() byte {
	if s.Type == BitmapPort {
		return 0
	}
	return netlink.FamilyOf(s.Family)
}

func (w writer) create(s Set) {
	w.names(s.Name)
	w.Text(attrType, s.Type)
	w.Uint8(attrRevision, revision(s.Type))
	w.Uint8(attrFamily, s.familyOf())
	at := w.Nest(attrData)
	if s.Type == BitmapPort {
		w.port(dataPort, 0)
		w.port(dataPortTo, 65535)
	} else {
		w.number(dataMaxElems, s.MaxEntries)
	}
	if s.Marks {
		w.number(dataFlags, flagMarks)
	}
	w.NestEnd(at)
}

// names writes what every message begins with: which sets it is about.
func (w writer) names(names ...string) {
	w.Uint8(attrProtocol, protocol)
	for i, name := range names {
		w.Text(attrName+uint16(i), name)
	}
}

// add adds the request for a change to a batch.
func (c Change) add(b *netlink.Batch) {
	cmd := byte(cmdAdd)
	if c.Delete {
		cmd = cmdDel
	}
	w := writer{b.Begin(messageType(cmd), 0, 0)}
	w.names(c.Set)
	at := w.Nest(attrData)
	w.entry(c)
	w.NestEnd(at)
	w.End()
}

func (w writer) entry(c Change) {
	e := c.Entry
	if e.IP.IsValid() {
		w.addr(dataIP, e.IP)
	}
	if c.Net {
		w.Uint8(dataBits, e.Bits)
	}
	if e.Port != 0 {
		w.port(dataPort, e.Port)
	}
	if e.Proto != 0 {
		w.Uint8(dataProto, byte(e.Proto))
	}
	if e.IP2.IsValid() {
		w.addr(dataIP2, e.IP2)
		if e.Bits != 0 && !c.Net {
			w.Uint8(dataBits2, e.Bits)
		}
	}
	if e.MarkMask != 0 && !c.Delete {
		w.Uint64(dataMark|netlink.NetworkOrder, uint64(e.Mark)<<32|uint64(e.MarkMask))
	}
}

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
