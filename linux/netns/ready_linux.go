// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ready waits until everything carries packets. The kernel finishes some of its
// work later, in its own time: a link that is up on both sides still drops what
// is sent at first, and an IPv6 address is there before packets to it are taken
// in.
func (n *Net) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for place, addrs := range n.plan.all {
		for {
			waiting, err := n.spaces[place].unready(addrs)
			if err != nil {
				return fmt.Errorf("%s: %w", place, err)
			}
			if waiting == "" {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("%s: %s is not ready: %w", place, waiting, ctx.Err())
			case <-time.After(time.Millisecond):
			}
		}
	}
	return nil
}

// unready returns what is not ready yet, or nothing.
func (s *space) unready(addrs []netip.Addr) (what string, err error) {
	links, err := s.links.LinkList()
	if err != nil {
		return "", fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		if l.Type() == "veth" && l.Attrs().OperState != netlink.OperUp {
			return l.Attrs().Name, nil
		}
	}
	routes, err := s.links.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Table: unix.RT_TABLE_LOCAL}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return "", fmt.Errorf("list local routes: %w", err)
	}
	local := map[netip.Addr]bool{}
	for _, r := range routes {
		if r.Dst != nil {
			a, _ := netip.AddrFromSlice(r.Dst.IP)
			local[a] = true
		}
	}
	for _, a := range addrs {
		if a.Is6() && !local[a] {
			return a.String(), nil
		}
	}
	return "", nil
}
