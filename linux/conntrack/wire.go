package conntrack

import (
	"encoding/binary"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/model"
)

// The numbers of linux/netlink.h and linux/netfilter/nfnetlink_conntrack.h. They
// stand here because x/sys/unix has few of them, and none on other systems.
const (
	msgError   = 2
	msgDone    = 3
	msgNew     = 0x100 // NFNL_SUBSYS_CTNETLINK << 8, IPCTNL_MSG_CT_NEW
	msgGet     = 0x101
	msgDelete  = 0x102
	headerLen  = 16
	nfgenLen   = 4
	attrLen    = 4
	attrType   = 0x3fff // without the nested and byte order flags
	attrNested = 0x8000

	flagRequest     = 0x1
	flagAck         = 0x4
	flagInterrupted = 0x10
	flagDump        = 0x300

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaID         = 12
	ctaZone       = 18
	ctaFilter     = 25

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

var native = binary.NativeEndian // netlink's own headers; addresses and ports are big endian

// filter is a question to the kernel's table: which entries of one family have
// these properties? Zero fields are not compared, nor are the ports of protocols
// other than TCP and UDP.
type filter struct {
	family model.Family
	proto  model.Proto
	dst    netip.AddrPort // the original destination
	from   netip.AddrPort // the source of the answers
}

// askable returns what a filter may hold of an address and port. Unspecified
// addresses stand for all. IPv6 addresses must never be asked for: from 5.8 up to
// at least 6.18 the kernel has that comparison the wrong way round and sends the
// entries that differ.
func askable(at netip.AddrPort) netip.AddrPort {
	if at.Addr().IsUnspecified() || at.Addr().Is6() {
		return netip.AddrPortFrom(netip.Addr{}, at.Port())
	}
	return at
}

// fits reports whether a kernel that sees the filter may answer it with flow.
func (f *filter) fits(flow flows.Flow) bool {
	fits := func(want, is netip.AddrPort) bool {
		return (!want.Addr().IsValid() || want.Addr() == is.Addr()) &&
			(want.Port() == 0 || want.Port() == is.Port() || flow.Proto == model.SCTP)
	}
	return (f.proto == 0 || f.proto == flow.Proto) && fits(f.dst, flow.Dst) && fits(f.from, flow.From)
}

// side is one half of a direction: the source or the destination.
type side struct {
	ipv4, ipv6, port uint16 // attributes
	onIP, onPort     uint32 // filter flags
}

// appendDump appends a request for all entries that pass the filter.
func appendDump(b []byte, seq uint32, f filter) []byte {
	b, end := appendHeader(b, msgGet, flagRequest|flagDump, seq, f.family)
	if f.proto != 0 {
		src := side{ctaIPv4Src, ctaIPv6Src, ctaProtoSrc, onIPSrc, onPortSrc}
		dst := side{ctaIPv4Src + 1, ctaIPv6Src + 1, ctaProtoDst, onIPDst, onPortDst}
		var orig, reply uint32
		b, orig = appendTuple(b, ctaTupleOrig, dst, f.proto, f.dst)
		if f.from != (netip.AddrPort{}) {
			b, reply = appendTuple(b, ctaTupleReply, src, f.proto, f.from)
		}
		b = nest(b, ctaFilter, func(b []byte) []byte {
			b = appendAttr(b, ctaFilterOrig, native.AppendUint32(nil, orig)...)
			return appendAttr(b, ctaFilterReply, native.AppendUint32(nil, reply)...)
		})
	}
	return end(b)
}

// appendTuple appends one half of a tuple for a filter to compare, and returns
// the flags that say what it holds.
func appendTuple(b []byte, attr uint16, s side, proto model.Proto, at netip.AddrPort) ([]byte, uint32) {
	flags := uint32(onProtoNum)
	b = nest(b, attr, func(b []byte) []byte {
		if at.Addr().IsValid() {
			flags |= s.onIP
			b = nest(b, ctaTupleIP, func(b []byte) []byte { return s.appendAddr(b, at.Addr()) })
		}
		return nest(b, ctaTupleProto, func(b []byte) []byte {
			b = appendAttr(b, ctaProtoNum, byte(proto))
			if at.Port() != 0 {
				flags |= s.onPort
				b = appendAttr(b, s.port, byte(at.Port()>>8), byte(at.Port()))
			}
			return b
		})
	})
	return b, flags
}

func (s side) appendAddr(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		return appendAttr(b, s.ipv4, a.AsSlice()...)
	}
	return appendAttr(b, s.ipv6, a.AsSlice()...)
}

// appendDelete appends a request to delete exactly e. It names the reply tuple:
// that of a flow which new rules have made in e's place has another endpoint, while
// its original tuple is the same, and even its id is when it got e's memory.
func appendDelete(b []byte, seq uint32, e *entry) []byte {
	b, end := appendHeader(b, msgDelete, flagRequest, seq, model.FamilyOf(e.flow.Dst.Addr()))
	b = append(b, e.reply...)
	b = append(b, e.zone...)
	b = append(b, e.id...)
	return end(b)
}

// appendHeader appends the headers of a message; the returned function writes
// the length when all attributes are there.
func appendHeader(b []byte, typ, flags uint16, seq uint32, family model.Family) ([]byte, func([]byte) []byte) {
	start := len(b)
	b = native.AppendUint32(b, 0)
	b = native.AppendUint16(b, typ)
	b = native.AppendUint16(b, flags)
	b = native.AppendUint32(b, seq)
	b = native.AppendUint32(b, 0) // the port id: the kernel knows who we are
	b = append(b, afOf(family), 0, 0, 0)
	return b, func(b []byte) []byte {
		native.PutUint32(b[start:], uint32(len(b)-start))
		return b
	}
}

func appendAttr(b []byte, typ uint16, value ...byte) []byte {
	b = native.AppendUint16(b, uint16(attrLen+len(value)))
	b = native.AppendUint16(b, typ)
	b = append(b, value...)
	return append(b, make([]byte, align(len(value))-len(value))...)
}

func nest(b []byte, typ uint16, fill func([]byte) []byte) []byte {
	start := len(b)
	b = native.AppendUint16(b, 0)
	b = native.AppendUint16(b, typ|attrNested)
	b = fill(b)
	native.PutUint16(b[start:], uint16(len(b)-start))
	return b
}

func align(n int) int { return (n + 3) &^ 3 }

// afOf returns AF_INET or AF_INET6 as Linux numbers them.
func afOf(f model.Family) byte {
	if f == model.IPv4 {
		return 2
	}
	return 10
}
