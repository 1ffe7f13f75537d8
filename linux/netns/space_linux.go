// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	vns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// space is one namespace.
type space struct {
	ns      vns.NsHandle
	links   *netlink.Handle
	present bool     // it was there before, with links of others
	made    []string // links that were made in it
}

// thisSpace is the namespace of the calling thread.
func thisSpace() (*space, error) {
	ns, err := vns.Get()
	if err != nil {
		return nil, fmt.Errorf("this thread's network namespace: %w", err)
	}
	s := &space{ns: ns, present: true}
	if s.links, err = netlink.NewHandle(); err != nil {
		return nil, errors.Join(fmt.Errorf("netlink: %w", err), s.close())
	}
	return s, nil
}

// newSpace creates a namespace with some sysctls. If it fails nothing is left behind.
func newSpace(settings []sysctl) (*space, error) {
	s := &space{ns: vns.None()}
	err := onThread(func() (err error) {
		if s.ns, err = vns.New(); err != nil {
			return explain(err)
		}
		if err := write(settings); err != nil {
			return err
		}
		if s.links, err = netlink.NewHandle(); err != nil {
			return fmt.Errorf("netlink: %w", err)
		}
		return nil
	})
	if err == nil {
		err = s.up("lo")
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// close removes the links of a namespace that stays.
func (s *space) close() error {
	var errs []error
	for _, name := range s.made {
		if s.present {
			errs = append(errs, s.remove(name))
		}
	}
	if s.links != nil {
		s.links.Close()
	}
	if s.ns.IsOpen() {
		errs = append(errs, s.ns.Close())
	}
	return errors.Join(errs...)
}

// remove removes a link. That of a namespace that has ended is gone already.
func (s *space) remove(name string) error {
	link, err := s.links.LinkByName(name)
	if err == nil {
		err = s.links.LinkDel(link)
	}
	if errors.As(err, new(netlink.LinkNotFoundError)) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove link %s: %w", name, err)
	}
	return nil
}

// Next hops. They are on no interface: each side has a static neighbour entry for the
// other.
var near, far = hop{4: "169.254.1.1", 6: "fe80::1"}, hop{4: "169.254.1.2", 6: "fe80::2"}

type hop map[int]string

// separate makes the addresses of one namespace behave as if on separate machines:
// every packet goes to the node first. Otherwise a server would answer a client in
// the same namespace, which reached it through the node, directly, and the reply
// would not be translated back.
func (s *space) separate(family int) error {
	own := netlink.NewRule()
	own.Family, own.Priority, own.Table = family, 100, unix.RT_TABLE_LOCAL
	out := netlink.NewRule()
	out.Family, out.Priority, out.Table, out.IifName = family, 10, unix.RT_TABLE_MAIN, "lo" // packets sent from here
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
			// No route to itself either: see separate.
			addr.Flags = unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE
		}
		if err := s.links.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("address %s on %s: %w", a, name, err)
		}
	}
	return nil
}

// defaultRoute adds a default route to the other side of a link.
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

// whole returns an address as a prefix of full length.
func whole(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// unready returns the name of a link or address that is not ready, or "". Nor is a list that a
// change has interrupted, as on a node where others make links.
func (s *space) unready(addrs []netip.Addr) (what string, err error) {
	links, err := s.links.LinkList()
	if errors.Is(err, unix.EINTR) {
		return "the list of links", nil
	}
	if err != nil {
		return "", fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		if s.present && !slices.Contains(s.made, l.Attrs().Name) {
			continue
		}
		if l.Type() == "veth" && l.Attrs().OperState != netlink.OperUp {
			return l.Attrs().Name, nil
		}
	}
	routes, err := s.links.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Table: unix.RT_TABLE_LOCAL}, netlink.RT_FILTER_TABLE)
	if errors.Is(err, unix.EINTR) {
		return "the list of local routes", nil
	}
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
