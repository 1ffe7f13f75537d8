// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	tableSize = 100_000
	benchVIP  = "10.96.0.10:53"
	benchEnd  = "10.244.1.2:5353"
)

// bystander is the nth entry of a large table: DNATed UDP flows of other
// Services.
func bystander(n int) made {
	return udp(fmt.Sprintf("10.%d.%d.%d:%d", 100+n/50000, n/250%200, n%250, 1024+n%50000),
		fmt.Sprintf("10.96.1.%d:53", n%200), fmt.Sprintf("10.244.2.%d:5353", n%250))
}

// BenchmarkDelete measures what a clean-up costs in a table of 100,000 flows. The
// last two are kube-proxy's way. Each has a namespace of its own, because a
// sub-benchmark runs on another thread.
func BenchmarkDelete(b *testing.B) {
	one := []flows.Match{match(flows.OnlyGone, benchVIP, benchEnd)}
	eight := []flows.Match{
		match(flows.OnlyGone, benchVIP, numbered("10.244.1.%d:53", 8)...),
		match(flows.OnlyGone, "10.96.0.11:53", numbered("10.244.1.%d:53", 8)...),
	}
	ours := func(m []flows.Match) func(*testing.B, *Table) (int, error) {
		return func(b *testing.B, t *Table) (int, error) { return deleteStale(b.Context(), t, m) }
	}
	for _, c := range []struct {
		name  string
		stale int // how many there are in the table
		clean func(*testing.B, *Table) (int, error)
	}{
		{"no match", 0, ours(one)},
		{"one match", 1, ours(one)},
		{"eight endpoints of two fronts", 0, ours(eight)},
		{"hundreds of fronts", 0, ours(each(flows.Translated, numbered("10.96.2.1:%d", 200)))},
		{"unfiltered, no match", 0, func(b *testing.B, t *Table) (int, error) {
			t.canFilter = false
			return deleteStale(b.Context(), t, one)
		}},
		{"vishvananda, no match", 0, vishvananda},
		{"vishvananda, one match", 1, vishvananda},
	} {
		b.Run(c.name, func(b *testing.B) {
			inNetns(b, func(t *Table) {
				create(b, tableSize, bystander)
				defer command(b, "", "conntrack", "-F") // all namespaces share one hash table
				measure(b, c.stale, func() (int, error) { return c.clean(b, t) })
			})
		})
	}
}

// measure runs clean with that many stale entries in the table each time.
func measure(b *testing.B, stale int, clean func() (int, error)) {
	b.Helper()
	var cpu time.Duration
	for b.Loop() {
		b.StopTimer()
		create(b, stale, func(n int) made { return udp(fmt.Sprintf("10.244.1.10:%d", 4000+n), benchVIP, benchEnd) })
		before := cpuTime(b)
		b.StartTimer()
		n, err := clean()
		b.StopTimer()
		cpu += cpuTime(b) - before
		if err != nil || n != stale {
			b.Fatalf("deleted %d, %v; want %d", n, err, stale)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(cpu.Microseconds())/1000/float64(b.N), "cpu-ms/op")
}

// cpuTime returns what the process has used so far, in both modes.
func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// theirs is the filter that kube-proxy would pass for the same clean-up.
type theirs struct {
	dst  netip.AddrPort
	from netip.Addr
}

func (f theirs) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	return flow.Forward.Protocol == uint8(model.UDP) && flow.Forward.DstPort == f.dst.Port() &&
		flow.Forward.DstIP.Equal(net.IP(f.dst.Addr().AsSlice())) && flow.Reverse.SrcIP.Equal(net.IP(f.from.AsSlice()))
}

func vishvananda(*testing.B, *Table) (int, error) {
	n, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.FAMILY_V4,
		theirs{netip.MustParseAddrPort(benchVIP), netip.MustParseAddrPort(benchEnd).Addr()})
	return int(n), err
}
