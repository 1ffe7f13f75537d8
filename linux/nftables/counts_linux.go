// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// counted is a backend whose frontends count connections.
type counted struct {
	dataplane.Backend
	families []model.Family
}

// Unwrap implements dataplane.Wrapper.
func (c counted) Unwrap() dataplane.Backend { return c.Backend }

// Connections implements dataplane.ConnectionCounter. Only first packets of
// connections meet the maps of frontends, each in one of them.
func (c counted) Connections(ctx context.Context, found func(dataplane.Connections)) error {
	for _, f := range c.families {
		pass := func(k nft.Key, v nft.Value) { found(connections(f, k, v)) }
		if err := table.Counts(ctx, f, pass, VIPs, VIPsPod, VIPsHost, NodePorts, NodePortsPod, NodePortsHost); err != nil {
			return err
		}
	}
	return nil
}

func connections(f model.Family, k nft.Key, v nft.Value) dataplane.Connections {
	at := netip.AddrPortFrom(f.Unspecified(), k.Port)
	if set := k.Set; set == VIPs || set == VIPsPod || set == VIPsHost {
		at = k.AddrPort()
	}
	return dataplane.Connections{Proto: k.Proto, At: at, New: v.Body.Counter.Packets}
}
