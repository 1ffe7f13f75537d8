// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/memory"
	"github.com/tandem-proxy/tandem/core/track"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// manyPorts makes n Services with five endpoints each.
func manyPorts(n int) []*model.Port {
	ports := make([]*model.Port, n)
	for i := range ports {
		pool := &model.Pool{}
		for e := range 5 {
			a := netip.AddrFrom4([4]byte{10, byte(128 + i/(250*50)), byte(i / 50), byte(1 + i%50*5 + e)})
			pool.Endpoints = append(pool.Endpoints, model.Endpoint{Addr: netip.AddrPortFrom(a, 8080)})
		}
		at := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
		ports[i] = port(fmt.Sprintf("service-%d", i), model.Frontend{
			At: netip.AddrPortFrom(at, 80),
			On: on(balance(pool, false), balance(pool, true), balance(pool, true)),
		})
	}
	return ports
}

// fill programs ports in transactions of the driver's size.
func fill(b testing.TB, d *Driver, objects map[nft.Key]nft.Value) (transactions int) {
	ops := creation(objects)
	for chunk := range slices.Chunk(ops, d.Limits().Batch) {
		mustCommit(b, d, chunk)
		transactions++
	}
	return transactions
}

func BenchmarkCold(b *testing.B) {
	for _, n := range []int{1000, 10000, 50000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			freshNamespace(b)
			d := openDriver(b)
			objects := compile(b, testHost, manyPorts(n)...)
			ops := creation(objects)
			b.ResetTimer()
			for range b.N {
				for chunk := range slices.Chunk(ops, d.Limits().Batch) {
					mustCommit(b, d, chunk)
				}
				b.StopTimer()
				if err := d.Remove(b.Context()); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(len(ops)), "ops")
		})
	}
}

func BenchmarkChange(b *testing.B) {
	for _, n := range []int{1000, 10000, 50000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			freshNamespace(b)
			d := openDriver(b)
			ports := manyPorts(n)
			objects := compile(b, testHost, ports...)
			fill(b, d, objects)
			b.Run("endpoint", func(b *testing.B) { benchEndpoint(b, d, ports) })
			b.Run("count", func(b *testing.B) { benchCount(b, d, ports) })
			b.Run("chain", func(b *testing.B) { benchChain(b, d) })
			b.Run("disturbed", func(b *testing.B) {
				mustObserve(b, d)
				for b.Loop() {
					if _, err := d.Disturbed(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("observe", func(b *testing.B) {
				for b.Loop() {
					mustObserve(b, d)
				}
			})
		})
	}
}

// timed runs f often and reports percentiles.
func timed(b *testing.B, f func(i int)) {
	var took []time.Duration
	i := 0
	for b.Loop() {
		start := time.Now()
		f(i)
		took = append(took, time.Since(start))
		i++
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-µs")
}

// benchEndpoint replaces one endpoint by another.
func benchEndpoint(b *testing.B, d *Driver, ports []*model.Port) {
	b.ReportAllocs()
	ops := make([]nft.Op, 1)
	timed(b, func(i int) {
		p := ports[i*7919%len(ports)]
		k := element(setSlots, p.ID.Proto, &p.Frontends[0])
		k.Slot = uint16(i % 5)
		ops[0] = nft.Op{Verb: ledger.Replace, Key: k, New: nft.Value{To: [16]byte{10, 127, byte(i >> 8), byte(i)}, Port: 8080}}
		if err := d.Commit(b.Context(), ops)[0]; err != nil {
			b.Fatal(err)
		}
	})
}

// benchCount takes an endpoint away and gives it back: the answer goes to
// another pick chain.
func benchCount(b *testing.B, d *Driver, ports []*model.Port) {
	c := NewCompiler(Options{})
	five, four := c.pick(pick{slots: setSlots, count: 5}), c.pick(pick{slots: setSlots, count: 4})
	mustCommit(b, d, []nft.Op{{Key: nft.ChainKey(model.IPv4, four.name), New: four.bodies[model.IPv4]}})
	timed(b, func(i int) {
		p := ports[i/2*7919%len(ports)]
		answer := element(setVIPs, p.ID.Proto, &p.Frontends[0])
		last := element(setSlots, p.ID.Proto, &p.Frontends[0])
		last.Slot = 4
		ops := []nft.Op{
			{Verb: ledger.Replace, Key: answer, New: nft.Value{Body: &nft.Body{Verdict: nft.VerdictGoto, Goto: four.name}}},
			{Verb: ledger.Delete, Key: last},
		}
		if i%2 == 1 {
			ops[0].New.Body.Goto = five.name
			ops[1] = nft.Op{Verb: ledger.Create, Key: last, New: nft.Value{To: [16]byte{10, 127}, Port: 8080}}
		}
		mustCommit(b, d, ops)
	})
}

// benchChain makes and deletes a pick chain.
func benchChain(b *testing.B, d *Driver) {
	c := NewCompiler(Options{})
	timed(b, func(i int) {
		chain := c.pick(pick{slots: setSlots, count: 4096})
		op := nft.Op{Verb: ledger.Create, Key: nft.ChainKey(model.IPv4, chain.name), New: chain.bodies[model.IPv4]}
		if i%2 == 1 {
			op = nft.Op{Verb: ledger.Delete, Key: op.Key, Old: op.New}
		}
		mustCommit(b, d, []nft.Op{op})
	})
}

// BenchmarkCompile is the compiler alone.
func BenchmarkCompile(b *testing.B) {
	c := NewCompiler(Options{})
	ports := manyPorts(1000)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		c.Port(testHost, ports[n%len(ports)], func(nft.Key, nft.Value) {})
		n++
	}
}

// BenchmarkMemory reports what an object costs in the ledger, once installed.
func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		ports := manyPorts(10000)
		c := NewCompiler(Options{})
		before := heap()
		l := ledger.New[nft.Key, nft.Value](c)
		for _, p := range ports {
			c.Port(testHost, p, func(k nft.Key, v nft.Value) { l.Want(&p.ID, k, v) })
		}
		now := time.Now()
		planned := l.Plan(now, 12000)
		for batch := planned.Next(); batch != nil; batch = planned.Next() {
			for _, op := range batch {
				l.Record(op, nil, now)
			}
		}
		b.ReportMetric(float64(heap()-before)/float64(l.Len()), "B/object")
		runtime.KeepAlive(ports)
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestFeaturesThatAreOffAllocateNothing counts the allocations of a compile and of a
// change, from the tracker to the ledger, of a port that uses none of them: weights,
// slow start, routes, affinity, counters.
func TestFeaturesThatAreOffAllocateNothing(t *testing.T) {
	c, ports := NewCompiler(Options{}), manyPorts(100)
	n := 0
	if got := testing.AllocsPerRun(1000, func() {
		c.Port(testHost, ports[n%len(ports)], func(nft.Key, nft.Value) {})
		n++
	}); got > 4 { // the compiler of the port, what it shares, its key, and the answer
		t.Errorf("a compile makes %g allocations", got)
	}
	tr, b := track.New(), dataplane.New(c, memory.New[nft.Key](c.Equal, dataplane.Limits{Atomic: true}))
	if err := b.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	tr.SetHost(testHost)
	b.SetHost(testHost)
	slice := func(last byte) *model.Slice {
		s := &model.Slice{Name: model.SliceName{Namespace: "ns", Name: "s-1"}, Service: "s", Ports: []model.SlicePort{{Proto: model.TCP, Port: 8080}}}
		for _, e := range []byte{1, 2, 3, 4, last} {
			s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 0, e}), Node: "there", State: model.Ready | model.Serving})
		}
		return s
	}
	tr.Set(&model.Service{
		Name: model.ServiceName{Namespace: "ns", Name: "s"}, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, 1})},
		Ports: []model.ServicePort{{Proto: model.TCP, Port: 80}},
	})
	both := [2]*model.Slice{slice(5), slice(6)}
	if got := testing.AllocsPerRun(1000, func() {
		n++
		tr.Set(both[n%2])
		b.Update(tr.Flush())
	}); got > mostOfAChange {
		t.Errorf("a change makes %g allocations, at most %d are expected", got, mostOfAChange)
	} else {
		t.Logf("a change makes %g allocations", got)
	}
}

// mostOfAChange is what resolving a port of five endpoints and compiling it twice takes.
const mostOfAChange = 26
