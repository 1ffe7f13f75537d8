// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// route_localnet is open while node ports answer on 127.0.0.1, and afterwards
// what it was before, whoever removes the rules.
func TestRouteLocalnetIsPutBack(t *testing.T) {
	eachVariant(t, func(t *testing.T, k *kernel) {
		open := *benchHost
		open.NodePorts = model.NodePortMatch{Prefixes: []netip.Prefix{xtables.Loopback(model.IPv4)}, Loopback: true}
		for _, was := range []string{"0", "1"} {
			if err := host.EnsureSysctl(routeLocalnet, was); err != nil {
				t.Skip(err)
			}
			expect := func(when, want string) {
				t.Helper()
				if now, err := host.Sysctl(routeLocalnet); now != want {
					t.Errorf("it was %s, and %s it is %s (%v)", was, when, now, err)
				}
			}
			d := k.driver()
			b := dataplane.New(NewCompiler(Options{}), d)
			sync := func(h *model.Host) (ops int) {
				t.Helper()
				if err := b.Adopt(t.Context()); err != nil {
					t.Fatal(err)
				}
				b.SetHost(h)
				work, err := b.Sync(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return work.Ops
			}
			sync(&open)
			expect("with node ports", "1")
			k.command("-t", "filter", "-F", "INPUT")
			sync(&open)
			sync(benchHost)
			expect("without node ports", was)
			b = dataplane.New(NewCompiler(Options{}), k.driver())
			sync(&open)
			b = dataplane.New(NewCompiler(Options{}), k.driver())
			if n := sync(&open); n != 0 {
				t.Errorf("a restart wrote %d objects", n)
			}
			if err := b.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
			expect("after cleanup", was)
		}
	})
}

// Where route_localnet cannot be written, as in a container, that alone fails:
// nothing is written again and again that is said to have failed.
func TestRouteLocalnetCannotBeSet(t *testing.T) {
	eachVariant(t, func(t *testing.T, k *kernel) {
		if err := host.EnsureSysctl(routeLocalnet, "0"); err != nil {
			t.Skip(err)
		}
		sysctlsReadOnly(t)
		b := dataplane.New(NewCompiler(Options{}), k.driver())
		if err := b.Adopt(t.Context()); err != nil {
			t.Fatal(err)
		}
		open := *benchHost
		open.NodePorts = model.NodePortMatch{Prefixes: []netip.Prefix{xtables.Loopback(model.IPv4)}, Loopback: true}
		b.SetHost(&open)
		for _, p := range manyPorts(3) {
			b.Update([]model.Delta{{New: p}})
		}
		if _, err := b.Sync(t.Context()); !errors.Is(err, unix.EROFS) {
			t.Errorf("got %v", err)
		}
		if f := b.Health().Failures; len(f) != 1 || !errors.Is(f[model.PortID{}], unix.EROFS) {
			t.Errorf("failures: %v", f)
		}
		if drift, err := b.Audit(t.Context()); drift != 0 || err != nil {
			t.Errorf("%d objects are not as they are said to be (%v)", drift, err)
		}
	})
}

// sysctlsReadOnly makes them so for the test's thread, which ends with it.
func sysctlsReadOnly(t *testing.T) {
	t.Helper()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		t.Skipf("no mount namespace can be made here: %v", err)
	}
	const sys = "/proc/sys"
	for _, m := range []struct {
		source, target string
		flags          uintptr
	}{
		{"", "/", unix.MS_REC | unix.MS_PRIVATE},
		{sys, sys, unix.MS_BIND},
		{"", sys, unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY},
	} {
		if err := unix.Mount(m.source, m.target, "", m.flags, ""); err != nil {
			t.Skipf("mount %s: %v", m.target, err)
		}
	}
}
