// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// rawElement is an element as dumped.
type rawElement struct {
	key, keyEnd, userdata []byte
	data                  []byte // NFTA_DATA_VALUE
	code                  uint32
	chain                 []byte
	hasVerdict            bool
	end                   bool
	strange               bool // it has an attribute that we never write
	counts                bool
	count                 Count
}

func parseElement(b []byte) (e rawElement) {
	for kind, v := range netlink.Attrs(b) {
		switch kind {
		case elemKey:
			e.key = constant(v)
		case elemKeyEnd:
			e.keyEnd = constant(v)
		case elemUserdata:
			e.userdata = v
		case elemFlags:
			e.end = netlink.Uint32(v)&elemIntervalEnd != 0
			e.strange = e.strange || netlink.Uint32(v)&^elemIntervalEnd != 0
		case elemData:
			e.dataAttrs(v)
		case elemCounter:
			e.count, e.counts = parseCounter(v)
			e.strange = e.strange || !e.counts
		case 8: // NFTA_SET_ELEM_PAD
		default: // timeouts and others that we never write
			e.strange = true
		}
	}
	return e
}

func (e *rawElement) dataAttrs(b []byte) {
	for kind, v := range netlink.Attrs(b) {
		if kind == attrDataValue {
			e.data = v
			continue
		}
		e.hasVerdict = true
		for kind, v := range netlink.Attrs(v) {
			switch kind {
			case attrVerdictCode:
				e.code = netlink.Uint32(v)
			case attrVerdictChain:
				e.chain = netlink.TextBytes(v)
			}
		}
	}
}

// constant returns the bytes of a nested NFTA_DATA_VALUE.
func constant(b []byte) []byte {
	for kind, v := range netlink.Attrs(b) {
		if kind == attrDataValue {
			return v
		}
	}
	return nil
}

// foreign names an element by the attributes needed to delete it.
func (e rawElement) foreign(f model.Family, set *Set) Key {
	w := encoder{Writer: &netlink.Writer{}}
	if e.end {
		w.Uint32(elemFlags, elemIntervalEnd)
	}
	w.value(elemKey, e.key)
	if e.keyEnd != nil {
		w.value(elemKeyEnd, e.keyEnd)
	}
	return Key{Kind: KindForeign, Family: f, Set: set, Detail: detail(rawKey(w.Buf))}
}

// parse returns the object of an element; ok is false if we cannot have written it.
func (e *rawElement) parse(f model.Family, set *Set) (k Key, v Value, ok bool) {
	if k, ok = e.keyOf(f, set); ok {
		v, ok = e.value(f, set)
	}
	return k, v, ok
}

// keyOf returns the key of an element; ok is false if we cannot have written it.
func (e *rawElement) keyOf(f model.Family, set *Set) (k Key, ok bool) {
	k = Key{Kind: KindElement, Family: f, Set: set}
	if e.strange || e.counts && set.Data != DataVerdict && set.Data != DataEndpoint || len(e.key) != keyLen(f, set.Key) || !k.parseKey(e.key) {
		return k, false
	}
	if set.rangeBehind() {
		first := len(e.key) - addressLen(f)
		if len(e.keyEnd) != len(e.key) || string(e.keyEnd[:first]) != string(e.key[:first]) {
			return k, false
		}
		k = k.withRange(Range{addressOf(e.key[first:]), addressOf(e.keyEnd[first:])})
	}
	var scratch [64]byte // an audit does this for every element: no allocation
	// It must have exactly the bytes that we would write.
	return k, slices.Equal(k.append(scratch[:0], false), e.key)
}

func (k *Key) parseKey(b []byte) bool {
	n := addressLen(k.Family)
	key := k.Set.Key
	for i, f := range key {
		size := (fieldLen(k.Family, f) + 3) &^ 3
		if len(key) == 1 {
			size = len(b)
		}
		part := b[:size]
		b = b[size:]
		switch f {
		case L4Proto:
			k.Proto = model.Proto(part[0])
		case Dport, Sport:
			k.Port = binary.BigEndian.Uint16(part)
		case Number:
			number := binary.NativeEndian.Uint32(part)
			if number > 0xffff {
				return false
			}
			k.Slot = uint16(number)
		default:
			if i == 0 {
				copy(k.Addr[:], part)
			} else if !k.Set.Interval && string(part) != string(k.Addr[:n]) {
				k.Detail = detail(addressOf(part))
			}
		}
	}
	return true
}

// to returns the address that an element leads to, if it does; ok is false if we cannot have written it.
func (e *rawElement) to(f model.Family, set *Set) (v Value, ok bool) {
	n := addressLen(f)
	switch set.Data {
	case DataEndpoint:
		if len(e.data) != n+4 {
			return v, false
		}
		copy(v.To[:], e.data[:n])
		v.Port = binary.BigEndian.Uint16(e.data[n:])
	case DataAddress:
		if len(e.data) != n {
			return v, false
		}
		copy(v.To[:], e.data)
	}
	return v, true
}

func (e *rawElement) value(f model.Family, set *Set) (v Value, ok bool) {
	if v, ok = e.to(f, set); !ok {
		return v, false
	}
	var counter *Count
	if e.counts {
		counter = new(Count)
		*counter = e.count
	}
	switch {
	case set.Data == DataVerdict:
		v.Body = &Body{Verdict: verdictOther, Counter: counter}
		switch {
		case e.hasVerdict && e.code == codeDrop:
			v.Body.Verdict = VerdictDrop
		case e.hasVerdict && e.code == codeGoto:
			v.Body.Verdict, v.Body.Goto = VerdictGoto, string(e.chain)
		}
	case counter != nil:
		v.Body = &Body{Counter: counter}
	}
	if c := comment(e.userdata); c != "" {
		if v.Body == nil {
			v.Body = &Body{}
		}
		v.Body.Comment = c
	}
	return v, true
}

// ranges pairs the elements of a set of ranges, first addresses and ends in any
// order. Elements without a counterpart are foreign.
func ranges(f model.Family, set *Set, raw []rawElement, put func(Key, Value)) {
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
	for i := 0; i < len(raw); i++ {
		e := raw[i]
		switch {
		case e.strange || len(e.key) != n:
			put(e.foreign(f, set), Value{})
		case e.end: // nft itself writes one before the first range, without meaning
		case i+1 < len(raw) && raw[i+1].end && len(raw[i+1].key) == n:
			first := addressOf(e.key)
			put(AddrKey(set, first).withRange(Range{first, addressOf(raw[i+1].key).Prev()}), Value{})
			i++
		case i+1 == len(raw):
			first := addressOf(e.key)
			put(AddrKey(set, first).withRange(Range{first, model.Last(netip.PrefixFrom(first, 0))}), Value{})
		default:
			put(e.foreign(f, set), Value{})
		}
	}
}

// addressOf returns the address in some bytes of the right number.
func addressOf(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}
