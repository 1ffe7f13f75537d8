// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/nft"
)

func poolOf(n int) *model.Pool {
	p := &model.Pool{}
	for i := range n {
		at := netip.AddrFrom4([4]byte{10, 245, byte(i >> 8), byte(i)})
		p.Endpoints = append(p.Endpoints, model.Endpoint{Addr: netip.AddrPortFrom(at, uint16(80+i>>16))})
	}
	return p
}

// A port with two frontends and two pools says once what is too much for it, and
// balances all the same.
func TestTooManyEndpoints(t *testing.T) {
	for _, test := range []struct {
		n        int
		affinity time.Duration
		gaps     []string
		chain    string
	}{
		{1001, 0, nil, "pick-1001"},
		{1001, time.Hour, nil, "affinity-1001-3600s"},
		{bankSize, 0, nil, "pick-32768"},
		{bankSize + 5, 0, []string{"32773 endpoints: only the first 32768 are used"}, "pick-32768"},
		{bankSize + 5, time.Hour, []string{"32773 endpoints: only the first 32768 are used"}, "affinity-32768-3600s"},
	} {
		many, few := poolOf(test.n), poolOf(max(test.n-1, 1))
		p := withAffinity(port("p",
			front(model.KindClusterIP, "10.96.0.1:80", onAll(balance(many, false))),
			front(model.KindExternalIP, "203.0.113.1:80", on(balance(many, false), balance(many, false), balance(few, false)))), test.affinity)
		objects := map[nft.Key]nft.Value{}
		gaps := NewCompiler(Options{}).Port(testHost, p, func(k nft.Key, v nft.Value) { objects[k] = v })
		if len(gaps) != len(test.gaps) {
			t.Errorf("%d endpoints, affinity %s: gaps %v", test.n, test.affinity, gaps)
			continue
		}
		for i, g := range gaps {
			if !strings.Contains(g.Detail, test.gaps[i]) || g.Frontend.IsValid() {
				t.Errorf("%d endpoints, affinity %s: gap %v, want %q for the whole port", test.n, test.affinity, g, test.gaps[i])
			}
		}
		to := objects[nft.AddrPortKey(setVIPs, model.TCP, p.Frontends[0].At)]
		if to.Body == nil || !strings.HasPrefix(to.Body.Goto, test.chain) {
			t.Errorf("%d endpoints, affinity %s: goes to %+v, want %s", test.n, test.affinity, to.Body, test.chain)
		}
		if _, ok := objects[nft.ChainKey(model.IPv4, to.Body.Goto)]; !ok {
			t.Errorf("%d endpoints, affinity %s: there is no chain %s", test.n, test.affinity, to.Body.Goto)
		}
	}
}

// A compiler keeps a bounded number of chains, however many sizes it has seen.
func TestKeptPicks(t *testing.T) {
	c := NewCompiler(Options{})
	for n := uint32(1); n <= 3*keptPicks; n++ {
		p := pick{slots: setSlots, count: n}
		if got := c.pick(p); got.name != p.name() || !c.Equal(got.bodies[model.IPv4], c.pick(p).bodies[model.IPv4]) {
			t.Fatalf("%+v is %+v", p, got)
		}
	}
	kept := 0
	c.picks.Range(func(any, any) bool { kept++; return true })
	if kept != keptPicks {
		t.Errorf("%d chains are kept, want %d", kept, keptPicks)
	}
}
