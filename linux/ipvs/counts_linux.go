// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/virtualserver"
)

var _ dataplane.ConnectionCounter = (*tuned)(nil)

// Connections implements dataplane.ConnectionCounter.
func (t *tuned) Connections(_ context.Context, found func(dataplane.Connections)) error {
	return t.driver.connections(found)
}

// connections passes the kernel's own counters of virtual servers, in the network namespace of
// the calling thread: changes of destinations leave them as they are. What goes to a virtual
// server by mark counts for the lowest frontend that leads there.
func (d *Driver) connections(found func(dataplane.Connections)) error {
	own, err := nodeAddresses()
	if err != nil {
		return err
	}
	c, err := virtualserver.Open()
	if err != nil {
		return err
	}
	defer c.Close()
	err = c.Counts(func(id virtualserver.ID, s virtualserver.Server, n uint64) {
		if k, known := d.marks.server(id); known && s.Flags&flagOwned != 0 && n > 0 {
			countAt(k, own, n, found)
		}
	})
	if err != nil {
		return fmt.Errorf("counters of IPVS: %w", err)
	}
	return nil
}

// countAt passes the count of a virtual server. One at an address of this node is a node
// port's, or that of a Service that has this address, too.
func countAt(k Key, own []netip.Addr, n uint64, found func(dataplane.Connections)) {
	found(dataplane.Connections{Proto: k.Proto, At: k.Dst, New: n})
	if slices.Contains(own, k.Dst.Addr()) {
		found(dataplane.Connections{Proto: k.Proto, At: netip.AddrPortFrom(model.FamilyOf(k.Dst.Addr()).Unspecified(), k.Dst.Port()), New: n})
	}
}
