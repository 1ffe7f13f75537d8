// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// build makes the namespaces and joins them.
func (n *Net) build(ctx context.Context) error {
	v6 := false
	for _, addrs := range n.plan.all {
		v6 = v6 || slices.ContainsFunc(addrs, netip.Addr.Is6)
	}
	if v6 && !haveIPv6() {
		return errors.New("the plan has IPv6 addresses, but IPv6 is disabled in this kernel")
	}
	node, err := n.open(Node, append(everywhere(), router()...))
	if err != nil {
		return err
	}
	b := builder{Net: n, node: node, v6: v6}
	// The uplink comes first: where a link has no address of its own, as those of
	// pods, the kernel masquerades with the first one it finds.
	if err := b.crowd(Outside, uplink, n.plan.Outside); err != nil {
		return err
	}
	if err := node.assign(uplink, n.plan.Node); err != nil {
		return err
	}
	if err := node.defaultRoute(uplink, far, b.peerMAC(), v6); err != nil {
		return err
	}
	if err := b.crowd(Others, crosslink, n.plan.Others); err != nil {
		return err
	}
	if err := b.reach(crosslink, n.plan.Others); err != nil {
		return err
	}
	for _, pod := range n.plan.Pods {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := b.join(pod.Place, pod.Interface, pod.Addrs, everywhere()); err != nil {
			return err
		}
		if err := b.reach(pod.Interface, pod.Addrs); err != nil {
			return err
		}
	}
	return n.ready(ctx)
}

// builder joins places to the node.
type builder struct {
	*Net
	node  *space
	v6    bool
	count byte // links so far
	high  byte
}

// Next hops. They are on no interface: each side has the other's hardware
// address by heart.
var near, far = hop{4: "169.254.1.1", 6: "fe80::1"}, hop{4: "169.254.1.2", 6: "fe80::2"}

type hop map[int]string

func (b *builder) nodeMAC() net.HardwareAddr { return net.HardwareAddr{2, 0, 0, b.high, b.count, 1} }

func (b *builder) peerMAC() net.HardwareAddr { return net.HardwareAddr{2, 0, 0, b.high, b.count, 2} }

// join makes the namespace of a place and its link to the node, which is called
// name on the node's side and eth0 on the other.
func (b *builder) join(at Place, name string, addrs []netip.Addr, settings []sysctl) error {
	if b.count++; b.count == 0 {
		b.high++
	}
	s, err := b.open(at, settings)
	if err != nil {
		return err
	}
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: b.nodeMAC()},
		PeerName:  uplink, PeerHardwareAddr: b.peerMAC(), PeerNamespace: netlink.NsFd(s.ns),
	}
	if err := b.node.links.LinkAdd(veth); err != nil {
		return fmt.Errorf("link %s to %s: %w", name, at, err)
	}
	if err := b.node.up(name); err != nil {
		return err
	}
	if err := s.up(uplink); err != nil {
		return err
	}
	if err := s.assign(uplink, addrs); err != nil {
		return err
	}
	return s.defaultRoute(uplink, near, b.nodeMAC(), b.v6)
}

// crowd joins a place that stands for many machines.
func (b *builder) crowd(at Place, name string, addrs []netip.Addr) error {
	if err := b.join(at, name, addrs, append(everywhere(), crowd()...)); err != nil {
		return err
	}
	families := []int{netlink.FAMILY_V4}
	if b.v6 {
		families = append(families, netlink.FAMILY_V6)
	}
	for _, family := range families {
		if err := b.spaces[at].strangers(family); err != nil {
			return fmt.Errorf("routing rules of %s: %w", at, err)
		}
	}
	return nil
}

// strangers makes the addresses of one namespace strangers to each other:
// whatever is sent goes to the node first, as it would between machines. Else a
// server that is called by a client of the same place through the node would
// answer it directly, and nobody would undo the translation.
func (s *space) strangers(family int) error {
	own := netlink.NewRule()
	own.Family, own.Priority, own.Table = family, 100, unix.RT_TABLE_LOCAL
	out := netlink.NewRule()
	out.Family, out.Priority, out.Table, out.IifName = family, 10, unix.RT_TABLE_MAIN, "lo" // what is sent from here
	first := netlink.NewRule()
	first.Family, first.Priority, first.Table = family, 0, unix.RT_TABLE_LOCAL
	if err := s.links.RuleAdd(own); err != nil {
		return err
	}
	if err := s.links.RuleAdd(out); err != nil {
		return err
	}
	return s.links.RuleDel(first)
}

// reach gives the node routes to addresses behind a link.
func (b *builder) reach(name string, addrs []netip.Addr) error {
	link, err := b.node.links.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	for _, a := range addrs {
		if err := b.node.neighbour(link, a, b.peerMAC()); err != nil {
			return err
		}
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: whole(a), Scope: netlink.SCOPE_LINK}
		if err := b.node.links.RouteAdd(route); err != nil {
			return fmt.Errorf("route to %s by %s: %w", a, name, err)
		}
	}
	return nil
}

func (s *space) up(name string) error {
	link, err := s.links.LinkByName(name)
	if err == nil {
		err = s.links.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("link %s up: %w", name, err)
	}
	return nil
}

func (s *space) assign(name string, addrs []netip.Addr) error {
	link, err := s.links.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	for _, a := range addrs {
		addr := &netlink.Addr{IPNet: whole(a)}
		if a.Is6() {
			// No route to itself either: see strangers.
			addr.Flags = unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE
		}
		if err := s.links.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("address %s on %s: %w", a, name, err)
		}
	}
	return nil
}

// defaultRoute sends everything unknown to the other side of a link.
func (s *space) defaultRoute(name string, via hop, mac net.HardwareAddr, v6 bool) error {
	link, err := s.links.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	for version, text := range via {
		if version == 6 && !v6 {
			continue
		}
		gateway := netip.MustParseAddr(text)
		if err := s.neighbour(link, gateway, mac); err != nil {
			return err
		}
		any := &net.IPNet{IP: make(net.IP, gateway.BitLen()/8), Mask: net.CIDRMask(0, gateway.BitLen())}
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: any, Gw: gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}
		if err := s.links.RouteAdd(route); err != nil {
			return fmt.Errorf("default route by %s: %w", name, err)
		}
	}
	return nil
}

func (s *space) neighbour(link netlink.Link, a netip.Addr, mac net.HardwareAddr) error {
	family := netlink.FAMILY_V4
	if a.Is6() {
		family = netlink.FAMILY_V6
	}
	err := s.links.NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, Family: family, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac,
	})
	if err != nil {
		return fmt.Errorf("neighbour %s on %s: %w", a, link.Attrs().Name, err)
	}
	return nil
}

// whole is an address as a prefix of its own.
func whole(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}
