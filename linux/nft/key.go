// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"unique"

	"github.com/tandem-proxy/tandem/core/model"
)

// Kind is the kind of an object.
type Kind uint8

const (
	KindTable   Kind = iota
	KindSet          // the definition of a set or map
	KindChain        // a chain with its rules
	KindElement      // an element of a set or map
	KindForeign      // an element that Tandem did not write
)

// Key names an object. It is small, 40 bytes without allocations for the common kinds, since
// every endpoint of every frontend has one.
type Key struct {
	Port   uint16
	Slot   uint16
	Kind   Kind
	Family model.Family
	Proto  model.Proto
	Set    *Set     // of elements
	Addr   [16]byte // in the first 4 bytes for IPv4
	Detail Detail
}

// Detail is the part of a key that is rarely needed: the name of a set or chain; of an
// element a Range, or a second address other than Addr; of a foreign element its
// rawKey.
type Detail struct{ handle unique.Handle[any] }

type (
	name   string
	rawKey string // the attributes needed to delete an element

	// Range is a range of addresses, both ends included.
	Range struct{ First, Last netip.Addr }
)

func detail(v any) Detail { return Detail{unique.Make(v)} }

func (d Detail) value() any {
	if d == (Detail{}) {
		return nil
	}
	return d.handle.Value()
}

// compare orders the details of keys of one kind.
func (d Detail) compare(o Detail) int {
	if d == o {
		return 0
	}
	switch a := d.value().(type) {
	case name:
		b, _ := o.value().(name)
		return strings.Compare(string(a), string(b))
	case rawKey:
		b, _ := o.value().(rawKey)
		return strings.Compare(string(a), string(b))
	case netip.Addr:
		b, _ := o.value().(netip.Addr)
		return a.Compare(b)
	case Range:
		b, _ := o.value().(Range)
		return cmp.Or(a.First.Compare(b.First), a.Last.Compare(b.Last))
	}
	return -1
}

// Name returns the name of a set or chain.
func (k Key) Name() string {
	n, _ := k.Detail.value().(name)
	return string(n)
}

// Single reports whether a key is of an element that can be read by the key alone.
func (k Key) Single() bool { return k.Kind == KindElement && !k.Set.Interval && !k.Set.Dynamic() }

// Range returns the range of addresses of an element of a set with ranges; ok is false for all others.
func (k Key) Range() (r Range, ok bool) {
	r, ok = k.Detail.value().(Range)
	return r, ok
}

// second returns the second address of an element's key.
func (k Key) second() netip.Addr {
	if a, ok := k.Detail.value().(netip.Addr); ok {
		return a
	}
	return unpacked(k.Family, k.Addr)
}

// WithSecond returns the key with a second address.
func (k Key) WithSecond(a netip.Addr) Key {
	k.Detail = Detail{}
	if packed(a) != k.Addr {
		k.Detail = detail(a)
	}
	return k
}

// Within returns the key for a prefix as its range.
func (k Key) Within(p netip.Prefix) Key {
	p = p.Masked()
	return k.withRange(Range{p.Addr(), model.Last(p)})
}

func (k Key) withRange(r Range) Key {
	k.Detail = detail(r)
	return k
}

// Prefix returns the prefix given to Within; the zero value for other keys.
func (k Key) Prefix() netip.Prefix {
	if r, has := k.Range(); has {
		return r.prefix()
	}
	return netip.Prefix{}
}

// prefix returns a range as a prefix; the zero value if it is not one.
func (r Range) prefix() netip.Prefix {
	for bits := r.First.BitLen(); bits >= 0; bits-- {
		if p := netip.PrefixFrom(r.First, bits); p.Masked() == p && model.Last(p) == r.Last {
			return p
		}
	}
	return netip.Prefix{}
}

// TableKey names a table.
func TableKey(f model.Family) Key { return Key{Kind: KindTable, Family: f} }

// ChainKey names a chain.
func ChainKey(f model.Family, n string) Key {
	return Key{Kind: KindChain, Family: f, Detail: detail(name(n))}
}

// SetKey names a set or map.
func SetKey(f model.Family, n string) Key {
	return Key{Kind: KindSet, Family: f, Detail: detail(name(n))}
}

// AddrPortKey names the element for an address and port.
func AddrPortKey(set *Set, proto model.Proto, at netip.AddrPort) Key {
	return Key{Kind: KindElement, Family: model.FamilyOf(at.Addr()), Set: set, Proto: proto, Port: at.Port(), Addr: packed(at.Addr())}
}

// AddrPort returns the address and port given to AddrPortKey.
func (k Key) AddrPort() netip.AddrPort { return netip.AddrPortFrom(unpacked(k.Family, k.Addr), k.Port) }

// PortKey names the element for a port without address.
func PortKey(set *Set, f model.Family, proto model.Proto, port uint16) Key {
	return Key{Kind: KindElement, Family: f, Set: set, Proto: proto, Port: port}
}

// AddrKey names the element for an address alone.
func AddrKey(set *Set, a netip.Addr) Key {
	return Key{Kind: KindElement, Family: model.FamilyOf(a), Set: set, Addr: packed(a)}
}

// packed returns the bytes of an address, IPv4 in the first four.
func packed(a netip.Addr) (b [16]byte) {
	if a.Is4() {
		v4 := a.As4()
		copy(b[:], v4[:])
		return b
	}
	return a.As16()
}

// unpacked is the reverse of packed.
func unpacked(f model.Family, b [16]byte) netip.Addr {
	if f == model.IPv4 {
		return netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.AddrFrom16(b)
}

// FamilyName returns a family's name in nft.
func FamilyName(f model.Family) string {
	if f == model.IPv4 {
		return "ip"
	}
	return "ip6"
}

// keyText spells the fields of a key; number is the text of Number.
func keyText(f model.Family, key []Field, number string) string {
	parts := make([]string, len(key))
	for i, k := range key {
		switch k {
		case Daddr:
			parts[i] = FamilyName(f) + " daddr"
		case Saddr:
			parts[i] = FamilyName(f) + " saddr"
		case L4Proto:
			parts[i] = "meta l4proto"
		case CtProto:
			parts[i] = "ct original protocol"
		case CtID:
			parts[i] = "ct id"
		case Dport:
			parts[i] = "th dport"
		case Sport:
			parts[i] = "th sport"
		case Number:
			parts[i] = number
		case CtSaddr:
			parts[i] = "ct original " + FamilyName(f) + " saddr"
		case CtDaddr:
			parts[i] = "ct original " + FamilyName(f) + " daddr"
		case hash1, hash2:
			parts[i] = fmt.Sprintf("jhash %s mod %d seed 0x%x", keyText(f, hashedFields, ""), uint32(hashValues), k-hash1+1)
		}
	}
	return strings.Join(parts, " . ")
}

// Describe spells the content of an object, as nft would.
func Describe(k Key, v Value) string {
	switch {
	case k.Kind == KindElement:
		return k.Text(v)
	case k.Kind == KindForeign:
		return "not written by Tandem"
	case k.Kind != KindChain:
		return k.String()
	case Opaque(k, v):
		return "rules that Tandem did not write, or in another order"
	}
	var parts []string
	if h := v.Body.Chain.Hook; h.Type != "" {
		parts = append(parts, h.String())
	}
	for _, r := range v.Body.Chain.Rules {
		parts = append(parts, r.Text(k.Family))
	}
	return strings.Join(parts, "\n")
}

// Opaque reports whether an object is a chain of which only a digest is known, or a foreign
// element.
func Opaque(k Key, v Value) bool {
	switch k.Kind {
	case KindForeign:
		return true
	case KindChain:
		return v.Body == nil || v.Body.Chain == nil || len(v.Body.Chain.Rules) == 0
	}
	return false
}

// keyRecord is a Key in JSON. At most one of the last four is set: the Detail.
type keyRecord struct {
	Kind   Kind
	Family model.Family
	Proto  model.Proto
	Port   uint16
	Slot   uint16
	Set    string `json:",omitempty"`
	Addr   [16]byte

	Name   string     `json:",omitempty"`
	Raw    []byte     `json:",omitempty"`
	Range  *Range     `json:",omitempty"`
	Second netip.Addr `json:",omitzero"`
}

// MarshalJSON writes the form that Table.DecodeKey reads.
func (k Key) MarshalJSON() ([]byte, error) {
	r := keyRecord{Kind: k.Kind, Family: k.Family, Proto: k.Proto, Port: k.Port, Slot: k.Slot, Addr: k.Addr}
	if k.Set != nil {
		r.Set = k.Set.Name
	}
	switch d := k.Detail.value().(type) {
	case name:
		r.Name = string(d)
	case rawKey:
		r.Raw = []byte(d)
	case netip.Addr:
		r.Second = d
	case Range:
		r.Range = &d
	}
	return json.Marshal(r)
}

// DecodeKey is the reverse of Key.MarshalJSON.
func (t *Table) DecodeKey(text []byte) (k Key, err error) {
	var r keyRecord
	if err := json.Unmarshal(text, &r); err != nil {
		return k, err
	}
	k = Key{Kind: r.Kind, Family: r.Family, Proto: r.Proto, Port: r.Port, Slot: r.Slot, Addr: r.Addr}
	if r.Family > model.IPv6 {
		return k, fmt.Errorf("family %d", r.Family)
	}
	if r.Set != "" {
		if k.Set = t.named[r.Set]; k.Set == nil {
			return k, fmt.Errorf("table %s has no set %s", t.Name, r.Set)
		}
	}
	if (k.Kind == KindElement) != (k.Set != nil) && k.Kind != KindForeign {
		return k, fmt.Errorf("a key of kind %d with set %q", k.Kind, r.Set)
	}
	switch {
	case r.Name != "":
		k.Detail = detail(name(r.Name))
	case r.Raw != nil:
		k.Detail = detail(rawKey(r.Raw))
	case r.Second.IsValid():
		k.Detail = detail(r.Second)
	case r.Range != nil:
		k.Detail = detail(*r.Range)
	}
	return k, nil
}
