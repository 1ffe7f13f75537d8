// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// entry is one tracked flow. Its attributes are whole, headers included, as the
// kernel sent them; they share memory with the message.
type entry struct {
	flow            flows.Flow
	client          netip.AddrPort
	status          uint32
	bytes           uint64 // in both directions; 0 where they are not counted
	reply, zone, id []byte // zone is empty for the default zone
}

// parseEntry reads the body of a message of type msgNew. It is an error if anything
// is missing that a delete request needs: without a tuple the kernel takes the
// request for a flush of the whole table. Entries of other families or protocols
// without ports are fine; they have a zero port.
func parseEntry(body []byte) (e entry, err error) {
	if len(body) < netlink.FamilyLen {
		return e, netlink.ErrMalformed
	}
	var orig, reply []byte
	for b := body[netlink.FamilyLen:]; len(b) > 0; {
		a, rest, ok := netlink.CutAttr(b)
		if !ok {
			return e, netlink.ErrMalformed
		}
		switch a.Type {
		case ctaTupleOrig:
			orig = a.Value
		case ctaTupleReply:
			reply, e.reply = a.Value, a.Whole
		case ctaStatus:
			e.status = netlink.Uint32(a.Value)
		case ctaZone:
			e.zone = a.Whole
		case ctaID:
			e.id = a.Whole
		case ctaCountersOrig, ctaCountersReply:
			e.bytes += parseBytes(a.Value)
		}
		b = rest
	}
	o, okOrig := parseTuple(orig)
	r, okReply := parseTuple(reply)
	aligned := (len(e.reply)|len(e.zone)|len(e.id))%4 == 0 // so that they can be concatenated
	if !okOrig || !okReply || len(e.id) == 0 || !aligned {
		return e, netlink.ErrMalformed
	}
	e.client = o.src
	e.flow = flows.Flow{Proto: o.proto, Dst: o.dst, From: r.src, Answered: e.status&seenReply != 0}
	return e, nil
}

// parseBytes returns the bytes of one direction.
func parseBytes(b []byte) uint64 {
	for kind, v := range netlink.Attrs(b) {
		if kind == ctaCountersBytes && len(v) == 8 {
			return binary.BigEndian.Uint64(v)
		}
	}
	return 0
}

// identify writes the attributes by which a delete request names exactly e. It uses
// the reply tuple: a flow that new rules have created in e's place has the same
// original tuple, and even the same id if it got e's memory, but its reply tuple has
// another endpoint.
func (e *entry) identify(w *netlink.Writer) {
	w.Buf = append(w.Buf, e.reply...)
	w.Buf = append(w.Buf, e.zone...)
	w.Buf = append(w.Buf, e.id...)
}

// clone returns an entry that shares no memory with the message.
func (e *entry) clone() entry {
	c := *e
	c.reply, c.zone, c.id = bytes.Clone(e.reply), bytes.Clone(e.zone), bytes.Clone(e.id)
	return c
}

// number is the number of an id, and zoneNumber that of a zone.
func (e *entry) number() uint32 { return netlink.Uint32(e.id[len(e.id)-4:]) }

func (e *entry) zoneNumber() uint16 {
	if len(e.zone) < 6 {
		return 0 // the default zone
	}
	return binary.BigEndian.Uint16(e.zone[4:])
}

// tuple is one direction of a flow.
type tuple struct {
	proto    model.Proto
	src, dst netip.AddrPort
}

func parseTuple(b []byte) (t tuple, ok bool) {
	var src, dst netip.Addr
	var srcPort, dstPort uint16
	for len(b) > 0 {
		a, rest, ok := netlink.CutAttr(b)
		if !ok {
			return t, false
		}
		switch a.Type {
		case ctaTupleIP:
			src, dst = parseAddrs(a.Value)
		case ctaTupleProto:
			t.proto, srcPort, dstPort = parseProto(a.Value)
		}
		b = rest
	}
	t.src, t.dst = netip.AddrPortFrom(src, srcPort), netip.AddrPortFrom(dst, dstPort)
	return t, t.src.IsValid() && t.dst.IsValid() && t.proto != 0
}

// parseAddrs returns the addresses that are well-formed, and invalid ones for
// the rest.
func parseAddrs(b []byte) (src, dst netip.Addr) {
	for typ, value := range netlink.Attrs(b) {
		a, _ := netip.AddrFromSlice(value)
		switch typ {
		case ctaIPv4Src, ctaIPv6Src:
			src = a
		case ctaIPv4Src + 1, ctaIPv6Src + 1:
			dst = a
		}
	}
	return src, dst
}

func parseProto(b []byte) (proto model.Proto, src, dst uint16) {
	for typ, value := range netlink.Attrs(b) {
		switch {
		case typ == ctaProtoNum && len(value) == 1:
			proto = model.Proto(value[0])
		case typ == ctaProtoSrc && len(value) == 2:
			src = binary.BigEndian.Uint16(value)
		case typ == ctaProtoDst && len(value) == 2:
			dst = binary.BigEndian.Uint16(value)
		}
	}
	return proto, src, dst
}
