// SPDX-License-Identifier: Apache-2.0

package track

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
)

func slicesOf(services, endpoints int) (all []*model.Slice) {
	for i := range services {
		id := fmt.Sprint("s", i)
		s := &model.Slice{Name: model.SliceName{Namespace: "ns", Name: id + "-1"}, Service: id, Endpoints: make([]model.SliceEndpoint, endpoints)}
		for k := range s.Endpoints {
			n := i*endpoints + k
			s.Endpoints[k].Addr = netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
		}
		all = append(all, s)
	}
	return all
}

// What the addresses of all endpoints take, beside the names of their slices.
func TestAddressesMemory(t *testing.T) {
	const services, endpoints = 10_000, 5
	all := slicesOf(services, endpoints)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	names := map[model.SliceName]*service{}
	start := heap()
	for _, s := range all {
		names[s.Name] = nil
	}
	named := heap()
	table := newSliceTable()
	for _, s := range all {
		table.set(s)
	}
	each := (float64(heap()-named) - float64(named-start)) / (services * endpoints)
	runtime.KeepAlive(names)
	runtime.KeepAlive(all)
	runtime.KeepAlive(&table)
	t.Logf("%.1f bytes an endpoint", each)
	if each > 15 {
		t.Errorf("%.1f bytes an endpoint", each)
	}
}

func BenchmarkAddresses(b *testing.B) {
	all := slicesOf(10_000, 5)
	b.ReportAllocs()
	for b.Loop() {
		table := newSliceTable()
		for _, s := range all {
			table.set(s)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/50_000, "ns/endpoint")
}
