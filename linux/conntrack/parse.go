package conntrack

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/model"
)

// errMalformed means that the kernel sent something that is no conntrack message.
var errMalformed = errors.New("malformed netlink message")

// message is one netlink message. It shares memory with what it was parsed from.
type message struct {
	typ, flags uint16
	seq        uint32
	body       []byte
}

// nextMessage returns the first message of b and what follows it.
func nextMessage(b []byte) (m message, rest []byte, err error) {
	if len(b) < headerLen {
		return m, nil, errMalformed
	}
	n := int(native.Uint32(b))
	if n < headerLen || n > len(b) {
		return m, nil, errMalformed
	}
	m = message{typ: native.Uint16(b[4:]), flags: native.Uint16(b[6:]), seq: native.Uint32(b[8:]), body: b[headerLen:n]}
	return m, b[min(align(n), len(b)):], nil
}

// errno returns the error code of an error or done message as a positive
// number, 0 for success.
func (m message) errno() (int, error) {
	if len(m.body) < 4 {
		return 0, errMalformed
	}
	return -int(int32(native.Uint32(m.body))), nil
}

// entry is one tracked flow. Its attributes are whole, headers included, as the
// kernel sent them; they share memory with the message.
type entry struct {
	flow            flows.Flow
	reply, zone, id []byte // zone is empty for the default zone
}

// parseEntry reads the body of a message of type msgNew. It is an error when
// anything is missing that would make a delete request less exact: without a
// tuple the kernel would take it for one to flush the table. Entries of other
// families or protocols without ports are fine; they have a zero port.
func parseEntry(body []byte) (e entry, err error) {
	if len(body) < nfgenLen {
		return e, errMalformed
	}
	var orig, reply []byte
	for b := body[nfgenLen:]; len(b) > 0; {
		typ, value, whole, rest, ok := nextAttr(b)
		if !ok {
			return e, errMalformed
		}
		switch typ {
		case ctaTupleOrig:
			orig = value
		case ctaTupleReply:
			reply, e.reply = value, whole
		case ctaZone:
			e.zone = whole
		case ctaID:
			e.id = whole
		}
		b = rest
	}
	o, okOrig := parseTuple(orig)
	r, okReply := parseTuple(reply)
	aligned := (len(e.reply)|len(e.zone)|len(e.id))%4 == 0 // so that they can stand one after the other
	if !okOrig || !okReply || len(e.id) == 0 || !aligned {
		return e, errMalformed
	}
	e.flow = flows.Flow{Proto: o.proto, Dst: o.dst, From: r.src}
	return e, nil
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
		typ, value, _, rest, ok := nextAttr(b)
		if !ok {
			return t, false
		}
		switch typ {
		case ctaTupleIP:
			src, dst = parseAddrs(value)
		case ctaTupleProto:
			t.proto, srcPort, dstPort = parseProto(value)
		}
		b = rest
	}
	t.src, t.dst = netip.AddrPortFrom(src, srcPort), netip.AddrPortFrom(dst, dstPort)
	return t, t.src.IsValid() && t.dst.IsValid() && t.proto != 0
}

// parseAddrs returns the addresses that are well-formed, and invalid ones for
// the rest.
func parseAddrs(b []byte) (src, dst netip.Addr) {
	for len(b) > 0 {
		typ, value, _, rest, ok := nextAttr(b)
		if !ok {
			break
		}
		a, _ := netip.AddrFromSlice(value)
		switch typ {
		case ctaIPv4Src, ctaIPv6Src:
			src = a
		case ctaIPv4Src + 1, ctaIPv6Src + 1:
			dst = a
		}
		b = rest
	}
	return src, dst
}

func parseProto(b []byte) (proto model.Proto, src, dst uint16) {
	for len(b) > 0 {
		typ, value, _, rest, ok := nextAttr(b)
		if !ok {
			break
		}
		switch {
		case typ == ctaProtoNum && len(value) == 1:
			proto = model.Proto(value[0])
		case typ == ctaProtoSrc && len(value) == 2:
			src = binary.BigEndian.Uint16(value)
		case typ == ctaProtoDst && len(value) == 2:
			dst = binary.BigEndian.Uint16(value)
		}
		b = rest
	}
	return proto, src, dst
}

// nextAttr returns the first attribute of b: its type, its value, all of it with
// header and padding, and what follows.
func nextAttr(b []byte) (typ uint16, value, whole, rest []byte, ok bool) {
	if len(b) < attrLen {
		return 0, nil, nil, nil, false
	}
	n := int(native.Uint16(b))
	if n < attrLen || n > len(b) {
		return 0, nil, nil, nil, false
	}
	end := min(align(n), len(b))
	return native.Uint16(b[2:]) & attrType, b[attrLen:n], b[:end], b[end:], true
}
