package nftables

import "encoding/binary"

// Attributes of an element (enum nft_set_elem_attributes).
const (
	elemKey      = 1
	elemData     = 2
	elemFlags    = 3
	elemUserdata = 6
	elemKeyEnd   = 10

	elemIntervalEnd = 1 // in elemFlags
)

// Codes of verdicts (enum nft_verdicts, NF_DROP and NF_ACCEPT).
const (
	codeDrop   = 0
	codeAccept = 1 // NF_ACCEPT
	codeReturn = 0xfffffffb
	codeGoto   = 0xfffffffc
	codeJump   = 0xfffffffd
)

func (w *writer) verdictData(code uint32, chain string) {
	at := w.open(2) // NFTA_DATA_VERDICT
	w.u32(1, code)
	if chain != "" {
		w.str(2, chain)
	}
	w.close(at)
}

// element writes an element into the open list of its set. To delete one, its
// key is enough.
func (w *writer) element(k Key, v Value, whole bool) {
	switch {
	case k.Kind == KindAlien:
		at := w.open(1)
		w.buf = append(w.buf, k.Rest...)
		w.close(at)
	case k.Set.ranges():
		w.rangeElements(k, whole)
	default:
		w.plainElement(k, v, whole)
	}
}

func (w *writer) plainElement(k Key, v Value, whole bool) {
	at := w.open(1) // NFTA_LIST_ELEM
	w.key(elemKey, k, false)
	if k.Set == Allowed {
		w.key(elemKeyEnd, k, true)
	}
	if whole {
		w.elementData(k, v)
	}
	w.close(at)
}

func (w *writer) elementData(k Key, v Value) {
	switch sets[k.Set].data {
	case endpoint:
		at := w.open(elemData)
		n := addressLen(k.Family)
		w.attrHeader(1, n+4)
		w.buf = append(w.buf, v.To[:n]...)
		w.buf = binary.BigEndian.AppendUint16(w.buf, v.Port)
		w.buf = append(w.buf, 0, 0)
		w.close(at)
	case address:
		w.constant(elemData, v.To[:addressLen(k.Family)])
	case verdict:
		at := w.open(elemData)
		if v.Body.Verdict == VerdictGoto {
			w.verdictData(codeGoto, v.Body.Goto)
		} else {
			w.verdictData(codeDrop, "")
		}
		w.close(at)
	}
	if v.Body != nil && v.Body.Comment != "" {
		var n notes
		n.comment(v.Body.Comment)
		w.attr(elemUserdata, n)
	}
}

// key writes a key; with end it is the last one of an element's range.
func (w *writer) key(kind int, k Key, end bool) {
	at := w.open(kind)
	value := len(w.buf)
	w.attrHeader(1, 0)
	w.buf = k.append(w.buf, end)
	binary.NativeEndian.PutUint16(w.buf[value:], uint16(len(w.buf)-value))
	w.pad()
	w.close(at)
}

// append appends the bytes of a key as they are in the registers: numbers of
// packets in network order, slots in that of the host.
func (k Key) append(b []byte, end bool) []byte {
	n := addressLen(k.Family)
	key := sets[k.Set].key
	for i, f := range key {
		switch f {
		case l4proto:
			b = append(b, byte(k.Proto))
			if len(key) > 1 {
				b = append(b, 0, 0, 0)
			}
		case dport, sport:
			b = binary.BigEndian.AppendUint16(b, k.Port)
			b = append(b, 0, 0)
		case slot:
			b = binary.NativeEndian.AppendUint32(b, uint32(k.Slot))
		default:
			switch {
			case i == 0 || k.Rest == "":
				b = append(b, k.Addr[:n]...)
			case end:
				b = append(b, k.Rest[n:]...)
			default:
				b = append(b, k.Rest[:n]...)
			}
		}
	}
	return b
}

// rangeElements writes a range of a set whose only field it is: as its first
// address, and the first one behind it marked as an end. A range up to the last
// address there is has no end.
func (w *writer) rangeElements(k Key, whole bool) {
	_, last, _ := k.bounds()
	behind := last.Next()
	at := w.open(1)
	w.key(elemKey, k, false)
	if whole && !behind.IsValid() {
		var n notes
		n.num(noteFlags, noteOpen)
		w.attr(elemUserdata, n)
	}
	w.close(at)
	if !behind.IsValid() {
		return
	}
	at = w.open(1)
	w.u32(elemFlags, elemIntervalEnd)
	k.Addr = packed(behind)
	w.key(elemKey, k, false)
	w.close(at)
}

func (w *writer) constant(kind int, b []byte) {
	at := w.open(kind)
	w.attr(1, b)
	w.close(at)
}
