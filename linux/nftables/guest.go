package nftables

import (
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// A guest is another mode that keeps tables of its own here, of the same sets,
// statements and elements (linux/userspace). It names its objects by these
// functions, and a Driver of its own (OpenTable) does the rest.

// TableObject returns the table of a family.
func TableObject(f model.Family) (Key, Value) {
	return tableKey(f), Value{Body: &Body{Comment: tableComment}}
}

// SetObject returns a set or a map, without elements.
func SetObject(f model.Family, id SetID) (Key, Value) {
	return setKey(f, id.String()), Value{Body: &Body{Set: shapeOf(f, sets[id].Set)}}
}

// ChainObject returns a chain with its rules.
func ChainObject(f model.Family, name string, h Hook, rules []Rule) (Key, Value) {
	return chainKey(f, name), Value{Body: &Body{Chain: newChain(f, h, rules)}}
}

// Equal reports whether two values of one key are the same to the kernel and to
// who lists it.
func (v Value) Equal(o Value) bool { return v.equal(o) }

// Entrance returns the hook of a chain that rewrites destinations.
func Entrance(p Point) Hook { return natHook(p) }

// Entry is an element in the terms of Services. What its set does not have in its
// keys, or give, has the zero value.
type Entry struct {
	Set     SetID
	Family  model.Family
	Proto   model.Proto
	At      netip.AddrPort // of the unspecified address where the set's keys have none
	From    netip.Prefix   // of Allowed
	To      netip.AddrPort // of maps that give an endpoint
	Comment string         // 251 bytes at most
}

// Object returns the element.
func (e Entry) Object() (Key, Value) {
	k := Key{Kind: KindElement, Family: e.Family, Set: e.Set, Proto: e.Proto, Port: e.At.Port()}
	if sets[e.Set].key[0] == daddr {
		k.Addr = packed(e.At.Addr())
	}
	if e.Set == Allowed {
		k.Rest = within(e.From)
	}
	v := Value{}
	if e.To.IsValid() && sets[e.Set].data == endpoint {
		v = endpointValue(e.To)
	}
	if e.Comment != "" {
		v.Body = &Body{Comment: e.Comment}
	}
	return k, v
}

// EntryOf is the reverse of Entry.Object. It is false for objects that Object does
// not make.
func EntryOf(k Key, v Value) (e Entry, ok bool) {
	if k.Kind != KindElement || sets[k.Set].data == verdict {
		return e, false
	}
	e = Entry{Set: k.Set, Family: k.Family, Proto: k.Proto}
	e.At = netip.AddrPortFrom(k.Family.Unspecified(), k.Port)
	if sets[k.Set].key[0] == daddr {
		e.At = netip.AddrPortFrom(unpacked(k.Family, k.Addr), k.Port)
	}
	if first, last, has := k.bounds(); has {
		if e.From = prefixOf(first, last); !e.From.IsValid() {
			return e, false
		}
	}
	if sets[k.Set].data == endpoint {
		e.To = v.endpoint(k.Family)
	}
	if v.Body != nil {
		e.Comment = v.Body.Comment
	}
	again, same := e.Object()
	return e, again == k && same.equal(v)
}
