// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/conformance"
	"github.com/tandem-proxy/tandem/core/model"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// check is a row of a packet table as it is tried; had is what its client reached in
// its sticky row before.
func (r *run) check(row conformance.Packet, had netip.AddrPort) lab.Check {
	c := lab.Check{
		Host: row.From == "host", Src: row.Src, Proto: row.Proto, To: row.To, Want: row.Expect.Outcome(),
		SessionAffinity: row.Expect.SessionAffinity, Real: r.real(row.To.Addr()),
	}
	if row.Expect.Same {
		c.First = had
	}
	return c
}

// real reports whether a machine has an address, as prepared by furnish.
func (r *run) real(a netip.Addr) bool {
	if _, placed := r.net.PlaceOf(a); placed || a.IsLoopback() {
		return true
	}
	return slices.ContainsFunc(r.scenario.Machine.Addresses, func(x model.LocalAddress) bool { return x.Prefix.Addr() == a }) ||
		slices.ContainsFunc(r.scenario.Shared, func(p netip.Prefix) bool { return p.Addr() == a })
}
