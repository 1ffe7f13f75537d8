package host

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
)

// Addresses knows the addresses of the network namespace that it was opened in.
// It is used by one goroutine at a time.
type Addresses struct {
	links   *netlink.Handle
	news    int          // a socket that is told of changes
	dummies map[int]bool // links by index, as last listed: is it a dummy device?
}

// OpenAddresses opens those of the calling thread's network namespace.
func OpenAddresses() (a *Addresses, err error) {
	a = &Addresses{news: -1}
	if a.links, err = netlink.NewHandle(unix.NETLINK_ROUTE); err == nil {
		a.news, err = Hear(unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("follow this machine's addresses: %w", err), a.Close())
	}
	return a, nil
}

// Close closes it.
func (a *Addresses) Close() (err error) {
	if a.news >= 0 {
		err = unix.Close(a.news)
	}
	if a.links != nil {
		a.links.Close()
	}
	return err
}

// Changed reports whether there is news since the last call. It costs a system
// call. What is on a dummy device is none: kube-ipvs0 gets an address for each Service.
func (a *Addresses) Changed() bool {
	return Heard(a.news, func(device int) bool { return a.dummies[device] })
}

// List returns all addresses but those of loopback, of links, and on dummy devices:
// those are put there for Services, not for this machine.
func (a *Addresses) List() ([]model.LocalAddress, error) {
	var addrs []netlink.Addr
	var links []netlink.Link
	err := Steadily(func() (err error) { // links last: those of all addresses are known, or gone
		if addrs, err = a.links.AddrList(nil, netlink.FAMILY_ALL); err == nil {
			links, err = a.links.LinkList()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list this machine's addresses: %w", err)
	}
	a.dummies = make(map[int]bool, len(links))
	for _, l := range links {
		a.dummies[l.Attrs().Index] = l.Type() == "dummy"
	}
	return onNetworks(addrs, a.dummies), nil
}

// onNetworks returns the addresses of links that are there and no dummies.
func onNetworks(addrs []netlink.Addr, dummies map[int]bool) (all []model.LocalAddress) {
	for _, addr := range addrs {
		ip, ok := netip.AddrFromSlice(addr.IP)
		if ip = ip.Unmap(); !ok || ip.IsLoopback() || ip.IsLinkLocalUnicast() {
			continue
		}
		bits, _ := addr.Mask.Size()
		dummy, known := dummies[addr.LinkIndex]
		if prefix := netip.PrefixFrom(ip, bits); known && !dummy && prefix.IsValid() { // not so ::ffff:192.0.2.1/128
			all = append(all, model.LocalAddress{Prefix: prefix})
		}
	}
	return all
}
