package nftables

import (
	"encoding/binary"
	"errors"
	"iter"
)

// Messages of nf_tables (include/uapi/linux/netfilter/nf_tables.h) and of the
// layers around it. They are spelled out here so that this file and all that
// builds on it compile on any system.
const (
	msgNewTable = iota
	msgGetTable
	msgDelTable
	msgNewChain
	msgGetChain
	msgDelChain
	msgNewRule
	msgGetRule
	msgDelRule
	msgNewSet
	msgGetSet
	msgDelSet
	msgNewSetElem
	msgGetSetElem
	msgDelSetElem
	msgNewGen
	msgGetGen

	subsystem  = 10 // NFNL_SUBSYS_NFTABLES
	batchBegin = 0x10
	batchEnd   = 0x11

	nlmsgError = 2
	nlmsgDone  = 3

	flagRequest  = 0x1
	flagAck      = 0x4
	flagDumpIntr = 0x10
	flagCapped   = 0x100 // NLM_F_CAPPED: an error without the failed message
	flagAckTLVs  = 0x200 // NLM_F_ACK_TLVS: an error with attributes
	flagExcl     = 0x200 // NLM_F_EXCL, of a request that creates
	flagDump     = 0x300
	flagCreate   = 0x400
	flagAppend   = 0x800

	nested = 0x8000 // NLA_F_NESTED
)

// writer appends netlink messages to a buffer that is used again and again.
type writer struct {
	buf []byte
	msg int // where the open message starts
}

// begin opens a message of nf_tables for a family (AF_INET or AF_INET6).
func (w *writer) begin(kind int, flags uint16, seq uint32, family byte) {
	w.header(subsystem<<8|kind, flags, seq, family, 0)
}

func (w *writer) header(kind int, flags uint16, seq uint32, family byte, resource uint16) {
	w.msg = len(w.buf)
	w.buf = append(w.buf, 0, 0, 0, 0)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, uint16(kind))
	w.buf = binary.NativeEndian.AppendUint16(w.buf, flagRequest|flags)
	w.buf = binary.NativeEndian.AppendUint32(w.buf, seq)
	w.buf = append(w.buf, 0, 0, 0, 0, family, 0)
	w.buf = binary.BigEndian.AppendUint16(w.buf, resource)
}

// end closes the open message.
func (w *writer) end() {
	binary.NativeEndian.PutUint32(w.buf[w.msg:], uint32(len(w.buf)-w.msg))
}

func (w *writer) attr(kind int, value []byte) {
	w.attrHeader(kind, len(value))
	w.buf = append(w.buf, value...)
	w.pad()
}

// str writes a string with the zero byte that the kernel wants at its end.
func (w *writer) str(kind int, s string) {
	w.attrHeader(kind, len(s)+1)
	w.buf = append(append(w.buf, s...), 0)
	w.pad()
}

func (w *writer) u8(kind int, v uint8) {
	w.attrHeader(kind, 1)
	w.buf = append(w.buf, v)
	w.pad()
}

// u32 writes a number in network order, as nf_tables has all its own numbers.
func (w *writer) u32(kind int, v uint32) {
	w.attrHeader(kind, 4)
	w.buf = binary.BigEndian.AppendUint32(w.buf, v)
}

func (w *writer) u64(kind int, v uint64) {
	w.attrHeader(kind, 8)
	w.buf = binary.BigEndian.AppendUint64(w.buf, v)
}

// open starts an attribute that holds others; close ends it.
func (w *writer) open(kind int) int {
	at := len(w.buf)
	w.attrHeader(kind|nested, 0)
	return at
}

func (w *writer) close(at int) {
	binary.NativeEndian.PutUint16(w.buf[at:], uint16(len(w.buf)-at))
}

func (w *writer) attrHeader(kind, size int) {
	w.buf = binary.NativeEndian.AppendUint16(w.buf, uint16(size+4))
	w.buf = binary.NativeEndian.AppendUint16(w.buf, uint16(kind))
}

func (w *writer) pad() {
	for len(w.buf)%4 != 0 {
		w.buf = append(w.buf, 0)
	}
}

// message is one netlink message as received.
type message struct {
	kind  uint16
	flags uint16
	seq   uint32
	body  []byte // what follows the netlink header
}

// table returns the message's kind within nf_tables, or -1.
func (m message) table() int {
	if m.kind>>8 != subsystem {
		return -1
	}
	return int(m.kind & 0xff)
}

// attrs returns the attributes that follow the nfgenmsg.
func (m message) attrs() iter.Seq2[int, []byte] {
	if len(m.body) < 4 {
		return attrs(nil)
	}
	return attrs(m.body[4:])
}

var errMalformed = errors.New("malformed netlink message")

// messages cuts what one read returned into messages.
func messages(buf []byte) iter.Seq2[message, error] {
	return func(yield func(message, error) bool) {
		for len(buf) >= 16 {
			size := int(binary.NativeEndian.Uint32(buf))
			if size < 16 || size > len(buf) {
				yield(message{}, errMalformed)
				return
			}
			m := message{
				kind:  binary.NativeEndian.Uint16(buf[4:]),
				flags: binary.NativeEndian.Uint16(buf[6:]),
				seq:   binary.NativeEndian.Uint32(buf[8:]),
				body:  buf[16:size],
			}
			if !yield(m, nil) {
				return
			}
			buf = buf[min((size+3)&^3, len(buf)):]
		}
	}
}

// attrs walks over attributes. It stops at the first that is malformed: what is
// missing then fails in the checks of whoever needs it.
func attrs(buf []byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		for len(buf) >= 4 {
			size := int(binary.NativeEndian.Uint16(buf))
			if size < 4 || size > len(buf) {
				return
			}
			kind := int(binary.NativeEndian.Uint16(buf[2:])) & 0x3fff
			if !yield(kind, buf[4:size]) {
				return
			}
			buf = buf[min((size+3)&^3, len(buf)):]
		}
	}
}

// number reads a number in network order; 0 when it is not four bytes.
func number(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// text reads a string without the zero byte at its end.
func text(b []byte) string {
	if n := len(b); n > 0 && b[n-1] == 0 {
		b = b[:n-1]
	}
	return string(b)
}
