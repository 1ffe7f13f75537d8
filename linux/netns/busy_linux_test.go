// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tandem-proxy/tandem/linux/netns/linktest"
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
	stop := linktest.Churn(t, others)
	for range 50 {
		if _, err := s.unready(nil); err != nil {
			t.Error(err)
			break
		}
	}
	stop()
	if err := s.close(); err != nil {
		t.Error(err)
	}
}
