package userspace

import (
	"fmt"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Kind is the kind of an object.
type Kind uint8

// The kinds of object.
const (
	KindShelter Kind = iota // the address of the relays
	KindSink                // what listens on its silent port
	KindTable               // what holds the chains
	KindChain               // a chain of ours with its fixed rules
	KindRelay               // a listener and its endpoints
	KindEntry               // a rule for one front
	KindJump                // the way into our chains, in a chain of the system
	KindAlien               // a rule in one of our chains that we cannot have written
)

// Key names an object.
type Key struct {
	Kind   Kind
	Family model.Family
	Chain  string         // of chains, entries, jumps and aliens
	Proto  model.Proto    // of entries; 0 for all
	At     netip.AddrPort // of entries: the front; port 0 for all
	From   netip.Prefix   // of entries: the only clients; the zero value for all
	Relay  RelayID        // of relays
	Late   bool           // of jumps: behind the rules of all others
	Rest   string         // of aliens: the rule's text, and its number among equals
}

// Value is the content of an object.
type Value struct {
	To     Target        // of entries
	Rules  xtables.Rules // of chains and jumps
	Digest uint64        // of the same in nftables, where it is all that can be read back; or 0
	Policy *relay.Policy // of relays; never changed
}

// RelayID names a relay: one pool of a port, counted from 0 in the order of
// Port.Pools.
type RelayID struct {
	Port model.PortID
	Pool uint8
}

// Target is where an entry leads.
type Target struct {
	Do    Do
	Relay RelayID // for ToRelay; for all others only whose entry it is, if one port's
}

// Do is the kind of a Target.
type Do uint8

// The kinds of target.
const (
	ToRelay Do = iota
	Refuse     // answer that nobody listens
	Silence    // do not answer
	Admit      // not refused here
	unknown    // nothing that we write
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

// String names the relay for people, and for the comments of its rules.
func (id RelayID) String() string {
	if id.Pool > 0 {
		return fmt.Sprintf("%s, pool %d", id.Port, id.Pool+1)
	}
	return id.Port.String()
}

// String names the object for people, for instance in errors.
func (k Key) String() string {
	switch k.Kind {
	case KindShelter:
		return "address " + Shelter(k.Family).String()
	case KindSink:
		return k.Family.String() + " sink"
	case KindTable:
		return k.Family.String() + " table"
	case KindChain:
		return fmt.Sprintf("%s chain %s", k.Family, k.Chain)
	case KindRelay:
		return fmt.Sprintf("relay %s %s %s", k.Relay, k.Relay.Port.Proto, k.Relay.Port.Family)
	case KindEntry:
		return fmt.Sprintf("%s entry %s %s", k.Chain, k.Proto, k.At)
	case KindJump:
		return fmt.Sprintf("%s jump in %s", k.Family, k.Chain)
	}
	return fmt.Sprintf("foreign rule in %s: %s", k.Chain, k.Rest)
}

// Shelter returns the address on lo that relays listen on. It is local to the
// host: link-local in IPv4, of a unique local prefix in IPv6.
func Shelter(f model.Family) netip.Addr {
	if f == model.IPv4 {
		return netip.AddrFrom4([4]byte{169, 254, 84, 1})
	}
	return netip.MustParseAddr("fd74:616e:6465:6d::1")
}

func shelterPort(f model.Family, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(Shelter(f), port)
}
