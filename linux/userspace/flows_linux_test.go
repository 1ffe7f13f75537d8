// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
)

// Commits that delete stale flows do so over the two sockets that the first of them has opened, and
// the driver closes them.
func TestStaleFlowsAreDeletedOverSocketsThatStay(t *testing.T) {
	eachKind(t, func(t *testing.T, k tableKind) {
		before := netfilterSockets(t)
		p := start(t, k, web())
		p.sync()
		turn := func() []string {
			t.Helper()
			for _, d := range []model.Delta{{New: dns()}, {Old: dns()}} {
				p.Update([]model.Delta{d})
				if p.sync().Ops == 0 {
					t.Fatal("nothing was written")
				}
			}
			return netfilterSockets(t)
		}
		none := netfilterSockets(t)
		first := turn()
		if len(first) != len(none)+2 {
			t.Errorf("sockets %v, before there were stale flows %v", first, none)
		}
		for range 3 {
			if now := turn(); !slices.Equal(now, first) {
				t.Errorf("sockets %v, earlier %v", now, first)
			}
		}
		p.stop()
		if now := netfilterSockets(t); !slices.Equal(now, before) {
			t.Errorf("sockets %v are left, before the start %v", now, before)
		}
	})
}

// netfilterSockets are the inodes of those in the network namespace of the calling thread.
func netfilterSockets(t *testing.T) (inodes []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/thread-self/net/netlink")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		const kernels = "0" // port of the kernel's own socket
		if f := strings.Fields(line); len(f) == 10 && f[1] == "12" && f[2] != kernels {
			inodes = append(inodes, f[9])
		}
	}
	slices.Sort(inodes)
	return inodes
}
