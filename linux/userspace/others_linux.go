// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"slices"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/linux/nft"
)

var _ dataplane.Neighbour = (*Driver)(nil)

// Others implements dataplane.Neighbour, in the network namespace of the calling
// thread.
func (d *Driver) Others(ctx context.Context) ([]string, error) {
	if t, ok := d.table.(natTable); ok {
		return t.commands.Others(ctx, t.commands.Families, func(chain string) bool {
			return chain == chainLast || slices.Contains(ourChains(), chain)
		})
	}
	return nft.Others(ctx, nftTable.Name)
}
