// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"encoding/binary"
	"errors"
	"iter"

	"github.com/tandem-proxy/tandem/core/model"
)

// Types of messages that all families have.
const (
	TypeError = 2 // NLMSG_ERROR: also an acknowledgement, with the number 0
	TypeDone  = 3 // NLMSG_DONE: the end of a dump
)

// Flags of messages. The kernel uses some bits again in its answers.
const (
	FlagRequest   = 0x1
	FlagAck       = 0x4
	FlagExclusive = 0x200 // NLM_F_EXCL: fail if the object exists
	FlagDump      = 0x300
	FlagCreate    = 0x400
	FlagAppend    = 0x800

	FlagInterrupted = 0x10  // NLM_F_DUMP_INTR: the dump may lack objects
	FlagCapped      = 0x100 // NLM_F_CAPPED: an error without the failed message
	FlagAckTLVs     = 0x200 // NLM_F_ACK_TLVS: an error with attributes
)

// HeaderLen is the length of a message's header, FamilyLen that of the nfgenmsg
// behind it.
const (
	HeaderLen = 16
	FamilyLen = 4
)

// ErrMalformed means that the kernel sent bytes that are not a netlink message.
var ErrMalformed = errors.New("malformed netlink message")

// Message is a message as received. It shares memory with the buffer that was read.
type Message struct {
	Type  uint16 // subsystem << 8 | type, for netfilter
	Flags uint16
	Seq   uint32
	Body  []byte // what follows the header
}

// Messages splits the bytes of one read into messages. Malformed input ends it with
// ErrMalformed.
func Messages(b []byte) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		for len(b) > 0 {
			size := 0
			if len(b) >= HeaderLen {
				size = int(binary.NativeEndian.Uint32(b))
			}
			if size < HeaderLen || size > len(b) {
				yield(Message{}, ErrMalformed)
				return
			}
			m := Message{
				Type:  binary.NativeEndian.Uint16(b[4:]),
				Flags: binary.NativeEndian.Uint16(b[6:]),
				Seq:   binary.NativeEndian.Uint32(b[8:]),
				Body:  b[HeaderLen:size],
			}
			if !yield(m, nil) {
				return
			}
			b = b[min(align(size), len(b)):]
		}
	}
}

// Family returns the address family of a netfilter message, 0 if it has none.
func (m Message) Family() byte {
	if len(m.Body) < FamilyLen {
		return 0
	}
	return m.Body[0]
}

// Attrs returns the attributes of a netfilter message.
func (m Message) Attrs() iter.Seq2[uint16, []byte] {
	return Attrs(m.Body[min(FamilyLen, len(m.Body)):])
}

// Errno returns the error number of a message of TypeError or TypeDone, 0 for
// success; ok is false if it has none.
func (m Message) Errno() (errno int, ok bool) {
	if len(m.Body) < 4 {
		return 0, false
	}
	return -int(int32(binary.NativeEndian.Uint32(m.Body))), true
}

// FamilyOf returns AF_INET or AF_INET6 as Linux numbers them.
func FamilyOf(f model.Family) byte {
	if f == model.IPv4 {
		return 2
	}
	return 10
}

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

// Writer appends messages to Buf, one behind the other. Set Buf to Buf[:0] to use
// its memory again.
type Writer struct {
	Buf   []byte
	start int // of the open message
}

// Begin opens a message. Resource is a field of netfilter's header that only
// batches of nf_tables use.
func (w *Writer) Begin(kind, flags uint16, seq uint32, family byte, resource uint16) {
	w.start = len(w.Buf)
	w.Buf = append(w.Buf, 0, 0, 0, 0) // the length: End
	w.Buf = binary.NativeEndian.AppendUint16(w.Buf, kind)
	w.Buf = binary.NativeEndian.AppendUint16(w.Buf, FlagRequest|flags)
	w.Buf = binary.NativeEndian.AppendUint32(w.Buf, seq)
	w.Buf = append(w.Buf, 0, 0, 0, 0, family, 0) // a port id of 0: the kernel knows it
	w.Buf = binary.BigEndian.AppendUint16(w.Buf, resource)
}

// End closes the open message.
func (w *Writer) End() {
	binary.NativeEndian.PutUint32(w.Buf[w.start:], uint32(len(w.Buf)-w.start))
}

// Start returns where the message that was begun last starts in Buf.
func (w *Writer) Start() int { return w.start }

// Acknowledge requests an answer to the message that was begun last.
func (w *Writer) Acknowledge() {
	flags := w.Buf[w.start+6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|FlagAck)
}

// Bytes writes an attribute.
func (w *Writer) Bytes(kind uint16, value []byte) {
	w.Header(kind, len(value))
	w.Buf = append(w.Buf, value...)
	w.Pad()
}

// Text writes a string, with the zero byte that the kernel wants at its end.
func (w *Writer) Text(kind uint16, s string) {
	w.Header(kind, len(s)+1)
	w.Buf = append(append(w.Buf, s...), 0)
	w.Pad()
}

// Uint8 writes a byte.
func (w *Writer) Uint8(kind uint16, v uint8) {
	w.Header(kind, 1)
	w.Buf = append(w.Buf, v)
	w.Pad()
}

// Uint16 writes a number in network order.
func (w *Writer) Uint16(kind, v uint16) {
	w.Header(kind, 2)
	w.Buf = binary.BigEndian.AppendUint16(w.Buf, v)
	w.Pad()
}

// Uint32 writes a number in network order.
func (w *Writer) Uint32(kind uint16, v uint32) {
	w.Header(kind, 4)
	w.Buf = binary.BigEndian.AppendUint32(w.Buf, v)
}

// Uint64 writes a number in network order.
func (w *Writer) Uint64(kind uint16, v uint64) {
	w.Header(kind, 8)
	w.Buf = binary.BigEndian.AppendUint64(w.Buf, v)
}

// Nest opens an attribute that holds others and returns what NestEnd needs.
func (w *Writer) Nest(kind uint16) (at int) {
	at = len(w.Buf)
	w.Header(kind|nested, 0)
	return at
}

// NestEnd closes an attribute.
func (w *Writer) NestEnd(at int) {
	binary.NativeEndian.PutUint16(w.Buf[at:], uint16(len(w.Buf)-at))
}

// Header begins an attribute whose value of that size the caller appends to Buf,
// and Pads.
func (w *Writer) Header(kind uint16, size int) {
	w.Buf = binary.NativeEndian.AppendUint16(w.Buf, uint16(size+attrHeaderLen))
	w.Buf = binary.NativeEndian.AppendUint16(w.Buf, kind)
}

// Pad appends what an attribute needs behind its value.
func (w *Writer) Pad() {
	for len(w.Buf)%4 != 0 {
		w.Buf = append(w.Buf, 0)
	}
}

// Batches are bounded by what the kernel answers: each request that fails takes
// about a kilobyte of the socket's receive buffer, which has 208 of them.
const (
	maxRequests   = 128
	maxBatchBytes = 64 << 10
)

// Batch holds requests that are sent together (Socket.Exchange). Each of them
// succeeds or fails alone; the kernel processes them in order.
type Batch struct {
	w Writer
	n int
}

// Begin opens the next request; the caller adds attributes and calls End on the
// Writer.
func (b *Batch) Begin(kind, flags uint16, family byte) *Writer {
	b.n++
	b.w.Begin(kind, flags, 0, family, 0) // numbered by finish
	return &b.w
}

// Len returns how many requests there are.
func (b *Batch) Len() int { return b.n }

// Full reports whether the batch should be sent before another request.
func (b *Batch) Full() bool { return b.n >= maxRequests || len(b.w.Buf) >= maxBatchBytes }

// finish numbers the requests from first on and sets the acknowledgement flag of the
// last one.
func (b *Batch) finish(first uint32) []byte {
	seq := first
	for at := 0; at < len(b.w.Buf); seq++ {
		binary.NativeEndian.PutUint32(b.w.Buf[at+8:], seq)
		at += align(int(binary.NativeEndian.Uint32(b.w.Buf[at:])))
	}
	b.w.Acknowledge()
	return b.w.Buf
}

func (b *Batch) reset() {
	b.w.Buf, b.n = b.w.Buf[:0], 0
}
