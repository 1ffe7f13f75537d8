// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/flows"
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

// slowConntrack is a table whose walks last until they are let go.
type slowConntrack struct {
	walks chan []flows.Match
	let   chan func(stale func(flows.Flow) bool)
}

func (s slowConntrack) Delete(ctx context.Context, matches []flows.Match, stale func(flows.Flow) bool) (int, error) {
	s.walks <- matches
	select {
	case look := <-s.let:
		look(stale)
		return 0, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (slowConntrack) Close() error { return nil }

// Changes do not wait while stale flows are looked for, and a look keeps the flows to where the
// frontend leads by then. What is left at the end is deleted before it.
func TestCommitsWaitForNoStaleFlows(t *testing.T) {
	eachKind(t, func(t *testing.T, k tableKind) {
		p := start(t, k, web())
		slow := slowConntrack{make(chan []flows.Match, 16), make(chan func(func(flows.Flow) bool), 16)}
		p.driver.flows.open = func() (closingTable, error) { return slow, nil }
		p.sync()
		served := dns()
		none := dns()
		for i := range none.Frontends[0].On {
			none.Frontends[0].On[i] = model.Action{Verdict: model.Reject}
		}
		toggle := func(ports ...*model.Port) {
			for i := 1; i < len(ports); i++ {
				p.Update([]model.Delta{{Old: ports[i-1], New: ports[i]}})
				if p.sync().Ops == 0 {
					t.Error("nothing was written")
				}
			}
		}
		done := make(chan struct{})
		release := time.AfterFunc(20*time.Second, func() { // so that a commit that waits is a failure, not a hang
			t.Error("changes wait for a walk of the table")
			close(done)
			for {
				select {
				case slow.let <- func(func(flows.Flow) bool) {}:
				default:
					return
				}
			}
		})
		toggle(nil, none, served, none, served)
		if !release.Stop() {
			<-done
		}
		first := <-slow.walks
		if len(first) != 1 || first[0].Namespace != "kube-system" || first[0].Frontend != served.Frontends[0].At {
			t.Errorf("looked for %+v", first)
		}
		relayed := netip.AddrPort{}
		for id, l := range p.driver.relays.open {
			if id.Port() == served.ID {
				relayed = l.Addr()
			}
		}
		flow := func(from netip.AddrPort) flows.Flow {
			return flows.Flow{Proto: model.UDP, Dst: served.Frontends[0].At, From: from}
		}
		looked := make(chan struct{})
		slow.let <- func(stale func(flows.Flow) bool) {
			defer close(looked)
			if !relayed.IsValid() || stale(flow(relayed)) {
				t.Errorf("a flow to the relay at %s is stale", relayed)
			}
			if !stale(flow(relayAddrPort(model.IPv6, rejectPort))) {
				t.Error("a flow to the port that rejects is not stale")
			}
		}
		<-looked
		toggle(served, nil)
		for range 8 {
			slow.let <- func(func(flows.Flow) bool) {}
		}
		p.stop()
		var last []flows.Match
		for len(slow.walks) > 0 {
			last = <-slow.walks
		}
		// It says which endpoint is gone, or merged with an earlier one that waited, that all are stale.
		if len(last) != 1 || !last[0].Stale(flow(relayed)) {
			t.Errorf("the last look was for %+v", last)
		}
	})
}
