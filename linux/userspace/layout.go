// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"unique"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/linux/nft"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Reserved ports of the relay address: nothing listens on the first, and sockets on
// the second drop every packet.
const (
	rejectPort = 1
	dropPort   = 2
)

// relayAddr returns the address on lo that relays listen on. It is local to the
// host: link-local in IPv4, of a unique local prefix in IPv6.
func relayAddr(f model.Family) netip.Addr {
	if f == model.IPv4 {
		return netip.AddrFrom4([4]byte{169, 254, 84, 1})
	}
	return netip.MustParseAddr("fd74:616e:6465:6d::1")
}

func relayAddrPort(f model.Family, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(relayAddr(f), port)
}

// Kind is the kind of an object.
type Kind uint8

// The kinds of object.
const (
	kindAddress    Kind = iota // the address of the relays
	kindDropPort               // the sockets on its drop port
	KindTable                  // the table with the chains
	KindChain                  // an owned chain with its fixed rules
	kindRelay                  // a listener and its endpoints
	kindEntry                  // a rule for one frontend
	kindJump                   // a jump from a built-in chain to an owned one
	kindUnexpected             // a rule in one of our chains that Tandem did not write
)

// Key names an object.
type Key struct {
	Kind   Kind
	Family model.Family
	Proto  model.Proto    // of entries; 0 for all
	Late   bool           // of jumps: after all foreign rules
	Chain  string         // of chains, entries, jumps and unexpected rules
	At     netip.AddrPort // of entries: the frontend; port 0 for all
	From   netip.Prefix   // of entries: the only clients; the zero value for all
	Relay  RelayID        // of relays
	Rest   string         // of unexpected rules: the text, and its number among equals
}

// Value is the content of an object.
type Value struct {
	To     Target        // of entries
	Rules  xtables.Rules // of chains and jumps
	Digest uint64        // hash of the same in nftables, where only that is read back; or 0
	Policy *relay.Policy // of relays; never changed
}

// UsesRelay reports whether an object is a rule that leads to the relay of a key. Such a relay is
// not deleted: connections would be refused until the rule leads elsewhere.
func UsesRelay(k Key, v Value, relay Key) bool {
	return k.Kind == kindEntry && relay.Kind == kindRelay && k.Family == relay.Family && v.To.Do == toRelay && v.To.Relay == relay.Relay
}

// RelayID names a relay: the port that it serves, and the policy by which its endpoints are
// chosen. So a rule leads to endpoints of its frontend's policy at any time, whichever
// other frontends come and go: relays change before the rules do. Where both policies have the
// same endpoints there are two relays. The zero value names none. It takes a word: a Service
// may have 30,000 entries, and each names its relay.
type RelayID struct{ name unique.Handle[relayName] }

type relayName struct {
	port   model.PortID
	policy model.TrafficPolicy
}

func relayOf(port model.PortID, policy model.TrafficPolicy) RelayID {
	return RelayID{unique.Make(relayName{port, policy})}
}

func (id RelayID) parts() (name relayName) {
	if id != (RelayID{}) {
		name = id.name.Value()
	}
	return name
}

// Port is the port that the relay serves.
func (id RelayID) Port() model.PortID { return id.parts().port }

func (id RelayID) compare(o RelayID) int {
	if id == o {
		return 0
	}
	a, b := id.parts(), o.parts()
	return cmp.Or(a.port.Compare(b.port), cmp.Compare(a.policy, b.policy))
}

// Target is where an entry leads.
type Target struct {
	Do    Do
	Relay RelayID // for toRelay; otherwise it names only the port, if there is one
}

// Do is the kind of a Target.
type Do uint8

// The kinds of target.
const (
	toRelay Do = iota
	Reject     // answer that nothing listens
	Drop       // do not answer
	Accept     // inside the source ranges
	unknown    // a rule that we never write
)

func (v Value) equal(o Value) bool {
	return v.To == o.To && v.sameRules(o) &&
		(v.Policy == o.Policy || v.Policy != nil && o.Policy != nil && v.Policy.Equal(o.Policy))
}

func (v Value) sameRules(o Value) bool {
	if v.Digest != 0 && o.Digest != 0 {
		return v.Digest == o.Digest
	}
	return v.Rules == o.Rules
}

// localSuffix marks the relay of policy Local in the comments of its rules. Programs before this
// layout numbered the pools of a port in the order of its frontends, and read it as the second
// one: that is the local one's number but where no frontend, or only later ones, have policy Cluster.
const localSuffix = ", pool 2"

// comment names the relay in the comments of its rules.
func (id RelayID) comment() string { return id.named(localSuffix) }

// String names the relay for people.
func (id RelayID) String() string { return id.named(", local endpoints") }

// named returns the name of the port, with a suffix for policy Local.
func (id RelayID) named(local string) string {
	name := id.parts()
	if name.policy == model.Local {
		return name.port.String() + local
	}
	return name.port.String()
}

// String names the object for people, for instance in errors.
func (k Key) String() string {
	switch k.Kind {
	case kindAddress:
		return "address " + relayAddr(k.Family).String()
	case kindDropPort:
		return k.Family.String() + " sink"
	case KindTable:
		return k.Family.String() + " table"
	case KindChain:
		return fmt.Sprintf("%s chain %s", k.Family, k.Chain)
	case kindRelay:
		return fmt.Sprintf("relay %s %s %s", k.Relay, k.Relay.Port().Proto, k.Relay.Port().Family)
	case kindEntry:
		if k.From.IsValid() {
			return fmt.Sprintf("%s entry %s %s from %s", k.Chain, k.Proto, k.At, k.From)
		}
		return fmt.Sprintf("%s entry %s %s", k.Chain, k.Proto, k.At)
	case kindJump:
		return fmt.Sprintf("%s jump in %s", k.Family, k.Chain)
	}
	return fmt.Sprintf("unexpected rule in %s: %s", k.Chain, k.Rest)
}

// sorted returns the keys of some kinds in a fixed order.
func sorted(objects map[Key]Value, kinds ...Kind) []Key {
	var keys []Key
	for k := range maps.Keys(objects) {
		if slices.Contains(kinds, k.Kind) {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, compareKeys)
	return keys
}

func compareKeys(a, b Key) int {
	return cmp.Or(
		cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Family, b.Family), cmp.Compare(a.Chain, b.Chain),
		a.At.Compare(b.At), cmp.Compare(a.Proto, b.Proto), a.From.Addr().Compare(b.From.Addr()), cmp.Compare(a.From.Bits(), b.From.Bits()),
		a.Relay.compare(b.Relay), behind(a)-behind(b), cmp.Compare(a.Rest, b.Rest),
	)
}

func behind(k Key) int {
	if k.Late {
		return 1
	}
	return 0
}

// edit is one change to an object of a table.
type edit struct {
	verb  ledger.Verb
	key   Key
	rules []xtables.Rule // as wanted
	have  installed      // as installed
}

// found is an object as it was read.
type found struct {
	Value
	installed
}

// installed is a rule as it is in its table.
type installed struct {
	printed xtables.Rules // in iptables
	foreign nft.Key       // in nftables, of unexpected elements; other keys follow from the object's

	relay RelayID // the target and its port; zero for none
	port  uint16
}

// inTable reports whether an object is part of a table.
func inTable(k Key) bool {
	return k.Kind != kindAddress && k.Kind != kindDropPort && k.Kind != kindRelay
}
