// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"math"
	"net/netip"
	"runtime"
	"testing"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/test/memory"
	"github.com/tandem-proxy/tandem/core/track"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// counting counts the objects that a compiler emits for ports.
type counting struct {
	*Compiler
	emitted int
}

func (c *counting) Port(h *model.Host, p *model.Port, emit func(nft.Key, nft.Value)) []model.Gap {
	return c.Compiler.Port(h, p, func(k nft.Key, v nft.Value) {
		c.emitted++
		emit(k, v)
	})
}

// cost is the work for one change, from the tracker to the kernel.
type cost struct {
	Resolved, Deltas uint64
	Compiled         int // objects
	Commits, Ops     int
}

// TestCostFollowsChange holds that a change costs the same work whatever the
// size of the cluster. It counts; it does not measure time.
func TestCostFollowsChange(t *testing.T) {
	small, large := costs(t, 100), costs(t, 10000)
	for i, name := range []string{"endpoint replaced", "endpoint added", "endpoint removed", "Service added", "Service deleted"} {
		if small[i] != large[i] {
			t.Errorf("%s: %+v at 100 Services, %+v at 10,000", name, small[i], large[i])
		}
		if c := large[i]; c.Resolved > 1 || c.Deltas != 1 || c.Commits > 1 {
			t.Errorf("%s: %+v", name, c)
		}
		t.Logf("%s: %+v", name, large[i])
	}
	if ops := large[0].Ops; ops != 1 {
		t.Errorf("replacing an endpoint took %d ops, want 1", ops)
	}
}

func costs(t *testing.T, services int) (all []cost) {
	compiler := &counting{Compiler: NewCompiler(Options{})}
	kernel := memory.New[nft.Key](compiler.Equal, dataplane.Limits{Atomic: true})
	kernel.Fail = func(nft.Op) error { return nil }
	b := dataplane.New(compiler, kernel)
	if err := b.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	tr := track.New()
	host := &model.Host{Name: "here"}
	tr.SetHost(host)
	b.SetHost(host)
	service := func(i int) *model.Service {
		return &model.Service{
			Name: model.ServiceName{Namespace: "ns", Name: fmt.Sprint("s", i)}, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})},
			Ports: []model.ServicePort{{Proto: model.TCP, Port: 80}},
		}
	}
	slice := func(i int, endpoints ...byte) *model.Slice {
		name := fmt.Sprint("s", i)
		s := &model.Slice{Name: model.SliceName{Namespace: "ns", Name: name}, Service: name, Ports: []model.SlicePort{{Proto: model.TCP, Port: 8080}}}
		for _, e := range endpoints {
			s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 0, e}), Node: "there", State: model.Ready | model.Serving})
		}
		return s
	}
	step := func() cost {
		before, emitted, commits, ops := tr.Stats(), compiler.emitted, kernel.Commits, kernel.Ops
		b.Update(tr.Flush())
		if _, err := b.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		after := tr.Stats()
		return cost{after.Resolved - before.Resolved, after.Deltas - before.Deltas, compiler.emitted - emitted, kernel.Commits - commits, kernel.Ops - ops}
	}
	for i := range services {
		tr.Set(service(i))
		tr.Set(slice(i, 1, 2, 3))
	}
	tr.Set(slice(9, 1, 2, 3, 4)) // so that all pick chains that follow are there
	step()
	for _, change := range []func(){
		func() { tr.Set(slice(5, 1, 2, 9)) },
		func() { tr.Set(slice(5, 1, 2, 9, 4)) },
		func() { tr.Set(slice(5, 1, 2, 4)) },
		func() {
			tr.Set(slice(services, 1, 2, 3))
			tr.Set(service(services))
		},
		func() { tr.Delete(service(services)) },
	} {
		change()
		all = append(all, step())
	}
	return all
}

// An explanation of a packet is made by running it once without each of some 85 objects. That took
// 4 MB when each statement made a list of its outcomes.
func TestWhatAnExplanationCosts(t *testing.T) {
	const most = 1500 << 10 // bytes
	tr := track.New()
	host := &model.Host{Name: "here", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	tr.SetHost(host)
	tr.Set(&model.Service{
		Name: model.ServiceName{Namespace: "ns", Name: "a"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []model.ServicePort{{Proto: model.TCP, Port: 80}},
	})
	slice := &model.Slice{Name: model.SliceName{Namespace: "ns", Name: "a"}, Service: "a", Ports: []model.SlicePort{{Proto: model.TCP, Port: 8080}}}
	for i := range byte(5) {
		slice.Endpoints = append(slice.Endpoints, model.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 0, i}), Node: "there", State: model.Ready | model.Serving})
	}
	tr.Set(slice)
	var ports []*model.Port
	for _, d := range tr.Flush() {
		ports = append(ports, d.New)
	}
	packet := oracle.Packet{Src: netip.MustParseAddr("10.244.0.9"), Iface: "eth0", Proto: model.TCP, Dst: netip.MustParseAddrPort("10.96.0.1:80")}
	least := uint64(math.MaxUint64)
	for range 5 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		objects := dataplane.Implementation(NewCompiler(Options{Count: true}), host, ports, packet)
		runtime.ReadMemStats(&after)
		if least = min(least, after.TotalAlloc-before.TotalAlloc); len(objects) < 5 {
			t.Fatalf("%d objects: %v", len(objects), objects)
		}
	}
	t.Logf("%d bytes", least)
	if least > most {
		t.Errorf("%d bytes, want at most %d", least, most)
	}
}

// Counting the connections of 10,000 Services with a cluster IP and a port takes less than 20 MB of
// kernel memory with 64 CPUs: one counter for each frontend. Where pods and this node are answered
// in another way there are up to three, and not all of them count (TestCountersAreBounded).
func TestMemoryOfCounters(t *testing.T) {
	const services, cpus, most = 10_000, 64, 20 << 20
	count := func(p *model.Port) (n int) {
		NewCompiler(Options{Count: true}).Port(testHost, p, func(_ nft.Key, v nft.Value) {
			if v.Body != nil && v.Body.Counter != nil {
				n++
			}
		})
		return n
	}
	for _, c := range []struct {
		name string
		port *model.Port
		most int
	}{
		{"cluster IP", port("p", front(model.KindClusterIP, "10.96.0.1:80", onAll(balance(endpoints("10.244.1.2:80", "10.244.1.3:80"), false)))), 1},
		{"external IP, other for pods and host", port("p", front(model.KindExternalIP, "203.0.113.1:80", [model.Origins]model.Action{
			balance(endpoints("10.244.1.2:80"), false), balance(endpoints("10.244.1.3:80"), true), balance(endpoints("10.244.1.4:80"), false),
		})), 3},
	} {
		n := count(c.port)
		bytes := services * n * (cpus*counterPerCPU + counterElement)
		t.Logf("%s: %d counters, %.1f MB for %d Services with %d CPUs", c.name, n, float64(bytes)/1e6, services, cpus)
		if n == 0 || n > c.most || n == 1 && bytes > most || min(services*n, mostCounters(cpus))*(cpus*counterPerCPU+counterElement) > most {
			t.Errorf("%s: %d counters, %d bytes", c.name, n, bytes)
		}
	}
}
