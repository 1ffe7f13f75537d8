// SPDX-License-Identifier: Apache-2.0

package netlink

import "encoding/binary"

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
func (w *Writer) Acknowledge() { acknowledge(w.Buf[w.start:]) }

func acknowledge(message []byte) {
	flags := binary.NativeEndian.Uint16(message[6:])
	binary.NativeEndian.PutUint16(message[6:], flags|FlagAck)
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
