// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"

	"github.com/tandem-proxy/tandem/core/dataplane"
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
