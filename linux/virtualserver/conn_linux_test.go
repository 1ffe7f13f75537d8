// SPDX-License-Identifier: Apache-2.0

package virtualserver

import (
	"errors"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
)

func inNamespace(t *testing.T, f func(*Conn)) {
	t.Helper()
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace can be made here: %v", err)
	}
	if err := Load(); err != nil {
		t.Skip(err)
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo) // without a route the kernel takes no destination
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	f(c)
}

// Virtual servers and destinations come back as written, in both families, by
// address and by mark.
func TestServersComeBackAsWritten(t *testing.T) {
	inNamespace(t, func(c *Conn) {
		const unknownFlag = 1 << 24 // the kernel keeps it
		want := map[ID]Server{
			{Proto: model.TCP, Addr: web}:                                {"rr", unknownFlag, 0},
			{Proto: model.UDP, Addr: web}:                                {"rr", Persistent | unknownFlag, 7},
			{Family: model.IPv6, Proto: model.UDP, Addr: six}:            {Scheduler: "rr"},
			{FWMark: 0x2001}:                                             {"sh", Fallback, 0},
			{Family: model.IPv6, FWMark: 0x2001}:                         {Scheduler: "rr"},
			{Proto: model.TCP, Addr: netip.AddrPortFrom(web.Addr(), 81)}: {Scheduler: "rr"},
		}
		for id, s := range want {
			if err := c.Create(id, s); err != nil {
				t.Fatal(id, err)
			}
			if err := c.Create(id, s); !errors.Is(err, ErrExists) {
				t.Errorf("%v a second time: %v", id, err)
			}
		}
		n := 0
		err := c.List(func(id ID, s Server) error {
			n++
			if got, ok, err := c.Get(id); s != want[id] || got != s || !ok || err != nil {
				t.Errorf("%v is %v and %v (%v, %v), want %v", id, s, got, ok, err, want[id])
			}
			return c.Delete(id)
		})
		if n != len(want) || err != nil {
			t.Errorf("listed %d of %d: %v", n, len(want), err)
		}
		gone := ID{Proto: model.TCP, Addr: web}
		if _, ok, err := c.Get(gone); ok || err != nil {
			t.Errorf("deleted: %v, %v", ok, err)
		}
		if err := errors.Join(c.Delete(gone), c.DeleteDestination(gone, pod)); err != nil {
			t.Error("deleting what is not there:", err)
		}
		if err := c.Update(gone, Server{Scheduler: "rr"}); !errors.Is(err, ErrNoServer) {
			t.Error("changing what is not there:", err)
		}
	})
}

func TestDestinationsComeBackAsWritten(t *testing.T) {
	inNamespace(t, func(c *Conn) {
		id := ID{Proto: model.TCP, Addr: web}
		if err := errors.Join(c.Create(id, Server{Scheduler: "rr"}), c.AddDestination(id, pod, 1), c.SetWeight(id, pod, 0)); err != nil {
			t.Fatal(err)
		}
		if have, err := c.Destinations(id); err != nil || len(have) != 1 || have[0] != (Destination{Addr: pod}) {
			t.Errorf("got %v, %v", have, err)
		}
		if err := c.AddDestination(id, pod, 1); !errors.Is(err, ErrExists) {
			t.Error("a second time:", err)
		}
		if err := c.DeleteDestination(id, pod); err != nil {
			t.Error(err)
		}
		if err := c.SetWeight(id, pod, 1); !errors.Is(err, ErrNoDestination) {
			t.Error("changing what is not there:", err)
		}
		if err := errors.Join(c.SetTimeouts(0, 0, 0), c.SetTimeouts(900*time.Second, 0, 0)); err != nil {
			t.Error(err)
		}
	})
}
