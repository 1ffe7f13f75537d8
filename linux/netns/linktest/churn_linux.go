// SPDX-License-Identifier: Apache-2.0

// Package linktest makes links for tests of what lists them. It knows nothing of linux/netns, so
// that the tests of that package can use it, too.
package linktest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// Stay is how many pairs of links stay: more than fit into one message of the kernel.
const Stay = 32

// Name is that of one link of a pair, from 0 to Stay-1.
func Name(pair int) string { return fmt.Sprintf("veth%d", pair) }

// Churn makes pairs of links in the namespace of a handle, and has one more come and go until stop
// is called, which is done once: lists of links are interrupted. The handle must stay open until then.
func Churn(t testing.TB, links *netlink.Handle) (stop func()) {
	t.Helper()
	pair := func(i int) netlink.Link {
		return &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: Name(i)}, PeerName: fmt.Sprintf("peer%d", i)}
	}
	for i := range Stay {
		if err := links.LinkAdd(pair(i)); err != nil {
			t.Fatal(err)
		}
	}
	end, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-end:
				ended <- nil
				return
			case <-time.After(time.Millisecond): // a list is tried a few times
			}
			err := links.LinkAdd(pair(Stay))
			link, missing := links.LinkByName(Name(Stay))
			if missing == nil {
				missing = links.LinkDel(link)
			}
			if err := errors.Join(err, missing); err != nil {
				ended <- err
				return
			}
		}
	}()
	return func() {
		t.Helper()
		close(end)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
