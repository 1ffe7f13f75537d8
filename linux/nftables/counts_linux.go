// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// counted is a backend whose frontends count connections.
type counted struct {
	dataplane.Backend
	options Options
	counts  *nft.Counts
}

func withCounts(b dataplane.Backend, o Options) (dataplane.Backend, error) {
	c, err := nft.OpenCounts(table)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return counted{b, o, c}, nil
}

var _ dataplane.Backend = counted{}

func (c counted) Close() error { return errors.Join(c.counts.Close(), c.Backend.Close()) }

// Connections: only first packets of connections meet the maps of frontends, each in one of
// them.
func (c counted) Connections(ctx context.Context, endpoints bool, found func(dataplane.Connections)) (counted bool, err error) {
	sets := Options{}.counted()
	if endpoints {
		sets = slotSets()
	}
	if endpoints && !c.options.CountEndpoints {
		return false, nil
	}
	for _, f := range c.options.families() {
		pass := func(k nft.Key, v nft.Value) { found(connections(f, k, v)) }
		if err := c.counts.Read(ctx, f, pass, sets...); err != nil {
			return true, err
		}
	}
	return true, nil
}

func connections(f model.Family, k nft.Key, v nft.Value) dataplane.Connections {
	c := dataplane.Connections{Proto: k.Proto, At: netip.AddrPortFrom(f.Unspecified(), k.Port), New: v.Body.Counter.Packets}
	if !slices.Contains([]*nft.Set{setNodePorts, setNodePortsPod, setNodePortsHost, setNodeSlots}, k.Set) {
		c.At = k.AddrPort()
	}
	if k.Set.Data == nft.DataEndpoint {
		c.Endpoint = v.Endpoint(f)
	}
	return c
}
