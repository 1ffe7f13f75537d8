// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tandem-proxy/tandem/linux/netns"
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
	pair := func(i int) netlink.Link {
		return &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("veth%d", i)}, PeerName: fmt.Sprintf("peer%d", i)}
	}
	const stay = 32 // more than fit into one message of the kernel
	for i := range stay {
		if err := others.LinkAdd(pair(i)); err != nil {
			t.Fatal(err)
		}
	}
	o := &offload{links: links}
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			case <-time.After(time.Millisecond): // a list is tried a few times
			}
			if err := others.LinkAdd(pair(stay)); err != nil {
				stopped <- err
				return
			}
			if link, err := others.LinkByName(pair(stay).Attrs().Name); err != nil || others.LinkDel(link) != nil {
				stopped <- fmt.Errorf("delete: %w", err)
				return
			}
		}
	}()
	for range 50 {
		names, err := o.devices()
		if err != nil || !slices.Contains(names, pair(0).Attrs().Name) || !slices.Contains(names, pair(stay-1).Attrs().Name) {
			t.Errorf("%d devices, %v", len(names), err)
			break
		}
	}
	close(stop)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}
