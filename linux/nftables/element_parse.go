package nftables

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
	chain                 string
	hasVerdict            bool
	end                   bool
	strange               bool // it has something that ours never have
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
		case 8: // NFTA_SET_ELEM_PAD
		default: // timeouts, counters and other things that we never add
			e.strange = true
		}
	}
	return e
}

func (e *rawElement) dataAttrs(b []byte) {
	for kind, v := range netlink.Attrs(b) {
		if kind == 1 {
			e.data = v
			continue
		}
		e.hasVerdict = true
		for kind, v := range netlink.Attrs(v) {
			switch kind {
			case 1:
				e.code = netlink.Uint32(v)
			case 2:
				e.chain = netlink.Text(v)
			}
		}
	}
}

// constant returns the bytes of a nested NFTA_DATA_VALUE.
func constant(b []byte) []byte {
	for kind, v := range netlink.Attrs(b) {
		if kind == 1 {
			return v
		}
	}
	return nil
}

// alien names an element by what it takes to delete it.
func (e rawElement) alien(f model.Family, set SetID) Key {
	w := encoder{Writer: &netlink.Writer{}}
	if e.end {
		w.Uint32(elemFlags, elemIntervalEnd)
	}
	w.constant(elemKey, e.key)
	if e.keyEnd != nil {
		w.constant(elemKeyEnd, e.keyEnd)
	}
	return Key{Kind: KindAlien, Family: f, Set: set, Rest: string(w.Buf)}
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
	var scratch [64]byte // an audit does this for everything: without garbage
	// What we would write for it must be what is there.
	return k, v, ok && slices.Equal(k.append(scratch[:0], false), e.key)
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
		case dport, sport:
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
	case address:
		if len(e.data) != addressLen(f) {
			return v, false
		}
		copy(v.To[:], e.data)
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

// ranges puts the elements of a set of ranges together again: first addresses and
// ends, in any order. What does not fit together is alien.
func ranges(f model.Family, set SetID, raw []rawElement, put func(Key, Value)) {
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
			put(e.alien(f, set), Value{})
		case e.end: // nft itself puts one before the first range: it means nothing
		case i+1 < len(raw) && raw[i+1].end && len(raw[i+1].key) == n:
			k := Key{Kind: KindElement, Family: f, Set: set, Rest: last(e.key, raw[i+1].key)}
			copy(k.Addr[:], e.key)
			put(k, Value{})
			i++
		case i+1 == len(raw):
			k := Key{Kind: KindElement, Family: f, Set: set}
			k.Rest = string(e.key)
			for range n {
				k.Rest += "\xff"
			}
			copy(k.Addr[:], e.key)
			put(k, Value{})
		default:
			put(e.alien(f, set), Value{})
		}
	}
}
