// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// keyRecord is a Key in JSON. Of the last four one is set at most: they are the Detail.
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

// MarshalJSON implements json.Marshaler. Table.DecodeKey reads it.
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
