// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"strings"

	"github.com/tandem-proxy/tandem/core/dataplane"
)

var _ dataplane.Neighbour = (*Driver)(nil)

// Others implements dataplane.Neighbour.
func (d *Driver) Others(ctx context.Context) (texts []string, err error) {
	err = d.ns.Do(func() error {
		texts, err = d.tools.Others(ctx, d.families, func(chain string) bool { return strings.HasPrefix(chain, "KUBE-") })
		return err
	})
	return texts, err
}
