// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"errors"
	"io"
	"net/netip"
	"testing"

	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/netns"
)

// One holder at a time, in each network namespace, also within one process.
func TestClaim(t *testing.T) {
	if err := netns.Available(); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	n, err := netns.New(t.Context(), netns.Plan{Node: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Outside: []netip.Addr{netip.MustParseAddr("192.0.2.100")}})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	claim := func(at netns.Place) (c io.Closer, err error) {
		err = n.Do(at, func() error { c, err = host.Lock(); return err })
		return c, err
	}
	first, err := claim(netns.Node)
	if errors.Is(err, host.ErrNoLock) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := claim(netns.Node); !errors.Is(err, host.ErrLocked) {
		t.Errorf("a second claim: %v", err)
	}
	elsewhere, err := claim(netns.Outside)
	if err != nil {
		t.Fatalf("in another namespace: %v", err)
	}
	defer elsewhere.Close()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := claim(netns.Node)
	if err != nil {
		t.Fatalf("once it was given up: %v", err)
	}
	again.Close()
}
