// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/tandem-proxy/tandem/core/conformance"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// setAddresses gives the node the addresses of a scenario's machine, on a device
// that is down, which are local nevertheless.
func setAddresses(node *lab.Net, s *conformance.Scenario) error {
	m := s.Machine
	if len(m.APIServers) > 0 {
		return &Unfit{errors.New("the proxy reads a folder and is connected to no API server")}
	}
	var own []netip.Prefix
	for _, a := range m.Addresses {
		own = append(own, a.Prefix)
	}
	for link, all := range map[netlink.Link][]netip.Prefix{
		&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "network"}}: own,
		&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "shared"}}:   s.Shared,
	} {
		if len(all) == 0 {
			continue
		}
		if err := node.Do(lab.Node, func() error { return assign(link, all) }); err != nil {
			return &Unfit{fmt.Errorf("the node cannot have these addresses: %w", err)}
		}
	}
	return nil
}

func assign(link netlink.Link, all []netip.Prefix) error {
	if err := netlink.LinkAdd(link); err != nil {
		return fmt.Errorf("%s device: %w", link.Type(), err)
	}
	for _, p := range all {
		address := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
		if err := netlink.AddrAdd(link, address); err != nil {
			return fmt.Errorf("address %s: %w", p, err)
		}
	}
	return nil
}
