package nftables

import (
	"net/netip"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// Rule is one rule: statements from left to right, where a match that fails
// ends it.
type Rule struct {
	Statements []Statement
	Comment    string
}

// Statement is one part of a rule. There is one description of our rules, as
// values of the types below; what is shown, loaded and simulated all comes from
// it.
type Statement interface {
	text(model.Family) string // as nft spells it (text.go)
	encode(*encoder)          // as netlink expressions (encode.go)
	eval(*Sim, packet) []step // what it does to a packet (sim.go)
}

// Matches.
type (
	// SourceIn matches senders in a prefix.
	SourceIn struct{ Prefix netip.Prefix }

	// DestinationIn matches packets to a prefix.
	DestinationIn struct{ Prefix netip.Prefix }

	// DestinationNotIn matches packets to anywhere but a prefix.
	DestinationNotIn struct{ Prefix netip.Prefix }

	// DestinationIsLocal matches packets to an address of this host.
	DestinationIsLocal struct{ Not bool }

	// InputIs matches packets that came in by an interface, or by any whose
	// name starts so.
	InputIs struct {
		Name   string
		Prefix bool
	}

	// ProtocolIs matches packets of one protocol.
	ProtocolIs struct{ Proto model.Proto }

	// MarkHas matches packets whose mark has the bit.
	MarkHas struct {
		Bit uint32
		Not bool
	}

	// IsNew matches the first packet of a connection.
	IsNew struct{}

	// IsKnown matches packets of established connections, and what belongs to one.
	IsKnown struct{}

	// IsInvalid matches packets that connection tracking makes no sense of, and
	// whose addresses therefore are not translated.
	IsInvalid struct{}

	// NotSYN matches TCP packets that open no connection.
	NotSYN struct{}

	// WasBalanced matches connections whose destination was rewritten, by us or
	// by others.
	WasBalanced struct{ Not bool }

	// In matches packets whose key is in a set.
	In struct {
		Set SetID
		Not bool
	}
)

// Effects.
type (
	// SetMark and ClearMark change one bit of the packet's mark.
	SetMark   struct{ Bit uint32 }
	ClearMark struct{ Bit uint32 }

	// Put writes what a map has for the packet, if it has anything, over one of the
	// packet's addresses, saddr or daddr. A number in the key is any of
	// First <= number < First+Count.
	Put struct {
		In           field
		Map          SetID
		Count, First uint32
	}

	// PutBackSource gives the packet the source again that it came with.
	PutBackSource struct{}

	// Remember has a set or map remember the packet, for a time that starts anew
	// when it does already. A map keeps the destination with it, the first one that
	// it was told. It matches, unless there is no room.
	Remember struct {
		Set SetID
		For time.Duration
	}

	// Forget ends what Remember did.
	Forget struct{ Set SetID }
)

// Ends of a rule.
type (
	// Look does what a verdict map has for the packet, if it has anything.
	Look struct{ Map SetID }

	// Goto continues in another chain and does not come back.
	Goto struct{ Chain string }

	// Jump comes back when the other chain has not decided.
	Jump struct{ Chain string }

	// Return goes back to where the chain was jumped to from.
	Return struct{}

	// Refuse answers that nobody listens.
	Refuse struct{}

	// Accept lets a packet pass the hook.
	Accept struct{}

	// Discard does not answer.
	Discard struct{}

	// SendTo rewrites the destination.
	SendTo struct{ To netip.AddrPort }

	// SendToFound rewrites the destination to what a map has for the packet, if it
	// has anything.
	SendToFound struct{ Map SetID }

	// SendToSlot rewrites the destination to what a map has under the packet's
	// front and a random number: First <= number < First+Count.
	SendToSlot struct {
		Map          SetID
		Count, First uint32
	}

	// Masquerade rewrites the source to an address of this host.
	Masquerade struct{}
)

// rule makes a rule without a comment.
func rule(s ...Statement) Rule { return Rule{Statements: s} }
