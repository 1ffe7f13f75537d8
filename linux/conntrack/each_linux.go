// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"fmt"

	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// Each calls each for all flows of the calling thread's network namespace, over a
// socket of its own.
func Each(ctx context.Context, each func(flows.Flow)) (err error) {
	dumps, err := netlink.Open()
	if err != nil {
		return fmt.Errorf("conntrack: %w", err)
	}
	defer func() { err = errors.Join(err, dumps.Close()) }()
	t := Table{dumps: dumps, writeFilter: filter.write}
	return t.dump(ctx, filter{both: true}, func(e *entry) { each(e.flow) })
}
