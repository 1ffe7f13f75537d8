// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/netns"
)

// All addresses of a namespace are listed, but those of dummy devices, and
// changes are noticed wherever the question comes from.
func TestAddresses(t *testing.T) {
	if err := netns.Available(); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	n, err := netns.New(t.Context(), netns.Plan{Node: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Outside: []netip.Addr{netip.MustParseAddr("192.0.2.100")}})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	var a *host.Addresses
	if err := n.Do(netns.Node, func() (err error) { a, err = host.OpenAddresses(host.Dummies); return err }); err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if a.Changed() {
		t.Error("news before anything happened")
	}
	if all, err := a.List(); err != nil || !slices.ContainsFunc(all, func(l model.LocalAddress) bool {
		return l.Prefix.Addr() == netip.MustParseAddr("192.0.2.1")
	}) {
		t.Errorf("%v, %v", all, err)
	}
	add := func(link netlink.Link, ip net.IP) error {
		return n.Do(netns.Node, func() error {
			if err := netlink.LinkAdd(link); err != nil {
				return err
			}
			return netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(24, 32)}})
		})
	}
	if err := add(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "cni0"}}, net.IPv4(10, 244, 1, 1)); err != nil {
		t.Skipf("no bridges here: %v", err)
	}
	for end := time.Now().Add(10 * time.Second); !a.Changed(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no news of a new address")
		}
	}
	if all, err := a.List(); err != nil || !slices.Contains(all, model.LocalAddress{Prefix: netip.MustParsePrefix("10.244.1.1/24")}) {
		t.Errorf("%v, %v", all, err)
	}
	if err := n.Do(netns.Node, func() error { return linkOfPod() }); err != nil {
		t.Fatal(err)
	}
	if a.Changed() {
		t.Error("the link-local addresses of a pod's link are news")
	}
	if err := add(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "nodelocaldns"}}, net.IPv4(10, 96, 0, 10)); err != nil {
		t.Skipf("no dummy devices here: %v", err)
	}
	if all, err := a.List(); err != nil || slices.Contains(all, model.LocalAddress{Prefix: netip.MustParsePrefix("10.96.0.10/24")}) {
		t.Errorf("%v, %v", all, err)
	}
}

// linkOfPod makes a link as that of a pod, with the only address that such a link has.
func linkOfPod() error {
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "veth1"}, PeerName: "veth2"}
	if err := netlink.LinkAdd(link); err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetUp(link), netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP("fe80::1"), Mask: net.CIDRMask(64, 128)}}))
}
