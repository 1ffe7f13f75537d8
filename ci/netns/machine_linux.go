// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/conformance"
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

// listen opens the sockets of a scenario's machine, for as long as its lab lasts. They receive
// nothing: clients get no answer.
func listen(node *lab.Net, s *conformance.Scenario) (func(), error) {
	var files []*os.File
	closeAll := func() {
		for _, f := range files {
			f.Close()
		}
	}
	for _, l := range s.Machine.Listeners.All {
		err := node.Do(lab.Node, func() error {
			fd, err := deaf(l)
			if err == nil {
				files = append(files, os.NewFile(uintptr(fd), l.At.String()))
			}
			return err
		})
		if err != nil {
			closeAll()
			return nil, fmt.Errorf("listener %s: %w", l.At, err)
		}
	}
	return closeAll, nil
}

// deaf is a socket whose filter drops all packets, the first ones of connections included.
func deaf(l model.Listener) (fd int, err error) {
	family, kind := unix.AF_INET, unix.SOCK_STREAM
	var at unix.Sockaddr
	if ip := l.At.Addr(); ip.Is6() {
		family, at = unix.AF_INET6, &unix.SockaddrInet6{Port: int(l.At.Port()), Addr: ip.As16()}
	} else {
		at = &unix.SockaddrInet4{Port: int(l.At.Port()), Addr: ip.As4()}
	}
	if l.Proto == model.UDP {
		kind = unix.SOCK_DGRAM
	}
	if fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0); err != nil {
		return 0, err
	}
	none := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}
	err = errors.Join(
		unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &none[0]}),
		unix.Bind(fd, at))
	if err == nil && l.Proto == model.TCP {
		err = unix.Listen(fd, 1)
	}
	if err != nil {
		unix.Close(fd)
	}
	return fd, err
}
