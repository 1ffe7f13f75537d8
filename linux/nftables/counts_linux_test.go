// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"log/slog"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
)

// Each new connection counts once for its frontend; counts go on when its element is
// replaced, and over a restart, which writes nothing. Where it is not requested,
// nothing is counted.
func TestCountsInKernel(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[v6], func(t *testing.T) {
			f := newFarm(t, 3, v6)
			one, three := f.port(model.DefaultScheduler, 0), f.port(model.DefaultScheduler, 0, 0, 0)
			start := func(c config.Config) dataplane.Backend {
				t.Helper()
				b, err := openBackend(t.Context(), &c, slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = b.Close() })
				if err := b.Adopt(t.Context()); err != nil {
					t.Fatal(err)
				}
				b.SetHost(testHost)
				return b
			}
			sync := func(b dataplane.Backend, d model.Delta) (ops int) {
				t.Helper()
				b.Update([]model.Delta{d})
				w, err := b.Sync(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return w.Ops
			}
			expect := func(b dataplane.Backend, want uint64) {
				t.Helper()
				got := uint64(0)
				counter, ok := dataplane.As[dataplane.ConnectionCounter](b)
				if !ok {
					t.Fatal("nothing counts")
				}
				if err := counter.Connections(t.Context(), func(c dataplane.Connections) {
					if c.At != f.vip() || c.Proto != model.UDP {
						t.Errorf("%+v", c)
					}
					got += c.New
				}); err != nil {
					t.Fatal(err)
				}
				if got != want {
					t.Errorf("%d connections, want %d", got, want)
				}
			}
			count := config.Default()
			count.CountConnections = true
			b := start(count)
			sync(b, model.Delta{New: one})
			f.send(70)
			f.send(70) // tracked already: no new connections
			expect(b, 70)
			if ops := sync(b, model.Delta{Old: one, New: three}); ops == 0 {
				t.Error("nothing was replaced: the test proves nothing")
			}
			expect(b, 70)
			for i := range 30 {
				f.from(uint16(30000 + i))
			}
			expect(b, 100)
			if drift, err := b.Audit(t.Context()); drift != 0 || err != nil {
				t.Errorf("drift %d: %v", drift, err)
			}
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			again := start(count)
			if ops := sync(again, model.Delta{New: three}); ops != 0 {
				t.Errorf("a restart writes %d objects", ops)
			}
			expect(again, 100)
			if err := again.Close(); err != nil {
				t.Fatal(err)
			}
			without := start(config.Default())
			if _, counts := dataplane.As[dataplane.ConnectionCounter](without); counts {
				t.Error("it counts without being asked to")
			}
			if ops := sync(without, model.Delta{New: three}); ops == 0 {
				t.Error("counters stay where none are asked for")
			}
		})
	}
}
