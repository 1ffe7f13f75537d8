// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// Entry is an element in terms of Services. Fields that its set does not have are
// zero.
type Entry struct {
	Set     *Set
	Family  model.Family
	Proto   model.Proto
	At      netip.AddrPort // of the unspecified address where the set's keys have none
	From    netip.Prefix   // of sets with ranges
	To      netip.AddrPort // of maps that give an endpoint
	Comment string         // 251 bytes at most
}

// Object returns the element.
func (e Entry) Object() (Key, Value) {
	k := Key{Kind: KindElement, Family: e.Family, Set: e.Set, Proto: e.Proto, Port: e.At.Port()}
	if e.Set.Key[0] == Daddr {
		k.Addr = packed(e.At.Addr())
	}
	if e.Set.rangeBehind() {
		k = k.Within(e.From)
	}
	v := Value{}
	if e.To.IsValid() && e.Set.Data == DataEndpoint {
		v = EndpointValue(e.To)
	}
	if e.Comment != "" {
		v.Body = &Body{Comment: e.Comment}
	}
	return k, v
}

// EntryOf is the reverse of Entry.Object. It is false for objects that Object does
// not return.
func EntryOf(k Key, v Value) (e Entry, ok bool) {
	if k.Kind != KindElement || k.Set.Data == DataVerdict {
		return e, false
	}
	e = Entry{Set: k.Set, Family: k.Family, Proto: k.Proto}
	e.At = netip.AddrPortFrom(k.Family.Unspecified(), k.Port)
	if k.Set.Key[0] == Daddr {
		e.At = netip.AddrPortFrom(unpacked(k.Family, k.Addr), k.Port)
	}
	if r, has := k.Range(); has {
		if e.From = r.prefix(); !e.From.IsValid() {
			return e, false
		}
	}
	if k.Set.Data == DataEndpoint {
		e.To = v.Endpoint(k.Family)
	}
	if v.Body != nil {
		e.Comment = v.Body.Comment
	}
	again, same := e.Object()
	return e, again == k && same.Equal(v)
}
