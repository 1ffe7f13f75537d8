// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/conformance"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// check is a row of a packet table as it is tried; had is what its client reached in
// its last row with affinity.
func check(net *lab.Net, s *conformance.Scenario, row conformance.Packet, had netip.AddrPort) lab.Check {
	c := lab.Check{
		Host: row.From == "host", Src: row.Src, Proto: row.Proto, To: row.To, Want: row.Expect.Outcome(),
		SessionAffinity: row.Expect.SessionAffinity, Real: hasAddress(net, s, row.To.Addr()),
	}
	if row.Expect.Same {
		c.First = had
	}
	return c
}

// hasAddress reports whether a machine of the lab has an address, by setAddresses too.
func hasAddress(net *lab.Net, s *conformance.Scenario, a netip.Addr) bool {
	if _, placed := net.PlaceOf(a); placed || a.IsLoopback() {
		return true
	}
	return slices.ContainsFunc(s.Machine.Addresses, func(x model.LocalAddress) bool { return x.Prefix.Addr() == a }) ||
		slices.ContainsFunc(s.Shared, func(p netip.Prefix) bool { return p.Addr() == a })
}
