package relay

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// Policy is what a Relay answers. It is immutable.
type Policy struct {
	// On is the answer for each kind of sender.
	On [model.Origins]Answer

	// Restricted relays answer only clients inside Allow; others are refused.
	Restricted bool
	Allow      []netip.Prefix

	// Sticky is for how long a client that stays away is still remembered
	// (ClientIP affinity); 0 is no affinity.
	Sticky time.Duration

	// Draining endpoints get no new UDP sessions and keep those they have.
	Draining []netip.AddrPort
}

// Answer is what one kind of sender gets. Relays cannot be silent: to a
// TCP client Drop is Reject, a reset, and to a UDP client both are silence.
type Answer struct {
	Verdict   model.Verdict
	Endpoints []netip.AddrPort // for Balance: at least one
}

// Same returns the policy that gives the same answer to everybody.
func Same(a Answer) Policy {
	return Policy{On: [model.Origins]Answer{a, a, a}}
}

// Answer returns what a client gets.
func (p *Policy) Answer(from model.Origin, client netip.Addr) Answer {
	if p.Restricted && !slices.ContainsFunc(p.Allow, func(r netip.Prefix) bool { return r.Contains(client) }) {
		return Answer{Verdict: model.Drop}
	}
	return p.On[from]
}

// keeps reports whether a session with an endpoint may go on.
func (p *Policy) keeps(from model.Origin, client netip.Addr, endpoint netip.AddrPort) bool {
	a := p.Answer(from, client)
	return a.Verdict == model.Balance && slices.Contains(a.Endpoints, endpoint) || slices.Contains(p.Draining, endpoint)
}

// Equal reports whether two policies are the same.
func (p *Policy) Equal(o *Policy) bool {
	if p.Restricted != o.Restricted || p.Sticky != o.Sticky || !slices.Equal(p.Allow, o.Allow) || !slices.Equal(p.Draining, o.Draining) {
		return false
	}
	for i := range p.On {
		if p.On[i].Verdict != o.On[i].Verdict || !slices.Equal(p.On[i].Endpoints, o.On[i].Endpoints) {
			return false
		}
	}
	return true
}
