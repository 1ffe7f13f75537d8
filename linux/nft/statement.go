// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// Rule is one rule: statements from left to right, where a match that fails
// ends it.
type Rule struct {
	Statements []Statement
	Comment    string
}

// NewRule makes a rule without a comment.
func NewRule(s ...Statement) Rule { return Rule{Statements: s} }

// Statement is one part of a rule. There is one description of rules, as values of
// the types below: text, netlink messages and evaluation are all derived from it.
type Statement interface {
	text(model.Family) string // as nft spells it (statement_text.go)
	encode(*encoder)          // as netlink expressions (statement_encode.go)
	// eval changes a packet as the statement does, and where it goes; or returns the steps it may take,
	// where there may be several (statement_eval.go).
	eval(*Sim, *step) []step
}

// CtStates are states of connection tracking.
type CtStates uint32

// The states that rules match.
const (
	CtInvalid CtStates = 1 << 0      // NF_CT_STATE_INVALID_BIT
	CtKnown   CtStates = 1<<1 | 1<<2 // established, related: NF_CT_STATE_BIT of IP_CT_ESTABLISHED, IP_CT_RELATED
	CtNew     CtStates = 1 << 3      // NF_CT_STATE_BIT(IP_CT_NEW)
)

// Matches.
type (
	// SourceIn matches senders in a prefix: "ip saddr".
	SourceIn struct{ Prefix netip.Prefix }

	// DestinationIn matches packets to a prefix: "ip daddr".
	DestinationIn struct {
		Prefix netip.Prefix
		Not    bool
	}

	// FibLocal matches packets to an address of this host: "fib daddr type local".
	FibLocal struct{ Not bool }

	// IifName matches packets that came in by an interface, or by any whose name
	// starts so.
	IifName struct {
		Name   string
		Prefix bool
	}

	// L4ProtoIs matches packets of one protocol: "meta l4proto".
	L4ProtoIs struct{ Proto model.Proto }

	// MarkHas matches packets whose mark has the bit: "meta mark & bit != 0".
	MarkHas struct {
		Bit uint32
		Not bool
	}

	// CtState matches packets in one of the states.
	CtState struct{ States CtStates }

	// CtDNAT matches connections whose destination was rewritten, by us or by
	// others: "ct status dnat".
	CtDNAT struct{ Not bool }

	// NotSYN matches TCP packets that open no connection: "tcp flags ! syn".
	NotSYN struct{}

	// Lookup matches packets whose key is in a set: "@set".
	Lookup struct {
		Set *Set
		Not bool
	}
)

// Statements that change a packet, or a set.
type (
	// SetMark and ClearMark change one bit of the packet's mark: "meta mark set".
	SetMark   struct{ Bit uint32 }
	ClearMark struct{ Bit uint32 }

	// SetAddr writes what a map has for the packet, if it has anything, over one of
	// the packet's addresses, Saddr or Daddr: "ip daddr set ... map @map".
	SetAddr struct {
		Field  Field
		Map    *Set
		Number Numgen
	}

	// RestoreSource gives the packet the source again that it came with: "ip saddr
	// set ct original ip saddr".
	RestoreSource struct{}

	// Update has a set or map keep the packet's key, for a time that restarts when
	// it does already. A map stores the destination with it, the first one that it is
	// given. It matches, unless there is no room.
	Update struct {
		Set     *Set
		Timeout time.Duration
	}

	// Delete ends what Update did.
	Delete struct{ Set *Set }

	// Over counts packets by their key in a set, and matches those beyond Burst and, since
	// then, Burst in each Period: "update @set { key limit rate over ... }". It does not match
	// where the set has no room for the key.
	Over struct {
		Set    *Set
		Burst  uint32
		Period time.Duration // a unit of nft: a second, a minute, an hour or a day
	}
)

// Verdicts, and NAT.
type (
	// Vmap does what a verdict map has for the packet, if it has anything.
	Vmap struct{ Map *Set }

	// Goto continues in another chain and does not come back.
	Goto struct{ Chain string }

	// Jump comes back when the other chain has not decided.
	Jump struct{ Chain string }

	// Return goes back to where the chain was jumped to from.
	Return struct{}

	// Reject answers with "port unreachable".
	Reject struct{}

	// Accept lets a packet pass the hook.
	Accept struct{}

	// Drop does not answer.
	Drop struct{}

	// DNAT rewrites the destination.
	DNAT struct{ To netip.AddrPort }

	// DNATMap rewrites the destination to what a map has for the packet, if it has
	// anything: "dnat ip addr . port to ... map @map".
	DNATMap struct {
		Map    *Set
		Number Numgen
	}

	// Masquerade rewrites the source to an address of this host.
	Masquerade struct{}
)

// Sim runs packets through objects as the kernel would, but follows every branch of a
// random choice.
type Sim struct {
	objects map[Key]Value
	host    *model.Host
	ranges  map[*Set][]Key
	hooks   map[attachment][]Key // chains in the order in which packets meet them
	asked   func(Key)            // of each element that a packet is looked up by; may be nil
}

// packet is a packet in flight.
type packet struct {
	oracle.Packet
	family model.Family
	mark   uint32
	dnat   bool           // Dst is an endpoint's
	origin *oracle.Packet // as it came
	kept   netip.Addr     // written to a map by Update
	forgot bool           // the client was removed from the map by Delete
	chance float64        // how likely it gets here
	met    int            // statements on its way
}

// step is one possible effect of a statement on a packet.
type step struct {
	packet
	to    direction
	chain string // for toChain and throughChain
}

type direction uint8

const (
	onward  direction = iota // to the next statement
	nowhere                  // no match: to the next rule
	toChain
	throughChain // and back
	returned     // from the chain: accepted if no chain jumped here
	accepted
	masqueraded
	rejected
	dropped
)
