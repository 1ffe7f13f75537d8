// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/virtualserver"
)

var (
	_ dataplane.ConnectionCounter = (*tuned)(nil)
	_ dataplane.EndpointCounter   = (*tuned)(nil)
)

// Connections implements dataplane.ConnectionCounter.
func (t *tuned) Connections(_ context.Context, found func(dataplane.Connections)) error {
	return t.driver.connections(found)
}

// Endpoints implements dataplane.EndpointCounter.
func (t *tuned) Endpoints(ctx context.Context, found func(dataplane.Connections)) (counted bool, err error) {
	return true, t.driver.endpoints(ctx, found)
}

// endpoints passes the counters of destinations: a request for each virtual server that has
// had connections.
func (d *Driver) endpoints(ctx context.Context, found func(dataplane.Connections)) error {
	return d.eachCounted(func(c *virtualserver.Conn, s countedServer) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := c.CountsOf(s.id, func(at netip.AddrPort, n uint64) { s.count(dataplane.Connections{Endpoint: at, New: n}, found) })
		if errors.Is(err, virtualserver.ErrNoServer) {
			return nil // it went meanwhile
		}
		return err
	})
}

// connections passes the kernel's own counters of virtual servers: changes of destinations
// leave them as they are.
func (d *Driver) connections(found func(dataplane.Connections)) error {
	return d.eachCounted(func(_ *virtualserver.Conn, s countedServer) error {
		s.count(dataplane.Connections{New: s.n}, found)
		return nil
	})
}

// countedServer is a virtual server that has had n connections.
type countedServer struct {
	id   virtualserver.ID
	key  Key
	n    uint64
	node bool // at an address of this node
}

// eachCounted calls f for all of ours in the network namespace of the calling thread.
func (d *Driver) eachCounted(f func(*virtualserver.Conn, countedServer) error) error {
	own, err := nodeAddresses()
	if err != nil {
		return err
	}
	c, err := virtualserver.Open()
	if err != nil {
		return err
	}
	defer c.Close()
	var all []countedServer
	err = c.Counts(func(id virtualserver.ID, s virtualserver.Server, n uint64) {
		if k, known := d.marks.server(id); known && s.Flags&flagOwned != 0 && n > 0 {
			all = append(all, countedServer{id, k, n, slices.Contains(own, k.Dst.Addr())})
		}
	})
	for _, s := range all {
		if err != nil {
			break
		}
		err = f(c, s)
	}
	if err != nil {
		return fmt.Errorf("counters of IPVS: %w", err)
	}
	return nil
}

// count passes a count with its frontend. One at an address of this node is a node
// port's, or that of a Service that has this address, too.
func (s countedServer) count(n dataplane.Connections, found func(dataplane.Connections)) {
	n.Proto, n.At = s.key.Proto, s.key.Dst
	found(n)
	if s.node {
		n.At = netip.AddrPortFrom(model.FamilyOf(n.At.Addr()).Unspecified(), n.At.Port())
		found(n)
	}
}
