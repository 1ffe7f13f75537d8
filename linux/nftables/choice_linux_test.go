// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// farm is UDP endpoints on addresses of the test's namespace.
type farm struct {
	t       testing.TB
	v6      bool
	servers map[netip.AddrPort]*net.UDPConn
}

// vip returns the address of the Service that the farm's clients use.
func (f *farm) vip() netip.AddrPort {
	if f.v6 {
		return netip.MustParseAddrPort("[fd00:10:96::10]:80")
	}
	return netip.MustParseAddrPort("10.96.0.10:80")
}

func (f *farm) client() netip.Addr {
	if f.v6 {
		return netip.MustParseAddr("fd00:10:244:9::9")
	}
	return netip.MustParseAddr("10.244.9.9")
}

// endpoint returns the address of an endpoint.
func (f *farm) endpoint(i int) netip.AddrPort {
	if f.v6 {
		return netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("fd00:10:244:2::%x", i+2)), 8080)
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 2, byte(i + 2)}), 8080)
}

// newFarm makes a namespace with n endpoints in it.
func newFarm(t testing.TB, n int, v6 bool) *farm {
	t.Helper()
	freshNamespace(t)
	f := &farm{t: t, v6: v6, servers: map[netip.AddrPort]*net.UDPConn{}}
	f.ip("link set lo up")
	routed := netip.PrefixFrom(f.vip().Addr(), f.vip().Addr().BitLen())
	f.address(f.client())
	f.ip("route add %s dev lo src %s", routed, f.client())
	for i := range n {
		at := f.endpoint(i)
		f.address(at.Addr())
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadBuffer(4 << 20)
		t.Cleanup(func() { _ = c.Close() })
		f.servers[at] = c
	}
	f.ready()
	return f
}

// ready waits until each endpoint is reached: the kernel may take a while to make
// the routes of IPv6 addresses.
func (f *farm) ready() {
	f.t.Helper()
	for at := range f.servers {
		for begin := time.Now(); ; {
			f.datagram(0, at)
			if len(f.got()[at]) > 0 {
				break
			}
			if time.Since(begin) > 10*time.Second {
				f.t.Fatalf("%s is not reached", at)
			}
		}
	}
	for len(f.got()) > 0 { // what was late
	}
}

// address adds an address, which is ready at once.
func (f *farm) address(a netip.Addr) {
	f.t.Helper()
	if a.Is6() {
		f.ip("address add %s/128 dev lo nodad", a)
	} else {
		f.ip("address add %s/32 dev lo", a)
	}
}

func (f *farm) ip(format string, args ...any) {
	f.t.Helper()
	mustBeApart(f.t)
	path, err := exec.LookPath("ip")
	if err != nil {
		f.t.Skip("the ip command is not installed")
	}
	if out, err := exec.Command(path, strings.Fields(fmt.Sprintf(format, args...))...).CombinedOutput(); err != nil {
		f.t.Fatalf("ip "+format+": %v: %s", append(args, err, out)...)
	}
}

// port returns the Service port over a pool of endpoints with weights.
func (f *farm) port(s model.Scheduler, weights ...uint16) *model.Port {
	pool := &model.Pool{}
	for i, w := range weights {
		pool.Endpoints = append(pool.Endpoints, model.Endpoint{Addr: f.endpoint(i), Weight: w})
	}
	if s == model.Maglev {
		pool.Hash()
	} else {
		pool.Weigh()
	}
	p := port("web", model.Frontend{Kind: model.KindClusterIP, At: f.vip(), On: onAll(balance(pool, false))})
	p.ID.Proto, p.Scheduler = model.UDP, s
	return p
}

// from sends a datagram from a source port.
func (f *farm) from(sport uint16) {
	f.t.Helper()
	f.datagram(sport, f.vip())
}

func (f *farm) datagram(sport uint16, to netip.AddrPort) {
	f.t.Helper()
	c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(f.client(), sport)), net.UDPAddrFromAddrPort(to))
	if err != nil {
		f.t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte{byte(sport >> 8), byte(sport)}); err != nil {
		f.t.Fatal(err)
	}
}

// got returns which source ports each endpoint has got datagrams from.
func (f *farm) got() map[netip.AddrPort][]uint16 {
	f.t.Helper()
	all := map[netip.AddrPort][]uint16{}
	for at, c := range f.servers {
		for {
			b := make([]byte, 2)
			_ = c.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
			_, err := c.Read(b)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				f.t.Fatal(err)
			}
			all[at] = append(all[at], uint16(b[0])<<8|uint16(b[1]))
		}
	}
	return all
}

// send sends n datagrams from as many source ports and returns which endpoints got them.
func (f *farm) send(n int) map[netip.AddrPort][]uint16 {
	f.t.Helper()
	all, come := map[netip.AddrPort][]uint16{}, 0
	const atOnce = 500 // which all buffers have room for
	for first := 0; first < n; first += atOnce {
		last := min(first+atOnce, n)
		for i := first; i < last; i++ {
			f.from(uint16(20000 + i))
		}
		for begin := time.Now(); come < last; {
			for at, ports := range f.got() {
				all[at] = append(all[at], ports...)
				come += len(ports)
			}
			if time.Since(begin) > 20*time.Second {
				f.t.Fatalf("%d of %d datagrams have come", come, last)
			}
		}
	}
	return all
}

func TestWeightsInKernel(t *testing.T) {
	const connections = 10000
	for _, v6 := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[v6], func(t *testing.T) {
			f := newFarm(t, 2, v6)
			fill(t, openDriver(t), compile(t, testHost, f.port(model.DefaultScheduler, 80, 20)))
			got := f.send(connections)
			share := float64(len(got[f.endpoint(0)])) / connections
			t.Logf("%d connections: %.2f %% and %.2f %%", connections, 100*share, 100*float64(len(got[f.endpoint(1)]))/connections)
			if math.Abs(share-0.8) > 5*math.Sqrt(.8*.2/connections) { // once in a million runs
				t.Errorf("%.4f of all reach the endpoint with weight 80 of 100", share)
			}
		})
	}
}

func TestRoundRobinInKernel(t *testing.T) {
	f := newFarm(t, 3, false)
	fill(t, openDriver(t), compile(t, testHost, f.port(model.RoundRobin, 0, 0, 0)))
	for at, ports := range f.send(300) {
		if len(ports) != 100 {
			t.Errorf("%s has %d of 300", at, len(ports))
		}
	}
}

// Two nodes with the same endpoints send a client's port to the same one, whatever each
// had before, and so does the simulator. When an endpoint
// leaves, nearly all others' clients stay. Each node is a namespace with a kernel's rules.
func TestMaglevInKernel(t *testing.T) {
	const connections, endpoints = 3000, 10
	for _, v6 := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[v6], func(t *testing.T) {
			names := &farm{v6: v6} // of addresses
			one, sim := maglevNode(t, v6, connections, endpoints)
			other, _ := maglevNode(t, v6, connections, endpoints-3, endpoints)
			less, _ := maglevNode(t, v6, connections, endpoints, endpoints-1)
			gone := names.endpoint(endpoints - 1)
			alike, predicted, moved, shares := 0, 0, 0, map[netip.AddrPort]int{}
			for sport, at := range one {
				shares[at]++
				if other[sport] == at {
					alike++
				}
				if at != gone && less[sport] != at {
					moved++
				}
				out := sim.Decide(oracle.Packet{Src: names.client(), Sport: sport, Proto: model.UDP, Dst: names.vip()})
				if len(out.Endpoints) == 1 && out.Endpoints[0].Addr == at {
					predicted++
				}
			}
			fewest, most := slices.Min(slices.Collect(maps.Values(shares))), slices.Max(slices.Collect(maps.Values(shares)))
			t.Logf("%d flows: %d alike on two nodes, %d as predicted, %d to %d for an endpoint; %.2f %% move without need when one of %d endpoints leaves",
				len(one), alike, predicted, fewest, most, 100*float64(moved)/connections, endpoints)
			if len(one) != connections || alike != connections || predicted != connections {
				t.Errorf("of %d flows %d are alike on two nodes, %d where the hash leads", len(one), alike, predicted)
			}
			if fair := connections / endpoints; len(shares) != endpoints || fewest < fair*5/6 || most > fair*7/6 { // the same ports in every run
				t.Errorf("%d endpoints have %d to %d flows each", len(shares), fewest, most)
			}
			if moved > connections*2/100 {
				t.Errorf("%d of %d flows move without need", moved, connections)
			}
		})
	}
}

// maglevNode makes a node whose Service has had so many endpoints, one number after the
// other, and returns which of them each client's port reaches in the end.
func maglevNode(t *testing.T, v6 bool, connections int, endpoints ...int) (reached map[uint16]netip.AddrPort, sim *nft.Sim) {
	t.Helper()
	f := newFarm(t, slices.Max(endpoints), v6)
	b := newBackend(NewCompiler(Options{}), openDriver(t))
	if err := b.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.SetHost(testHost)
	var old *model.Port
	for _, n := range endpoints {
		p := f.port(model.Maglev, make([]uint16, n)...)
		b.Update([]model.Delta{{Old: old, New: p}})
		if _, err := b.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		old = p
	}
	reached = map[uint16]netip.AddrPort{}
	for at, ports := range f.send(connections) {
		for _, sport := range ports {
			reached[sport] = at
		}
	}
	return reached, nft.NewSim(compile(t, testHost, old), testHost)
}

// nft lists what there is and loads it again, and a restart writes nothing.
func TestChoiceListsAndRestarts(t *testing.T) {
	f := newFarm(t, 3, false)
	weighted, hashed, turns := f.port(model.DefaultScheduler, 5, 2, 1), f.port(model.Maglev, 0, 0, 0), f.port(model.RoundRobin, 0, 0, 0)
	hashed.ID.Service.Name, turns.ID.Service.Name = "hashed", "turns"
	hashed.Frontends[0].At = netip.MustParseAddrPort("10.96.0.11:80")
	turns.Frontends[0].At = netip.MustParseAddrPort("10.96.0.12:80")
	ports := []*model.Port{weighted, hashed, turns}
	d := &writes{Driver: openDriver(t)}
	start := func() {
		t.Helper()
		d.ops = 0
		b := dataplane.New(NewCompiler(Options{}), d)
		if err := b.Adopt(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.SetHost(testHost)
		for _, p := range ports {
			b.Update([]model.Delta{{New: p}})
		}
		if _, err := b.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	start()
	listed := runNFT(t, "", "list", "table", "ip", Table)
	for _, want := range []string{"jhash ip saddr . th sport mod 1021 seed 0x54616e64", "numgen inc mod 3", "numgen random mod 8"} {
		if !strings.Contains(listed, want) {
			t.Errorf("nft does not list %q", want)
		}
	}
	if start(); d.ops != 0 {
		t.Errorf("%d writes when nothing has changed", d.ops)
	}
	got := dataplane.New(NewCompiler(Options{}), d)
	if err := got.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	slots := got.Slots(model.UDP, f.vip(), model.FromOutside)
	if len(slots) != 8 {
		t.Errorf("%d slots are read back, want 8", len(slots))
	}
	runNFT(t, "", "delete", "table", "ip", Table)
	runNFT(t, listed, "-f", "-")
	if again := runNFT(t, "", "list", "table", "ip", Table); again != listed {
		t.Errorf("nft lists other rules than it loads:\n%s", differing(listed, again))
	}
}

// differing lists the lines that two texts do not have equally often.
func differing(before, now string) string {
	more := map[string]int{}
	for line := range strings.Lines(before) {
		more[line]--
	}
	for line := range strings.Lines(now) {
		more[line]++
	}
	var all []string
	for line, n := range more {
		if n != 0 {
			all = append(all, fmt.Sprintf("%+d: %s", n, strings.TrimSpace(line)))
		}
	}
	if len(all) == 0 {
		return "the same lines in another order"
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// The first packet of a connection meets no more statements by hash than at random. What
// that costs the processor is shown, and not judged: the medians of short rounds, in turn.
// Most of it is the socket's; both have that.
func TestMaglevFirstPacket(t *testing.T) {
	const rounds, packets = 200, 25
	f := newFarm(t, 10, false)
	f.ip("route add 10.96.0.11/32 dev lo src %s", f.client())
	random, hashed := f.port(model.DefaultScheduler, make([]uint16, 10)...), f.port(model.Maglev, make([]uint16, 10)...)
	hashed.ID.Service.Name, hashed.Frontends[0].At = "hashed", netip.MustParseAddrPort("10.96.0.11:80")
	objects := compile(t, testHost, random, hashed)
	fill(t, openDriver(t), objects)
	sim := nft.NewSim(objects, testHost)
	var met [2]int
	var took [2][]time.Duration
	for round := range rounds {
		for i := range met {
			which := (i + round) % 2
			to := []*model.Port{random, hashed}[which].Frontends[0].At
			begin := processorTime(t)
			for n := range packets {
				f.datagram(uint16(10000+round*packets+n), to)
			}
			took[which] = append(took[which], (processorTime(t)-begin)/packets)
			met[which] = max(met[which], sim.Statements(oracle.Packet{Src: f.client(), Sport: uint16(10000 + round), Proto: model.UDP, Dst: to}))
		}
	}
	for i := range took {
		slices.Sort(took[i])
	}
	t.Logf("a first packet meets %d statements at random, %d by hash; CPU %v and %v", met[0], met[1], took[0][rounds/2], took[1][rounds/2])
	if met[0] == 0 || met[1] > met[0] {
		t.Errorf("a first packet meets %d statements at random, %d by hash", met[0], met[1])
	}
}

// processorTime is what the calling thread, which is locked, has used of a processor.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}
