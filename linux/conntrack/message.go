// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/suspect"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// The numbers of linux/netfilter/nfnetlink_conntrack.h. They are spelled out because
// x/sys/unix has few of them, and none on other systems.
const (
	msgNew    = 0x100 // NFNL_SUBSYS_CTNETLINK << 8, IPCTNL_MSG_CT_NEW
	msgGet    = 0x101
	msgDelete = 0x102
	msgStats  = 0x105 // IPCTNL_MSG_CT_GET_STATS

	ctaStatsEntries = 1 // CTA_STATS_GLOBAL_ENTRIES

	ctaTupleOrig                                        = 1
	ctaTupleReply                                       = 2
	ctaStatus                                           = 3
	ctaCountersOrig, ctaCountersReply, ctaCountersBytes = 9, 10, 2

	ctaID         = 12
	ctaZone       = 18
	ctaFilter     = 25
	ctaStatusMask = 26

	seenReply = 1 << 1 // IPS_SEEN_REPLY
	dstNAT    = 1 << 5 // IPS_DST_NAT

	ctaTupleIP    = 1
	ctaTupleProto = 2
	ctaTupleZone  = 3
	ctaIPv4Src    = 1 // the destination follows; IPv6 comes after both
	ctaIPv6Src    = 3
	ctaProtoNum   = 1
	ctaProtoSrc   = 2
	ctaProtoDst   = 3

	ctaFilterOrig  = 1
	ctaFilterReply = 2

	// What a filter compares: the kernel's CTA_FILTER_F_*, which are the bits of
	// an undocumented but fixed interface, also used by libnetfilter_conntrack.
	onIPSrc    = 1 << 0
	onIPDst    = 1 << 1
	onProtoNum = 1 << 3
	onPortSrc  = 1 << 4
	onPortDst  = 1 << 5
)

// side is one half of a direction: the source or the destination.
type side struct {
	ipv4, ipv6, port uint16 // attributes
	onIP, onPort     uint32 // filter flags
}

// write writes the attributes that limit a dump to entries matching the filter.
func (f filter) write(w *netlink.Writer) {
	if f.unanswered { // Linux 5.16; others send all
		w.Uint32(ctaStatus, 0)
		w.Uint32(ctaStatusMask, seenReply)
	}
	if f.proto == 0 || f.both {
		return
	}
	src := side{ctaIPv4Src, ctaIPv6Src, ctaProtoSrc, onIPSrc, onPortSrc}
	dst := side{ctaIPv4Src + 1, ctaIPv6Src + 1, ctaProtoDst, onIPDst, onPortDst}
	orig, reply := writeTuple(w, ctaTupleOrig, dst, f.proto, f.dst), uint32(0)
	if f.from != (netip.AddrPort{}) {
		reply = writeTuple(w, ctaTupleReply, src, f.proto, f.from)
	}
	at := w.Nest(ctaFilter)
	w.Bytes(ctaFilterOrig, binary.NativeEndian.AppendUint32(nil, orig))
	w.Bytes(ctaFilterReply, binary.NativeEndian.AppendUint32(nil, reply))
	w.NestEnd(at)
}

// writeTuple writes one half of a tuple for a filter to compare, and returns the
// flags that state what it holds.
func writeTuple(w *netlink.Writer, attr uint16, s side, proto model.Proto, at netip.AddrPort) (flags uint32) {
	flags = onProtoNum
	tuple := w.Nest(attr)
	if at.Addr().IsValid() {
		flags |= s.onIP
		ip := w.Nest(ctaTupleIP)
		s.writeAddr(w, at.Addr())
		w.NestEnd(ip)
	}
	protocol := w.Nest(ctaTupleProto)
	w.Uint8(ctaProtoNum, uint8(proto))
	if at.Port() != 0 {
		flags |= s.onPort
		w.Uint16(s.port, at.Port())
	}
	w.NestEnd(protocol)
	w.NestEnd(tuple)
	return flags
}

// writeFlow writes the attributes by which a request looks up a flow: what its client has sent.
func writeFlow(w *netlink.Writer, f suspect.Flow) {
	tuple := w.Nest(ctaTupleOrig)
	ip := w.Nest(ctaTupleIP)
	side{ipv4: ctaIPv4Src, ipv6: ctaIPv6Src}.writeAddr(w, f.Client.Addr())
	side{ipv4: ctaIPv4Src + 1, ipv6: ctaIPv6Src + 1}.writeAddr(w, f.Frontend.Addr())
	w.NestEnd(ip)
	protocol := w.Nest(ctaTupleProto)
	w.Uint8(ctaProtoNum, uint8(model.TCP))
	w.Uint16(ctaProtoSrc, f.Client.Port())
	w.Uint16(ctaProtoDst, f.Frontend.Port())
	w.NestEnd(protocol)
	if f.Zone != 0 { // which a rule may give to one direction alone: as that of the tuple it is found in either case
		w.Uint16(ctaTupleZone, f.Zone)
	}
	w.NestEnd(tuple)
}

func (s side) writeAddr(w *netlink.Writer, a netip.Addr) {
	if a.Is4() {
		w.Bytes(s.ipv4, a.AsSlice())
	} else {
		w.Bytes(s.ipv6, a.AsSlice())
	}
}

// entry is one tracked flow. Its attributes are whole, headers included, as the
// kernel sent them; they share memory with the message.
type entry struct {
	flow            flows.Flow
	client          netip.AddrPort
	status          uint32
	origZone        uint16 // that of the original direction; 0 is the default one
	bytes           uint64 // in both directions; 0 where they are not counted
	reply, zone, id []byte // zone is empty where not both directions have the same, other than the default one
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
	e.client, e.origZone = o.src, o.zone
	if len(e.zone) > 0 {
		e.origZone = zoneNumber(e.zone[4:])
	}
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

// number is that of the id.
func (e *entry) number() uint32 { return netlink.Uint32(e.id[len(e.id)-4:]) }

func zoneNumber(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

// tuple is one direction of a flow.
type tuple struct {
	proto    model.Proto
	src, dst netip.AddrPort
	zone     uint16 // of this direction alone
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
		case ctaTupleZone:
			t.zone = zoneNumber(a.Value)
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
