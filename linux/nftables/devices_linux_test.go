// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/linux/netns/linktest"
)

// Devices that come while the kernel lists them make it no failure to list them: pods start
// all the time.
func TestDevicesWhileOthersCome(t *testing.T) {
	if err := netns.Available(); err != nil {
		t.Skip(err)
	}
	n, err := netns.New(t.Context(), netns.Plan{Node: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	var links, others *netlink.Handle
	err = n.Do(netns.Node, func() (err error) {
		if links, err = netlink.NewHandle(); err == nil {
			others, err = netlink.NewHandle()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer links.Close()
	defer others.Close()
	stop := linktest.Churn(t, others)
	o := &offload{links: links}
	for range 50 {
		names, err := o.devices()
		if err != nil || !slices.Contains(names, linktest.Name(0)) || !slices.Contains(names, linktest.Name(linktest.Stay-1)) {
			t.Errorf("%d devices, %v", len(names), err)
			break
		}
	}
	stop()
}
