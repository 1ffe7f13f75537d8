// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// dispatches returns the frontend of a rule that leads to the chains of a port.
func dispatches(f model.Family, chain string, l xtables.Line) (at netip.AddrPort, proto model.Proto, ok bool) {
	if classOf(chain) != shared {
		return at, proto, false
	}
	r := l.Rule()
	if classOf(r.Chain()) != whole || r.Ports.First == 0 || r.Ports.First != r.Ports.Last {
		return at, proto, false
	}
	addr := f.Unspecified()
	if r.Dst.Prefix.IsValid() {
		addr = r.Dst.Prefix.Addr()
	}
	return netip.AddrPortFrom(addr, r.Ports.First), r.Proto, true
}
