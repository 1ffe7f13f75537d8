// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Only what is on a network is this machine's, and only that is news: kube-ipvs0 is
// a dummy device that gets an address for each Service.
func TestAddressesOfDummies(t *testing.T) {
	on := func(link int, ip string, ones, bits int) netlink.Addr {
		return netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(ip), Mask: net.CIDRMask(ones, bits)}, LinkIndex: link}
	}
	dummies := map[int]bool{1: false, 2: true}
	got := onNetworks([]netlink.Addr{
		on(1, "192.0.2.1", 24, 32), on(1, "2001:db8::1", 64, 128), on(2, "10.96.0.1", 32, 32),
		on(3, "192.0.2.3", 24, 32),          // on a link that is gone
		on(1, "::ffff:192.0.2.4", 128, 128), // no prefix of IPv4
		on(1, "127.0.0.1", 8, 32), on(1, "fe80::1", 64, 128),
	}, dummies)
	if fmt.Sprint(got) != "[{192.0.2.1/24} {2001:db8::1/64}]" {
		t.Errorf("addresses: %v", got)
	}

	sockets, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(sockets[1])
	a := &Addresses{events: os.NewFile(uintptr(sockets[0]), "notices"), skipped: dummies}
	defer a.events.Close()
	for range 2 { // nothing comes until the time is over
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		if a.Wait(ctx); ctx.Err() == nil {
			t.Error("it did not wait")
		}
		cancel()
	}
	for device, want := range []bool{true, true, false, true} {
		if err := unix.Send(sockets[1], addressMessage(uint32(device)), 0); err != nil {
			t.Fatal(err)
		}
		a.Wait(t.Context())
		if got := a.Changed(); got != want || a.Changed() {
			t.Errorf("an address on device %d is news: %t, want %t, once", device, got, want)
		}
	}
}
