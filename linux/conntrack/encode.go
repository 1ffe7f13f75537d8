// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"
	"net/netip"

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
	if f.mask != 0 { // Linux 5.16; others send all
		w.Uint32(ctaStatus, f.status)
		w.Uint32(ctaStatusMask, f.mask)
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
	w.NestEnd(tuple)
	if f.Zone != 0 {
		w.Uint16(ctaZone, f.Zone)
	}
}

func (s side) writeAddr(w *netlink.Writer, a netip.Addr) {
	if a.Is4() {
		w.Bytes(s.ipv4, a.AsSlice())
	} else {
		w.Bytes(s.ipv6, a.AsSlice())
	}
}
