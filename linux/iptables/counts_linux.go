// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

var _ dataplane.ConnectionCounter = (*backend)(nil)

// Connections implements dataplane.ConnectionCounter by the counters that iptables has of each
// rule: only first packets of connections meet the nat table. A chain that is written anew
// begins with none.
func (b *backend) Connections(ctx context.Context, found func(dataplane.Connections)) error {
	for _, f := range b.driver.families {
		err := b.driver.tools.Counts(ctx, f, xtables.NAT, func(chain string, r xtables.Line, packets uint64) {
			if at, proto, ok := dispatches(f, chain, r); ok {
				found(dataplane.Connections{Proto: proto, At: at, New: packets})
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

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
