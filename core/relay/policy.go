// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
)

// Mode is the name of the mode whose data plane this package is. How connections
// get to the relays differs between systems.
const Mode config.Mode = "userspace"

// Policy is what a Relay does with its clients. It is immutable.
type Policy struct {
	// Port is the Service port that the Relay serves; it names the Relay in
	// problems and logs and does not change.
	Port model.PortID

	// On is the Answer for each origin.
	On [model.Origins]Answer

	// Restricted relays serve only clients inside Allow; others are reset.
	Restricted bool
	Allow      []netip.Prefix

	// SessionAffinity is the timeout of ClientIP affinity; 0 is no affinity.
	SessionAffinity time.Duration

	// Draining endpoints get no new UDP sessions and keep those they have.
	Draining []netip.AddrPort
}

// Answer is the action for clients of one origin. A relay has accepted the connection
// already: for both Drop and Reject a TCP client gets a reset and a UDP client no
// answer.
type Answer struct {
	Verdict   model.Verdict
	Endpoints []netip.AddrPort // for Balance: at least one
}

// Same returns the policy that gives the same answer to every origin.
func Same(a Answer) Policy {
	return Policy{On: [model.Origins]Answer{a, a, a}}
}

// Answer returns the Answer for a client.
func (p *Policy) Answer(from model.Origin, client netip.Addr) Answer {
	if p.Restricted && !slices.ContainsFunc(p.Allow, func(r netip.Prefix) bool { return r.Contains(client) }) {
		return Answer{Verdict: model.Drop}
	}
	return p.On[from]
}

// keeps reports whether a UDP session with an endpoint may go on.
func (p *Policy) keeps(from model.Origin, client netip.Addr, endpoint netip.AddrPort) bool {
	a := p.Answer(from, client)
	return a.Verdict == model.Balance && slices.Contains(a.Endpoints, endpoint) || slices.Contains(p.Draining, endpoint)
}

// Equal reports whether two policies are the same.
func (p *Policy) Equal(o *Policy) bool {
	if p.Port != o.Port || p.Restricted != o.Restricted || p.SessionAffinity != o.SessionAffinity ||
		!slices.Equal(p.Allow, o.Allow) || !slices.Equal(p.Draining, o.Draining) {
		return false
	}
	for i := range p.On {
		if p.On[i].Verdict != o.On[i].Verdict || !slices.Equal(p.On[i].Endpoints, o.On[i].Endpoints) {
			return false
		}
	}
	return true
}
