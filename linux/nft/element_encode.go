// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"net/netip"
)

// Attributes of an element (enum nft_set_elem_attributes).
const (
	elemKey      = 1
	elemData     = 2
	elemFlags    = 3
	elemUserdata = 6
	elemKeyEnd   = 10

	elemIntervalEnd = 1 // in elemFlags
)

// element writes an element into the open list of its set. A deletion needs the key
// only.
func (e *encoder) element(k Key, v Value, whole bool) {
	switch {
	case k.Kind == KindForeign:
		at := e.Nest(1)
		raw, _ := k.Detail.value().(rawKey)
		e.Buf = append(e.Buf, raw...)
		e.NestEnd(at)
	case k.Set.ranges():
		e.rangeElements(k, whole)
	default:
		e.plainElement(k, v, whole)
	}
}

func (e *encoder) plainElement(k Key, v Value, whole bool) {
	at := e.Nest(1) // NFTA_LIST_ELEM
	e.key(elemKey, k, false)
	if k.Set.rangeBehind() {
		e.key(elemKeyEnd, k, true)
	}
	if whole {
		e.elementData(k, v)
	}
	e.NestEnd(at)
}

func (e *encoder) elementData(k Key, v Value) {
	switch k.Set.Data {
	case DataEndpoint:
		at := e.Nest(elemData)
		n := addressLen(k.Family)
		e.Header(attrDataValue, n+4)
		e.Buf = append(e.Buf, v.To[:n]...)
		e.Buf = binary.BigEndian.AppendUint16(e.Buf, v.Port)
		e.Buf = append(e.Buf, 0, 0)
		e.NestEnd(at)
	case DataAddress:
		e.value(elemData, v.To[:addressLen(k.Family)])
	case DataVerdict:
		at := e.Nest(elemData)
		if v.Body.Verdict == VerdictGoto {
			e.verdictData(codeGoto, v.Body.Goto)
		} else {
			e.verdictData(codeDrop, "")
		}
		e.NestEnd(at)
	}
	if v.Body != nil && v.Body.Counter != nil {
		e.counter(*v.Body.Counter)
	}
	if v.Body != nil && v.Body.Comment != "" {
		var n notes
		n.comment(v.Body.Comment)
		e.Bytes(elemUserdata, n)
	}
}

// key writes a key; with end it is the last one of an element's range.
func (e *encoder) key(kind uint16, k Key, end bool) {
	at := e.Nest(kind)
	value := len(e.Buf)
	e.Header(attrDataValue, 0)
	e.Buf = k.append(e.Buf, end)
	binary.NativeEndian.PutUint16(e.Buf[value:], uint16(len(e.Buf)-value))
	e.Pad()
	e.NestEnd(at)
}

// append appends the bytes of a key as they are in the registers: numbers of
// packets in network order, slots in that of the host.
func (k Key) append(b []byte, end bool) []byte {
	n := addressLen(k.Family)
	key := k.Set.Key
	for i, f := range key {
		switch f {
		case L4Proto:
			b = append(b, byte(k.Proto))
			if len(key) > 1 {
				b = append(b, 0, 0, 0)
			}
		case Dport, Sport:
			b = binary.BigEndian.AppendUint16(b, k.Port)
			b = append(b, 0, 0)
		case Number:
			b = binary.NativeEndian.AppendUint32(b, uint32(k.Slot))
		default:
			if i == 0 || k.Detail == (Detail{}) {
				b = append(b, k.Addr[:n]...)
			} else {
				b = append(b, k.lastAddr(end).AsSlice()...)
			}
		}
	}
	return b
}

// lastAddr is the address in the last field of a key with details: the first or the
// last one of a range, or a second address.
func (k Key) lastAddr(end bool) netip.Addr {
	r, ok := k.Range()
	switch {
	case ok && end:
		return r.Last
	case ok:
		return r.First
	}
	return k.second()
}

// rangeElements writes a range of a set whose only field it is: as its first
// address, and the first one behind it marked as an end. A range up to the last
// address there is has no end.
func (e *encoder) rangeElements(k Key, whole bool) {
	r, _ := k.Range()
	behind := r.Last.Next()
	at := e.Nest(1)
	e.key(elemKey, k, false)
	if whole && !behind.IsValid() {
		var n notes
		n.num(noteFlags, noteOpen)
		e.Bytes(elemUserdata, n)
	}
	e.NestEnd(at)
	if !behind.IsValid() {
		return
	}
	at = e.Nest(1)
	e.Uint32(elemFlags, elemIntervalEnd)
	k.Addr = packed(behind)
	e.key(elemKey, k, false)
	e.NestEnd(at)
}
