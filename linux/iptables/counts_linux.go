// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Connections reads the counters that iptables has of each rule: only first packets of
// connections meet the nat table. A chain that is written anew begins with none.
func (b *backend) Connections(ctx context.Context, endpoints bool, found func(dataplane.Connections)) (counted bool, err error) {
	if endpoints {
		return false, nil
	}
	for _, f := range b.driver.families {
		err := b.driver.tools.Counts(ctx, f, xtables.NAT, func(chain string, r xtables.Line, packets uint64) {
			if at, proto, ok := dispatches(f, chain, r); ok {
				found(dataplane.Connections{Proto: proto, At: at, New: packets})
			}
		})
		if err != nil {
			return true, err
		}
	}
	return true, nil
}
