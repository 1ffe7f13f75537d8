// SPDX-License-Identifier: Apache-2.0

package ipset

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netns"
)

// inNamespace runs a test in a network namespace of its own, on a kernel that
// has ipsets.
func inNamespace(t *testing.T, f func(*Conn)) {
	t.Helper()
	if err := netns.Available(); err != nil {
		t.Skip(err)
	}
	net, err := netns.New(t.Context(), netns.Plan{Node: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Outside: []netip.Addr{netip.MustParseAddr("192.0.2.100")}})
	if err != nil {
		t.Fatal(err)
	}
	defer net.Close()
	var c *Conn
	if err := net.Do(netns.Node, func() (err error) { c, err = Open(); return err }); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, _, err := c.List(t.Context(), "none"); err != nil && !errors.Is(err, ErrNotFound) {
		t.Skipf("this kernel has no ipsets: %v", err)
	}
	f(c)
}

// Everything that is written is read back as it was.
func TestSetsComeBackAsWritten(t *testing.T) {
	a, b := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("10.244.1.2")
	a6, b6 := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::")
	inNamespace(t, func(c *Conn) {
		for _, tt := range []struct {
			set   Set
			net   bool
			entry Entry
		}{
			{Set{"port", "hash:ip,port", model.IPv4, 1 << 24, true}, false, Entry{IP: a, Proto: model.TCP, Port: 80, Mark: 0x2000, MarkMask: 0x7000}},
			{Set{"port6", "hash:ip,port", model.IPv6, 1 << 24, true}, false, Entry{IP: a6, Proto: model.SCTP, Port: 80, Mark: 0x2001, MarkMask: ^uint32(0)}},
			{Set{"loop", "hash:ip,port,ip", model.IPv4, 1 << 24, false}, false, Entry{IP: b, Proto: model.UDP, Port: 53, IP2: b}},
			{Set{"range", "hash:ip,port,net", model.IPv4, 1 << 24, false}, false, Entry{IP: a, Proto: model.TCP, Port: 80, IP2: netip.MustParseAddr("198.51.100.0"), Bits: 24}},
			{Set{"range6", "hash:ip,port,net", model.IPv6, 1 << 24, false}, false, Entry{IP: a6, Proto: model.TCP, Port: 80, IP2: b6, Bits: 64}},
			{Set{"ip", "hash:ip", model.IPv4, 1 << 24, false}, false, Entry{IP: a}},
			{Set{"net", "hash:net", model.IPv6, 1 << 24, false}, true, Entry{IP: b6, Bits: 64}},
			{Set{"nodeport", "bitmap:port", model.IPv4, 0, true}, false, Entry{Port: 30080, Mark: 0x6000, MarkMask: 0x7000}},
		} {
			if err := c.Create(t.Context(), tt.set); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second time it is there
				if err := errors.Join(c.Apply(t.Context(), []Change{{Set: tt.set.Name, Entry: tt.entry, Net: tt.net}})...); err != nil {
					t.Fatalf("%s: %v", tt.set.Name, err)
				}
			}
			set, entries, err := c.List(t.Context(), tt.set.Name)
			if err != nil || set != tt.set || !reflect.DeepEqual(entries, []Entry{tt.entry}) {
				t.Errorf("%s: got %+v %+v %v\nwant %+v %+v", tt.set.Name, set, entries, err, tt.set, tt.entry)
			}
			if err := errors.Join(c.Apply(t.Context(), []Change{{Set: tt.set.Name, Entry: tt.entry, Net: tt.net, Delete: true}})...); err != nil {
				t.Errorf("%s: delete: %v", tt.set.Name, err)
			}
			if _, entries, _ := c.List(t.Context(), tt.set.Name); len(entries) != 0 {
				t.Errorf("%s: not deleted: %+v", tt.set.Name, entries)
			}
			if err := c.Create(t.Context(), tt.set); !errors.Is(err, ErrExists) {
				t.Errorf("create again:  %v", err)
			}
			if err := c.Destroy(t.Context(), tt.set.Name); err != nil {
				t.Error(err)
			}
		}
	})
}

// A context that has ended ends every request, so that a stop waits for none.
func TestRequestsEndWithTheirContext(t *testing.T) {
	c, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, listed := c.List(ctx, "none")
	for what, err := range map[string]error{
		"create": c.Create(ctx, Set{"none", "hash:ip", model.IPv4, 1, true}), "destroy": c.Destroy(ctx, "none"), "swap": c.Swap(ctx, "none", "other"), "list": listed,
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// The kernel's refusals are told apart, by the numbers of its ip_set.h.
func TestErrorNumbers(t *testing.T) {
	for errno, want := range map[int]error{2: ErrNotFound, 17: ErrExists, 4096 + 4: ErrInUse, 4352: ErrFull} {
		if got := errorOf(errno); !errors.Is(got, want) {
			t.Errorf("%d: %v, want %v", errno, got, want)
		}
	}
	const invalidCIDR = 4096 + 8
	if err := errorOf(invalidCIDR); err == nil || errors.Is(err, ErrInUse) {
		t.Errorf("an invalid CIDR: %v", err)
	}
	if err := errorOf(1); err != nil {
		t.Errorf("an ordinary error: %v", err)
	}
}

// More than kube-proxy's 65,536 entries fit, and of many changes each has its
// own result.
func TestManyEntries(t *testing.T) {
	const n = 70_000
	inNamespace(t, func(c *Conn) {
		if err := c.Create(t.Context(), Set{"many", "hash:ip,port", model.IPv4, 1 << 24, true}); err != nil {
			t.Fatal(err)
		}
		changes := make([]Change, n)
		for i := range changes {
			changes[i] = Change{Set: "many", Entry: Entry{
				IP: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), Proto: model.TCP, Port: 80, Mark: 1, MarkMask: 1,
			}}
		}
		changes[777].Set = "nowhere"
		for i, err := range c.Apply(t.Context(), changes) {
			if (err != nil) != (i == 777) || err != nil && !errors.Is(err, ErrNotFound) {
				t.Fatalf("change %d: %v", i, err)
			}
		}
		if _, entries, err := c.List(t.Context(), "many"); err != nil || len(entries) != n-1 {
			t.Fatalf("%d entries, %v", len(entries), err)
		}
	})
}
