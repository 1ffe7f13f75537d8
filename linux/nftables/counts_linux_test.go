// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/nft"
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
				if counted, err := b.Connections(t.Context(), false, func(c dataplane.Connections) {
					if c.At != f.vip() || c.Proto != model.UDP {
						t.Errorf("%+v", c)
					}
					got += c.New
				}); err != nil || !counted {
					t.Fatal(counted, err)
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
			if counts, err := without.Connections(t.Context(), false, nil); counts || err != nil {
				t.Error("it counts without being asked to", err)
			}
			if ops := sync(without, model.Delta{New: three}); ops == 0 {
				t.Error("counters stay where none are asked for")
			}
			if err := without.Close(); err != nil {
				t.Fatal(err)
			}
			count.CountEndpoints = true
			byEndpoint := start(count)
			sync(byEndpoint, model.Delta{New: three})
			for i := range 60 {
				f.from(uint16(31000 + i))
			}
			expect(byEndpoint, 60)
			endpoints := f.endpoints(byEndpoint)
			if sum := total(endpoints); len(endpoints) != 3 || sum != 60 {
				t.Errorf("by endpoint: %v", endpoints)
			}
			gone := three.Pools()[0].Slot(0).Addr
			sync(byEndpoint, model.Delta{Old: three, New: f.port(model.DefaultScheduler, 0, 0)})
			sync(byEndpoint, model.Delta{Old: f.port(model.DefaultScheduler, 0, 0), New: three})
			if now := f.endpoints(byEndpoint); total(now) >= 60 || now[gone] != endpoints[gone] && now[gone] != 0 {
				t.Errorf("an endpoint that came again has the count of another: %v, before %v", now, endpoints)
			}
			if drift, err := byEndpoint.Audit(t.Context()); drift != 0 || err != nil {
				t.Errorf("drift %d: %v", drift, err)
			}
		})
	}
}

// endpoints are the new connections of each endpoint.
func (f *farm) endpoints(b dataplane.Backend) map[netip.AddrPort]uint64 {
	f.t.Helper()
	all := map[netip.AddrPort]uint64{}
	counted, err := b.Connections(f.t.Context(), true, func(c dataplane.Connections) {
		if c.At != f.vip() || c.Proto != model.UDP {
			f.t.Errorf("%+v", c)
		}
		all[c.Endpoint] += c.New
	})
	if err != nil || !counted {
		f.t.Fatal(counted, err)
	}
	return all
}

func total(counts map[netip.AddrPort]uint64) (sum uint64) {
	for _, n := range counts {
		sum += n
	}
	return sum
}

// Of more frontends and endpoints than there is room for counters, as many count as there
// is room for, a Problem says so, no audit takes the others for changed, a restart writes
// nothing, and those that come when others have gone count.
func TestCountersAreBounded(t *testing.T) {
	freshNamespace(t)
	const most = 7
	o := Options{Count: true, CountEndpoints: true}
	start := func() (dataplane.Backend, *Driver) {
		t.Helper()
		d, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		d.Count(most, o.counted()...)
		b := newBackend(NewCompiler(o), d)
		t.Cleanup(func() { _ = b.Close() })
		if err := b.Adopt(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.SetHost(testHost)
		return b, d
	}
	service := func(i int) *model.Port {
		p := port(fmt.Sprint("s", i), front(model.KindClusterIP, fmt.Sprintf("10.96.0.%d:80", 1+i), onAll(balance(endpoints(fmt.Sprintf("10.244.1.%d:80", 1+i)), false))))
		p.ID.Service.Name = fmt.Sprint("s", i)
		return p
	}
	counters, err := nft.OpenCounts(table)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := counters.Close(); err != nil {
			t.Error(err)
		}
		if err := counters.Read(t.Context(), model.IPv4, nil, setVIPs); !errors.Is(err, os.ErrClosed) {
			t.Errorf("read after it was closed: %v", err)
		}
	}()
	inKernel := func() (n int) {
		t.Helper()
		for _, f := range model.Families() {
			if err := counters.Read(t.Context(), f, func(nft.Key, nft.Value) { n++ }, o.counted()...); err != nil {
				t.Fatal(err)
			}
		}
		return n
	}
	sync := func(b dataplane.Backend, all ...model.Delta) (ops int) {
		t.Helper()
		b.Update(all)
		w, err := b.Sync(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n := inKernel(); n > most {
			t.Errorf("%d counters, more than %d", n, most)
		}
		return w.Ops
	}
	b, _ := start()
	var all []model.Delta
	for i := range 20 {
		all = append(all, model.Delta{New: service(i)})
	}
	sync(b, all...)
	frontends := 0
	if err := counters.Read(t.Context(), model.IPv4, func(nft.Key, nft.Value) { frontends++ }, setVIPs); err != nil || frontends < most/2 {
		t.Errorf("%d frontends count: %v", frontends, err)
	}
	if n, full := inKernel(), b.Health().Problems; n != most || len(full) != 1 || full[0].Why != model.WhyFull {
		t.Errorf("%d counters of %d; %v", n, most, full)
	}
	for range 2 {
		if drift, err := b.Audit(t.Context()); drift != 0 || err != nil {
			t.Errorf("drift %d: %v", drift, err)
		}
		if ops := sync(b); ops != 0 {
			t.Errorf("%d ops after an audit", ops)
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	var d *Driver
	b, d = start()
	if ops := sync(b, all...); ops != 0 || len(b.Health().Problems) != 1 {
		t.Errorf("a restart writes %d objects; %v", ops, b.Health().Problems)
	}
	// Without the first sixteen there is room for some that come.
	var gone, come []model.Delta
	for i := range 16 {
		gone = append(gone, model.Delta{Old: service(i)})
	}
	sync(b, gone...)
	before := inKernel()
	for i := range 2 {
		come = append(come, model.Delta{New: service(i)})
	}
	sync(b, come...)
	if n := inKernel(); n <= before {
		t.Errorf("%d counters before, %d after: what comes is not counted", before, n)
	}
	if drift, err := b.Audit(t.Context()); drift != 0 || err != nil {
		t.Errorf("drift %d: %v", drift, err)
	}
	if d.Transactions() == 0 {
		t.Error("nothing was written: the test proves nothing")
	}
}

// Reading the counters of all frontends, most of which have counted nothing, allocates next to nothing for each: it
// was 110 bytes.
func TestWhatReadingCountersCosts(t *testing.T) {
	freshNamespace(t)
	const frontends, most = 2000, 20 // bytes of each
	o := Options{Count: true}
	d, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	d.Count(frontends, o.counted()...)
	b := newBackend(NewCompiler(o), d)
	defer b.Close()
	if err := b.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.SetHost(testHost)
	var all []model.Delta
	for i := range frontends {
		p := port(fmt.Sprint("s", i), front(model.KindClusterIP, fmt.Sprintf("10.96.%d.%d:80", i>>8, i&0xff), onAll(balance(endpoints("10.244.1.1:80"), false))))
		p.ID.Service.Name = fmt.Sprint("s", i)
		all = append(all, model.Delta{New: p})
	}
	b.Update(all)
	if _, err := b.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	counts, err := nft.OpenCounts(table)
	if err != nil {
		t.Fatal(err)
	}
	defer counts.Close()
	least := uint64(math.MaxUint64)
	for range 5 {
		n := 0
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := counts.Read(t.Context(), model.IPv4, func(nft.Key, nft.Value) { n++ }, setVIPs)
		if runtime.ReadMemStats(&after); err != nil || n != frontends {
			t.Fatalf("%d frontends count: %v", n, err)
		}
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	t.Logf("%d bytes", least)
	if least > most*frontends {
		t.Errorf("%d bytes for %d frontends", least, frontends)
	}
}

// The bound is 20 MB on any machine: a counter of an element takes 16 bytes for each CPU.
func TestCountersTakeAtMost20MB(t *testing.T) {
	for _, cpus := range []int{1, 2, 64, 1024} {
		n := mostCounters(cpus)
		if bytes := n * (counterPerCPU*cpus + counterElement); n < 1000 || bytes > 20<<20 || bytes < 19_000_000 {
			t.Errorf("%d CPUs: %d counters, %d bytes", cpus, n, bytes)
		}
	}
}
