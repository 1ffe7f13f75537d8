package ipvs

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
)

// What the host itself sends to a cluster IP on kube-ipvs0 comes from that very
// address, unless the local route to it names another source. That must be so
// from the moment on that another mode serves the host: a connection from the
// cluster IP would end when the address goes.

// divert has the host use an address of its own, where it has one, for new
// connections to those on the device. Old ones keep what they have.
func (k *kernel) divert(own []netip.Addr) error {
	return k.eachLocalRoute(func(to netip.Addr, r netlink.Route) error {
		for _, a := range own {
			if a.Is4() == to.Is4() {
				return k.replaceSource(r, a)
			}
		}
		return nil
	})
}

// replaceSource changes the source that a local route suggests. In IPv6 the
// kernel's own have a metric that others cannot give: theirs comes in addition
// first.
func (k *kernel) replaceSource(r netlink.Route, src netip.Addr) error {
	fresh := r
	fresh.Src, fresh.Priority = src.AsSlice(), 0
	if src.Is4() {
		return k.links.RouteReplace(&fresh)
	}
	if err := but(k.links.RouteAdd(&fresh), unix.EEXIST); err != nil {
		return err
	}
	return but(k.links.RouteDel(&r), unix.ESRCH)
}

// undivert makes an address anew whose route was diverted by a Drain that was
// called off.
func (k *kernel) undivert(a, src netip.Addr) error {
	link, err := k.links.LinkByName(Link)
	if err != nil {
		return wrap("address "+a.String(), err)
	}
	diverted := &netlink.Route{
		Family: netlinkFamily(model.FamilyOf(a)), Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST,
		Dst: whole(a), Src: src.AsSlice(), LinkIndex: link.Attrs().Index, Table: unix.RT_TABLE_LOCAL,
	}
	gone := but(wrap("local route to "+a.String(), k.links.RouteDel(diverted)), unix.ESRCH)
	return errors.Join(gone, k.address(ledger.Delete, a), k.address(ledger.Create, a))
}

// sourceOf returns the source that a local route suggests to reach an address,
// where that is another one.
func sourceOf(to netip.Addr, r netlink.Route) netip.Addr {
	src, ok := netip.AddrFromSlice(r.Src)
	if src = src.Unmap(); !ok || src == to {
		return netip.Addr{}
	}
	return src
}

// eachLocalRoute calls f for the local route to each address on kube-ipvs0, if
// the device is ours.
func (k *kernel) eachLocalRoute(f func(netip.Addr, netlink.Route) error) error {
	link, err := k.links.LinkByName(Link)
	if err != nil || link.Attrs().Alias != alias {
		return but(err, unix.ENODEV)
	}
	for _, family := range model.Families() {
		filter := netlink.Route{Table: unix.RT_TABLE_LOCAL, LinkIndex: link.Attrs().Index, Type: unix.RTN_LOCAL}
		const by = netlink.RT_FILTER_TABLE | netlink.RT_FILTER_OIF | netlink.RT_FILTER_TYPE
		var routes []netlink.Route
		err = host.Steadily(func() error {
			routes, err = k.links.RouteListFiltered(netlinkFamily(family), &filter, by)
			return err
		})
		if err != nil {
			return fmt.Errorf("local routes: %w", err)
		}
		for _, r := range routes {
			if r.Dst == nil {
				continue
			}
			to, _ := netip.AddrFromSlice(r.Dst.IP)
			if to = to.Unmap(); to.IsLinkLocalUnicast() || to.IsMulticast() {
				continue
			}
			if err := f(to, r); err != nil {
				return fmt.Errorf("local route to %s: %w", to, err)
			}
		}
	}
	return nil
}

// held counts connections of the host's own that have an address on the device,
// which end when it goes.
func (k *kernel) held() (n int, err error) {
	addresses := map[netip.Addr]bool{}
	err = k.eachLocalRoute(func(a netip.Addr, _ netlink.Route) error {
		addresses[a] = true
		return nil
	})
	if err != nil || len(addresses) == 0 {
		return 0, err
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		sockets, err := k.links.SocketDiagTCP(family)
		if errors.Is(err, unix.ENOENT) {
			return 0, nil // a kernel without tcp_diag tells nobody
		}
		if err != nil {
			return 0, fmt.Errorf("list connections: %w", err)
		}
		for _, s := range sockets {
			a, _ := netip.AddrFromSlice(s.ID.Source)
			if addresses[a.Unmap()] && s.State != timeWait {
				n++
			}
		}
	}
	return n, nil
}

// timeWait is a connection that has ended (TCP_TIME_WAIT in net/tcp_states.h).
const timeWait = 6
