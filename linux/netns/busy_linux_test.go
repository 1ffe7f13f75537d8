// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
)

// On a node where links of others come and go a network is waited for, too: the kernel reports a
// list that such a change has interrupted as an error.
func TestReadyOnABusyNode(t *testing.T) {
	if err := Available(); err != nil {
		t.Skip(err)
	}
	n, err := New(t.Context(), Plan{Node: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	var s *space
	var others *netlink.Handle
	err = n.Do(Node, func() (err error) {
		if s, err = thisSpace(); err == nil {
			others, err = netlink.NewHandle()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
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
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			err := others.LinkAdd(pair(stay))
			link, missing := others.LinkByName(pair(stay).Attrs().Name)
			if missing == nil {
				missing = others.LinkDel(link)
			}
			if err := errors.Join(err, missing); err != nil {
				stopped <- err
				return
			}
		}
	}()
	for range 50 {
		if _, err := s.unready(nil); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	if err := errors.Join(<-stopped, s.close()); err != nil {
		t.Error(err)
	}
}
