package nftables

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
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

// Codes of verdicts (enum nft_verdicts and NF_DROP).
const (
	codeDrop   = 0
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
	case k.Set == NodePortAddresses:
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
		case dport:
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

// rawElement is an element as dumped.
type rawElement struct {
	key, keyEnd, userdata []byte
	data                  []byte // NFTA_DATA_VALUE
	code                  uint32
	chain                 string
	hasVerdict            bool
	end                   bool
	strange               bool // it has something that ours never have
}

func parseElement(b []byte) (e rawElement) {
	for kind, v := range attrs(b) {
		switch kind {
		case elemKey:
			e.key = constant(v)
		case elemKeyEnd:
			e.keyEnd = constant(v)
		case elemUserdata:
			e.userdata = v
		case elemFlags:
			e.end = number(v)&elemIntervalEnd != 0
			e.strange = e.strange || number(v)&^elemIntervalEnd != 0
		case elemData:
			e.dataAttrs(v)
		case 8: // NFTA_SET_ELEM_PAD
		default: // timeouts, counters and other things that we never add
			e.strange = true
		}
	}
	return e
}

func (e *rawElement) dataAttrs(b []byte) {
	for kind, v := range attrs(b) {
		if kind == 1 {
			e.data = v
			continue
		}
		e.hasVerdict = true
		for kind, v := range attrs(v) {
			switch kind {
			case 1:
				e.code = number(v)
			case 2:
				e.chain = text(v)
			}
		}
	}
}

// constant returns the bytes of a nested NFTA_DATA_VALUE.
func constant(b []byte) []byte {
	for kind, v := range attrs(b) {
		if kind == 1 {
			return v
		}
	}
	return nil
}

// alien names an element by what it takes to delete it.
func (e rawElement) alien(f model.Family, set SetID) Key {
	var w writer
	if e.end {
		w.u32(elemFlags, elemIntervalEnd)
	}
	w.constant(elemKey, e.key)
	if e.keyEnd != nil {
		w.constant(elemKeyEnd, e.keyEnd)
	}
	return Key{Kind: KindAlien, Family: f, Set: set, Rest: string(w.buf)}
}

func (w *writer) constant(kind int, b []byte) {
	at := w.open(kind)
	w.attr(1, b)
	w.close(at)
}

// parse makes an object of an element; ok is false when it cannot be ours.
func (e rawElement) parse(f model.Family, set SetID) (k Key, v Value, ok bool) {
	k = Key{Kind: KindElement, Family: f, Set: set}
	if e.strange || len(e.key) != keyLen(f, sets[set].key) || !k.parseKey(e.key) {
		return k, v, false
	}
	if set == Allowed {
		first := len(e.key) - addressLen(f)
		if len(e.keyEnd) != len(e.key) || string(e.keyEnd[:first]) != string(e.key[:first]) {
			return k, v, false
		}
		k.Rest = string(e.key[first:]) + string(e.keyEnd[first:])
	}
	v, ok = e.value(f, set)
	// What we would write for it must be what is there.
	return k, v, ok && slices.Equal(k.append(nil, false), e.key)
}

func (k *Key) parseKey(b []byte) bool {
	n := addressLen(k.Family)
	key := sets[k.Set].key
	for i, f := range key {
		size := (fieldLen(k.Family, f) + 3) &^ 3
		if len(key) == 1 {
			size = len(b)
		}
		part := b[:size]
		b = b[size:]
		switch f {
		case l4proto:
			k.Proto = model.Proto(part[0])
		case dport:
			k.Port = binary.BigEndian.Uint16(part)
		case slot:
			number := binary.NativeEndian.Uint32(part)
			if number > 0xffff {
				return false
			}
			k.Slot = uint16(number)
		default:
			if i == 0 {
				copy(k.Addr[:], part)
			} else if string(part) != string(k.Addr[:n]) {
				k.Rest = string(part)
			}
		}
	}
	return true
}

func (e rawElement) value(f model.Family, set SetID) (v Value, ok bool) {
	switch sets[set].data {
	case endpoint:
		n := addressLen(f)
		if len(e.data) != n+4 {
			return v, false
		}
		copy(v.To[:], e.data[:n])
		v.Port = binary.BigEndian.Uint16(e.data[n:])
	case verdict:
		v.Body = &Body{Verdict: verdictOther}
		switch {
		case e.hasVerdict && e.code == codeDrop:
			v.Body.Verdict = VerdictDrop
		case e.hasVerdict && e.code == codeGoto:
			v.Body.Verdict, v.Body.Goto = VerdictGoto, e.chain
		}
	}
	if c := comment(e.userdata); c != "" {
		if v.Body == nil {
			v.Body = &Body{}
		}
		v.Body.Comment = c
	}
	return v, true
}

// ranges puts the elements of NodePortAddresses together again: first addresses
// and ends, in any order. What does not fit together is alien.
func ranges(f model.Family, raw []rawElement, put func(Key, Value)) {
	n := addressLen(f)
	slices.SortFunc(raw, func(a, b rawElement) int {
		if c := slices.Compare(a.key, b.key); c != 0 || a.end == b.end {
			return c
		}
		if a.end { // an end before a beginning at the same address
			return -1
		}
		return 1
	})
	last := func(first, behind []byte) string {
		a, _ := netip.AddrFromSlice(behind)
		return string(first) + string(a.Prev().AsSlice())
	}
	for i := 0; i < len(raw); i++ {
		e := raw[i]
		switch {
		case e.strange || len(e.key) != n:
			put(e.alien(f, NodePortAddresses), Value{})
		case e.end: // nft itself puts one before the first range: it means nothing
		case i+1 < len(raw) && raw[i+1].end && len(raw[i+1].key) == n:
			k := Key{Kind: KindElement, Family: f, Set: NodePortAddresses, Rest: last(e.key, raw[i+1].key)}
			copy(k.Addr[:], e.key)
			put(k, Value{})
			i++
		case i+1 == len(raw):
			k := Key{Kind: KindElement, Family: f, Set: NodePortAddresses}
			k.Rest = string(e.key)
			for range n {
				k.Rest += "\xff"
			}
			copy(k.Addr[:], e.key)
			put(k, Value{})
		default:
			put(e.alien(f, NodePortAddresses), Value{})
		}
	}
}
