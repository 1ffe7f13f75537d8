// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/test/growth"
	"github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// affinePorts are manyPorts with ClientIP affinity.
func affinePorts(n int) []*model.Port {
	ports := manyPorts(n)
	for _, p := range ports {
		p.SessionAffinity = 3 * time.Hour
	}
	return ports
}

// kernelMemory is what the kernel has allocated for itself, in bytes: slabs, large
// allocations among them, and vmalloc. Everything that runs on the machine is in it.
func kernelMemory(t testing.TB) (sum int) {
	t.Helper()
	all, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(all)) {
		fields := strings.Fields(line)
		if len(fields) > 1 && (fields[0] == "SUnreclaim:" || fields[0] == "VmallocUsed:") {
			kB, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatal(err)
			}
			sum += kB << 10
		}
	}
	return sum
}

// maxAllocatedAhead is far below what the machine has, for a layout that allocates
// for what may come.
const maxAllocatedAhead = 64 << 20

// allocatedAhead is what the kernel allocates for sets whose size is given: a
// bucket of 8 bytes for three quarters of an element, rounded up to a power of two.
func allocatedAhead(objects map[nft.Key]nft.Value) (sum int) {
	for k := range objects {
		for _, s := range table.Sets() {
			if s.Dynamic() && k == nft.SetKey(k.Family, s.Name) {
				buckets := 1
				for buckets < s.Size*4/3 {
					buckets *= 2
				}
				sum += 8 * buckets
			}
		}
	}
	return sum
}

// 10,000 Services of five endpoints with affinity are programmed within 3 s of CPU time,
// and take no more than 50 MB of the kernel's memory. Others use memory and caches meanwhile:
// the least of three attempts counts.
func TestAffinityMemory(t *testing.T) {
	const (
		most    = 50 << 20
		longest = 3 * time.Second
	)
	if ahead := allocatedAhead(compile(t, testHost, affinePorts(10000)...)); ahead > maxAllocatedAhead {
		t.Fatalf("%d MB would be allocated for sets ahead: not tried", ahead>>20)
	}
	least, shortest := 1<<40, time.Hour
	for range 3 {
		bytes, took := costOf(t, affinePorts(10000))
		least, shortest = min(least, bytes), min(shortest, took)
	}
	if least > most || shortest > longest {
		t.Errorf("%d MB of the kernel's memory, at most %d; programmed in %s of CPU time, at most %s", least>>20, most>>20, shortest, longest)
	}
	t.Logf("%.1f MB of the kernel's memory, programmed in %s of CPU time", float64(least)/(1<<20), shortest)
}

// costOf programs ports and returns what that takes of the kernel's memory, and of CPU time,
// the kernel's included. A goroutine of its own has the namespace, which ends with it.
func costOf(t *testing.T, ports []*model.Port) (bytes int, took time.Duration) {
	t.Run("attempt", func(t *testing.T) {
		freshNamespace(t) // on a thread of its own, too
		d := openDriver(t)
		before := kernelMemory(t)
		took = growth.Timed(func() { fill(t, d, compile(t, testHost, ports...)) })
		bytes = kernelMemory(t) - before
		if err := d.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	return bytes, took
}

// writes counts what is written to the kernel.
type writes struct {
	*Driver
	ops int
}

func (w *writes) Commit(ctx context.Context, ops []nft.Op) []error {
	w.ops += len(ops)
	return w.Driver.Commit(ctx, ops)
}

// A restart on right rules writes nothing, and a change of one endpoint is few
// writes in one transaction, and one more before it for chains that are new.
func TestAffinityWrites(t *testing.T) {
	freshNamespace(t)
	ports := affinePorts(100)
	d := &writes{Driver: openDriver(t)}
	var b dataplane.Backend
	sync := func(deltas ...model.Delta) (transactions uint32, ops int) {
		before := d.Transactions()
		d.ops = 0
		b.Update(deltas)
		if _, err := b.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		return d.Transactions() - before, d.ops
	}
	start := func() (transactions uint32, ops int) {
		b = dataplane.New(NewCompiler(Options{}), d)
		if err := b.Adopt(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.SetHost(testHost)
		var deltas []model.Delta
		for _, p := range ports {
			resolve.Reslot(p, nil, b.Slots)
			deltas = append(deltas, model.Delta{New: p})
		}
		return sync(deltas...)
	}
	start()
	for _, p := range ports { // as a source that lists them in another order
		slices.Reverse(p.Frontends[0].On[0].Pool.Endpoints)
	}
	if transactions, ops := start(); transactions != 0 || ops != 0 {
		t.Errorf("%d writes in %d transactions when nothing has changed", ops, transactions)
	}
	for _, change := range []struct {
		what         string
		most         int
		transactions uint32
		pool         func([]model.Endpoint) []model.Endpoint
	}{
		{"replaced", 3, 1, func(e []model.Endpoint) []model.Endpoint {
			e[2] = endpoints("10.99.0.1:8080").Endpoints[0]
			return e
		}},
		{"removed", 6, 2, func(e []model.Endpoint) []model.Endpoint { // the chain for four among it
			e[1] = e[4]
			return e[:4]
		}},
		{"added", 3, 1, func(e []model.Endpoint) []model.Endpoint { return append(e, endpoints("10.99.0.2:8080").Endpoints[0]) }},
	} {
		next := *ports[7]
		pool := &model.Pool{Endpoints: change.pool(slices.Clone(next.Frontends[0].On[0].Pool.Endpoints))}
		next.Frontends = slices.Clone(next.Frontends)
		next.Frontends[0].On = on(balance(pool, false), balance(pool, true), balance(pool, true))
		if transactions, ops := sync(model.Delta{Old: ports[7], New: &next}); transactions != change.transactions || ops > change.most {
			t.Errorf("an endpoint %s: %d writes in %d transactions, want at most %d in %d", change.what, ops, transactions, change.most, change.transactions)
		}
		ports[7] = &next
	}
}

// BenchmarkAffinity programs Services of five endpoints with affinity. The
// kernel's memory is what the whole machine took meanwhile.
func BenchmarkAffinity(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			freshNamespace(b)
			d := openDriver(b)
			ports := affinePorts(n)
			objects := compile(b, testHost, ports...)
			if ahead := allocatedAhead(objects); ahead > maxAllocatedAhead {
				b.Skipf("%d MB would be allocated for sets ahead", ahead>>20)
			}
			before := kernelMemory(b)
			start := time.Now()
			c := NewCompiler(Options{})
			for _, p := range ports {
				c.Port(testHost, p, func(nft.Key, nft.Value) {})
			}
			fill(b, d, objects)
			b.Logf("%d objects compiled and programmed in %s, %.1f MB of the kernel's memory", len(objects),
				time.Since(start).Round(time.Millisecond), float64(kernelMemory(b)-before)/(1<<20))
			b.Run("endpoint", func(b *testing.B) { benchAffineEndpoint(b, d, ports) })
		})
	}
}

// benchAffineEndpoint replaces one endpoint by another: its slot, and what its
// handle names.
func benchAffineEndpoint(b *testing.B, d *Driver, ports []*model.Port) {
	had := map[nft.Key]nft.Value{} // in slots that were changed
	timed(b, func(i int) {
		p := ports[i*7919%len(ports)]
		slot := element(setAffinitySlots, p.ID.Proto, &p.Frontends[0])
		slot.Slot = uint16(i % 5)
		old, changed := had[slot]
		if !changed {
			old = nft.AddressValue(p.Frontends[0].On[0].Pool.Endpoints[i%5].Addr.Addr())
		}
		next := nft.Value{To: [16]byte{10, 127, byte(i >> 8), byte(i)}}
		had[slot] = next
		mustCommit(b, d, []nft.Op{
			{Verb: ledger.Replace, Key: slot, New: next},
			{Verb: ledger.Create, Key: handleElement(setAffinityEndpoints, slot, next), New: nft.Value{To: next.To, Port: 8080}},
			{Verb: ledger.Delete, Key: handleElement(setAffinityEndpoints, slot, old)},
		})
	})
}

// affinityLab is a node with our rules and one pod, which serves both families.
func affinityLab(t *testing.T, objects map[nft.Key]nft.Value, servers ...netip.AddrPort) (*netns.Net, *Driver) {
	t.Helper()
	pod := netns.Pod{Place: "pod", Interface: "pod"}
	for _, s := range servers {
		pod.Addrs = append(pod.Addrs, s.Addr())
	}
	net, err := netns.New(t.Context(), netns.Plan{
		Node:    testHost.IPs,
		Outside: []netip.Addr{netip.MustParseAddr("192.0.2.100"), netip.MustParseAddr("2001:db8::100")},
		Pods:    []netns.Pod{pod},
	})
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = net.Close() })
	for _, s := range servers {
		if _, err := net.Serve("pod", s, model.TCP); err != nil {
			t.Fatal(err)
		}
	}
	var d *Driver
	err = net.Do(netns.Node, func() (err error) {
		d, err = Open(Options{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	fill(t, d, objects)
	return net, d
}

// connect connects the node to a frontend, and to an endpoint by that.
func connect(t *testing.T, net *netns.Net, to, server netip.AddrPort) {
	t.Helper()
	a, err := net.Dial(netns.Call{From: netns.Node, Proto: model.TCP, To: to, Timeout: 5 * time.Second})
	if err != nil || a.Outcome != netns.Answered || a.Server != server {
		t.Fatalf("%s: got %+v, %v", to, a, err)
	}
}

// nft lists a map that has clients in it, of both families, and one that is read
// back is as it was written.
func TestAffinityIsListed(t *testing.T) {
	v4, v6 := netip.MustParseAddrPort("10.244.1.2:8080"), netip.MustParseAddrPort("[fd00:10:244:1::2]:8080")
	p := withAffinity(port("p", front(model.KindClusterIP, "10.96.0.1:80", onAll(balance(endpoints(v4.String()), false)))), time.Hour)
	p6 := withAffinity(port("p", front(model.KindClusterIP, "[fd00:10:96::1]:80", onAll(balance(endpoints(v6.String()), false)))), time.Hour)
	objects := compile(t, testHost, p, p6)
	net, d := affinityLab(t, objects, v4, v6)
	connect(t, net, p.Frontends[0].At, v4)
	connect(t, net, p6.Frontends[0].At, v6)
	list := ""
	if err := net.Do(netns.Node, func() error { list = runNFT(t, "", "list", "ruleset"); return nil }); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{": 10.244.1.2 ", ": fd00:10:244:1::2 "} {
		if !strings.Contains(list, want) {
			t.Errorf("no client of%s in\n%s", want, list)
		}
	}
	for _, diff := range differences(objects, mustObserve(t, d)) {
		t.Error(diff)
	}
}

// crowd sends datagrams to a frontend from any addresses of a range, of which the namespace has all.
type crowd struct {
	*farm
	conn *net.UDPConn
}

func newCrowd(f *farm) *crowd {
	f.t.Helper()
	network, ranges, option := "udp4", "100.64.0.0/10", [2]int{unix.IPPROTO_IP, unix.IP_TRANSPARENT}
	if f.v6 {
		network, ranges, option = "udp6", "fd00:64::/64", [2]int{unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT}
	}
	f.ip("route add local %s dev lo", ranges)
	c, err := net.ListenUDP(network, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = c.Close() })
	raw, err := c.SyscallConn()
	if err != nil {
		f.t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), option[0], option[1], 1) }); err != nil {
		f.t.Fatal(err)
	}
	if err != nil {
		f.t.Skip(err)
	}
	return &crowd{f, c}
}

// client returns one of the addresses.
func (c *crowd) client(n int) netip.Addr {
	if c.v6 {
		return netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x64, 12: byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	}
	return netip.AddrFrom4([4]byte{100, 64 + byte(n>>16), byte(n >> 8), byte(n)})
}

// send sends a datagram from each of some clients, with the number that is to come.
func (c *crowd) send(to netip.AddrPort, first, n, id int) {
	c.t.Helper()
	for i := range n {
		var control []byte
		if a := c.client(first + i); c.v6 {
			control = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: a.As16()})
		} else {
			control = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: a.As4()})
		}
		if _, _, err := c.conn.WriteMsgUDPAddrPort([]byte{byte((id + i) >> 8), byte(id + i)}, control, to); err != nil {
			c.t.Fatal(err)
		}
	}
}

// endpoints returns which endpoint each of some clients is sent to.
func (c *crowd) endpoints(to netip.AddrPort, first, n int) []netip.AddrPort {
	c.t.Helper()
	for len(c.got()) > 0 { // what others have sent
	}
	chosen := make([]netip.AddrPort, n)
	c.send(to, first, n, 0)
	for at, ids := range c.got() {
		for _, id := range ids {
			chosen[id] = at
		}
	}
	return chosen
}

// remembered is how many clients of a port a map has.
func (c *crowd) remembered(set *nft.Set, p *model.Port) int {
	c.t.Helper()
	f := model.FamilyOf(p.Frontends[0].At.Addr())
	list := runNFT(c.t, "", "list", "map", nft.FamilyName(f), Table, set.Name)
	if f == model.IPv6 { // clients are kept as hashes
		return strings.Count(list, "expires")
	}
	return strings.Count(list, " . "+(&portCompiler{host: testHost, port: p}).identity().String()+" . ")
}

// A namespace fills no more of the map than its share, by however many Services and however many
// forged clients, and one of its Services no more than a port's. Clients of another namespace stay with their endpoints,
// and new ones are remembered. A Problem names the Services that have no room left.
func TestAffinityShares(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[v6], func(t *testing.T) {
			const services = 4
			c := newCrowd(newFarm(t, 2, v6))
			service := func(namespace string, n int) *model.Port {
				p := withAffinity(c.port(model.DefaultScheduler, 0, 0), time.Hour)
				p.ID.Service = model.ServiceName{Namespace: namespace, Name: fmt.Sprint("s", n)}
				p.Frontends[0].At = netip.AddrPortFrom(c.vip().Addr(), uint16(1000+n))
				return p
			}
			victim, ports := service("victim", services), []*model.Port{service("victim", services)}
			for i := range services {
				ports = append(ports, service("attacker", i))
			}
			to, attackers := victim.Frontends[0].At, ports[1:]
			d := openDriver(t)
			fill(t, d, compile(t, testHost, ports...))

			const clients = 200
			before := c.endpoints(to, 0, clients)
			flood := func(p *model.Port, first, n int) {
				for ; n > 0; first, n = first+1000, n-1000 { // the kernel's limit of connections is larger
					c.send(p.Frontends[0].At, first, min(n, 1000), 0)
				}
			}
			const begin = 1 << 16 // behind those of the victim
			flood(attackers[0], begin, 6000)
			if n := c.remembered(setAffinity, attackers[0]); !v6 && (n < model.AffinityPortShare || n > model.AffinityPortShare+100) {
				t.Errorf("the map has %d clients of one Service, its share is %d", n, model.AffinityPortShare)
			}
			for i, p := range attackers[1:] {
				flood(p, begin+i<<12, 5000)
			}
			all := 0
			for _, p := range attackers {
				if all += c.remembered(setAffinity, p); v6 {
					break // these are all
				}
			}
			if most := model.AffinityNamespaceShare + 100; !v6 && all > most || v6 && all > most+clients {
				t.Errorf("the map has %d clients of one namespace, its share is %d", all, model.AffinityNamespaceShare)
			}
			if full := d.Problems(); len(full) != 0 {
				t.Errorf("%v while there is room", full)
			}
			flood(attackers[1], 4*begin, affinitySpareSize)
			c.crowdedIs(d, attackers[1].ID.Service)

			late := c.endpoints(to, clients, clients)
			for what, same := range map[string]bool{
				"a client that was there before": slices.Equal(before, c.endpoints(to, 0, clients)),
				"a new client":                   slices.Equal(late, c.endpoints(to, clients, clients)),
			} {
				if !same {
					t.Errorf("%s of the other namespace has lost its endpoint", what)
				}
			}
		})
	}
}

// crowdedIs waits for the Problem that clients of a Service are not remembered, and of no others.
func (c *crowd) crowdedIs(d *Driver, want model.ServiceName) {
	c.t.Helper()
	begin := time.Now()
	for time.Since(begin) < 2*crowdedEvery {
		if full := d.Problems(); len(full) > 0 {
			if name, ok := full[0].Service(); !ok || name != want || len(full) > 1 || full[0].Why != model.WhyFull {
				c.t.Errorf("%v, want one of %s", full, want)
			}
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	c.t.Errorf("no Problem within %s", time.Since(begin))
}

// When all maps are full, new clients are served, and a Problem says so. A known
// client stays known, and one that is new finds room in the spare map while there is some.
func TestAffinityFull(t *testing.T) {
	server := netip.MustParseAddrPort("10.244.1.2:8080")
	p := withAffinity(port("p", front(model.KindClusterIP, "10.96.0.1:80", onAll(balance(endpoints(server.String()), false)))), time.Hour)
	objects := compile(t, testHost, p)
	net, d := affinityLab(t, objects, server)
	full := func() []model.Problem {
		t.Helper()
		for _, diff := range differences(objects, mustObserve(t, d)) {
			t.Error(diff)
		}
		d.crowded.next = time.Time{} // it is read at once
		return d.Problems()
	}
	connect(t, net, p.Frontends[0].At, server)
	if what := full(); len(what) != 0 {
		t.Errorf("%v with one client", what)
	}
	crowd := func(set *nft.Set, n int) {
		t.Helper()
		ops := make([]nft.Op, n)
		for i := range ops {
			k := nft.AddrKey(set, netip.AddrFrom4([4]byte{100, byte(i >> 16), byte(i >> 8), byte(i)}))
			k.Proto = model.TCP
			k = k.WithSecond(netip.AddrFrom4([4]byte{1, 2, 3, 4}))
			ops[i] = nft.Op{Verb: ledger.Create, Key: k, New: nft.AddressValue(server.Addr())}
		}
		before := kernelMemory(t)
		for chunk := range slices.Chunk(ops, d.Limits().Batch) {
			mustCommit(t, d, chunk)
		}
		t.Logf("%.1f MB for %d clients", float64(kernelMemory(t)-before)/(1<<20), n)
	}
	crowd(setAffinity, affinitySize-1)
	connect(t, net, p.Frontends[0].At, server)
	if what := full(); len(what) != 0 {
		t.Errorf("%v, by a known client", what)
	}
	connectNew := func(name, at string) {
		t.Helper()
		other := withAffinity(port(name, front(model.KindClusterIP, at, onAll(balance(endpoints(server.String()), false)))), time.Hour)
		other.ID.Service.Name = name
		next := maps.Clone(objects)
		maps.Copy(next, compile(t, testHost, other))
		mustCommit(t, d, planned(objects, next))
		objects = next
		connect(t, net, other.Frontends[0].At, server)
	}
	connectNew("spare", "10.96.0.2:80")
	if what := full(); len(what) != 0 {
		t.Errorf("%v while there is room", what)
	}
	crowd(setAffinitySpare, affinitySpareSize-1)
	connectNew("none", "10.96.0.3:80")
	if what := full(); len(what) != 1 || what[0].Object != "Service default/none" {
		t.Errorf("%v when the maps are full", what)
	}
}
