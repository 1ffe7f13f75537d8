package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
)

// followed is a backend for which the host has, beside the addresses that its
// Node object tells, all that this machine has now: node ports answer on them,
// and IPVS wants each named. Changes are looked for with Disturbed.
type followed struct {
	dataplane.Backend
	links *netlink.Handle
	news  int // a netlink socket that hears of addresses
	host  *model.Host
	own   []netip.Addr
	stale bool      // own may be out of date
	due   time.Time // when a change was found that is not synced; zero for none
}

// follow joins a backend with the addresses of the thread's network namespace,
// and closes it when that fails.
func follow(b dataplane.Backend) (_ dataplane.Backend, err error) {
	f := &followed{Backend: b, news: -1}
	if f.links, err = netlink.NewHandle(unix.NETLINK_ROUTE); err == nil {
		f.news, err = host.Hear(unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR)
	}
	if err == nil {
		f.own, err = ownAddresses(f.links)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("follow this machine's addresses: %w", err), f.Close())
	}
	return f, nil
}

// Close implements dataplane.Backend.
func (f *followed) Close() error {
	var err error
	if f.news >= 0 {
		err = unix.Close(f.news)
	}
	if f.links != nil {
		f.links.Close()
	}
	return errors.Join(err, f.Backend.Close())
}

// SetHost implements dataplane.Backend.
func (f *followed) SetHost(h *model.Host) {
	f.host = h
	all := *h
	all.IPs = slices.Clone(h.IPs)
	for _, a := range f.own {
		if !slices.Contains(all.IPs, a) {
			all.IPs = append(all.IPs, a)
		}
	}
	f.Backend.SetHost(&all)
}

// Disturbed implements dataplane.Backend. What it finds of addresses is no
// disturbance, but something to sync.
func (f *followed) Disturbed(ctx context.Context) (bool, error) {
	f.stale = f.stale || f.host != nil && host.Heard(f.news, f.skip())
	if f.stale {
		own, err := ownAddresses(f.links)
		if err != nil {
			return false, err // and it is tried again
		}
		f.stale = false
		if !slices.Equal(own, f.own) {
			f.own, f.due = own, time.Now()
			f.SetHost(f.host)
		}
	}
	return f.Backend.Disturbed(ctx)
}

// Next implements dataplane.Backend.
func (f *followed) Next() time.Time {
	if !f.due.IsZero() {
		return f.due
	}
	return f.Backend.Next()
}

// Sync implements dataplane.Backend.
func (f *followed) Sync(ctx context.Context) (dataplane.Work, error) {
	f.due = time.Time{}
	return f.Backend.Sync(ctx)
}

// skip returns what tells whether a device is kube-ipvs0, which is looked up once and
// only if asked. Where that fails all is news, and whoever looks what it is meets the
// error.
func (f *followed) skip() func(device int) bool {
	link := sync.OnceValue(func() int {
		index, err := ipvsLink(f.links)
		if err != nil {
			return -1
		}
		return index
	})
	return func(device int) bool { return device == link() }
}

// ipvsLink is the index of kube-ipvs0, -1 where there is none.
func ipvsLink(h *netlink.Handle) (int, error) {
	link, err := h.LinkByName(Link)
	if err != nil {
		return -1, but(wrap("link "+Link, err), unix.ENODEV)
	}
	return link.Attrs().Index, nil
}

// ownAddresses lists the addresses of this machine, those of loopback, links and
// kube-ipvs0 left out.
func ownAddresses(h *netlink.Handle) (all []netip.Addr, err error) {
	skip, err := ipvsLink(h)
	if err != nil { // else all cluster IPs would be this machine's
		return nil, err
	}
	var addrs []netlink.Addr
	err = host.Steadily(func() error {
		addrs, err = h.AddrList(nil, netlink.FAMILY_ALL)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list this machine's addresses: %w", err)
	}
	for _, a := range addrs {
		addr, ok := netip.AddrFromSlice(a.IP)
		addr = addr.Unmap()
		if ok && a.LinkIndex != skip && !addr.IsLoopback() && !addr.IsLinkLocalUnicast() {
			all = append(all, addr)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all, nil
}
