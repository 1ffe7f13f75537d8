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
	links *netlink.Handle
	news  int // a socket that is told of changes
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
// call.
func (a *Addresses) Changed() bool { return Heard(a.news, func() int { return -1 }) }

// List returns all addresses but those of loopback and of links.
func (a *Addresses) List() (all []model.LocalAddress, err error) {
	var addrs []netlink.Addr
	var links []netlink.Link
	err = Steadily(func() error {
		if links, err = a.links.LinkList(); err == nil {
			addrs, err = a.links.AddrList(nil, netlink.FAMILY_ALL)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list this machine's addresses: %w", err)
	}
	dummies := map[int]bool{}
	for _, l := range links {
		dummies[l.Attrs().Index] = l.Type() == "dummy"
	}
	for _, addr := range addrs {
		ip, ok := netip.AddrFromSlice(addr.IP)
		if ip = ip.Unmap(); !ok || ip.IsLoopback() || ip.IsLinkLocalUnicast() {
			continue
		}
		bits, _ := addr.Mask.Size()
		all = append(all, model.LocalAddress{Prefix: netip.PrefixFrom(ip, bits), Shared: dummies[addr.LinkIndex]})
	}
	return all, nil
}
