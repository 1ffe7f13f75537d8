// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	vns "github.com/vishvananda/netns"

	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// link is the name of a node's interface to the API server.
const link = "kube-api"

// Join gives the node of a lab a link to the API server. It is removed with the lab.
func (c *Cluster) Join(node *lab.Net) error {
	var there vns.NsHandle
	err := node.Do(lab.Node, func() (err error) {
		there, err = vns.Get()
		return err
	})
	if err != nil {
		return err
	}
	defer there.Close()
	n := c.nodes.Add(1)
	addr := netip.AddrFrom4([4]byte{172, 31, 1 + byte(n>>8), byte(n)})
	err = c.net.Do(lab.Node, func() error {
		veth := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("node%d", n)},
			PeerName:  link, PeerNamespace: netlink.NsFd(there),
		}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		return reach(veth.Name, addr)
	})
	if err != nil {
		return fmt.Errorf("link of the API server to a node: %w", err)
	}
	err = node.Do(lab.Node, func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(l, &netlink.Addr{IPNet: whole(addr)}); err != nil {
			return err
		}
		return reach(link, address)
	})
	if err != nil {
		return fmt.Errorf("link of a node to the API server: %w", err)
	}
	return nil
}

// reach brings a link up and routes an address over it.
func reach(name string, addr netip.Addr) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: whole(addr), Scope: netlink.SCOPE_LINK})
}

// whole is an address as a prefix of its own.
func whole(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}
