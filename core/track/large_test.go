// SPDX-License-Identifier: Apache-2.0

package track_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/test/growth"
	"github.com/tandem-proxy/tandem/core/track"
)

// A user who may create Services may create one with as many ports as fit an object
// of the API. The others' changes wait for it, so that its cost must not grow with
// the square of that.
func TestAServiceOfManyPorts(t *testing.T) {
	if err := growth.Linear(resolve.MaxFrontends/2, func(n int) []time.Duration { return manyPorts(t, n) }); err != nil {
		t.Error(err)
	}
}

// manyPorts makes a Service of n ports, changes and deletes it, and returns how
// long each step takes.
func manyPorts(t *testing.T, n int) (took []time.Duration) {
	numbers := make([]uint16, n)
	for i := range numbers {
		numbers[i] = uint16(i + 1)
	}
	big := func(ports ...uint16) func(*track.Tracker) {
		s := service("big", "10.96.0.1", ports...)
		s.ClusterIPs = append(s.ClusterIPs, netip.MustParseAddr("fd00::1"))
		return func(tr *track.Tracker) { tr.Set(s) }
	}
	tr := track.New()
	tr.SetHost(host("z"))
	for _, step := range []struct {
		do     func(*track.Tracker)
		deltas int
	}{
		{big(numbers...), 2 * n},
		{func(tr *track.Tracker) { tr.Set(slice("big-1", "big", 7, "10.0.0.1")) }, 1},
		{big(numbers[1:]...), 2},
		{func(tr *track.Tracker) { tr.Delete(&model.Service{Name: name("big")}) }, 2 * (n - 1)},
	} {
		var deltas, told int
		took = append(took, growth.Timed(func() {
			step.do(tr)
			deltas, told = len(tr.Flush()), len(tr.NewProblems())
		}))
		if deltas != step.deltas || told > 20 {
			t.Errorf("step %d: %d changes, want %d; %d problems are reported", len(took), deltas, step.deltas, told)
		}
	}
	return took
}

// BenchmarkFirstFlush resolves all Services, as a start does.
func BenchmarkFirstFlush(b *testing.B) {
	for _, n := range []int{1000, 10_000, 50_000} {
		b.Run(fmt.Sprint("services=", n), func(b *testing.B) {
			services, all := make([]*model.Service, n), make([]*model.Slice, n)
			for i := range services {
				id := fmt.Sprint("s", i)
				services[i] = service(id, netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String(), 80)
				all[i] = slice(id+"-1", id, 80, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5")
			}
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				tr := track.New()
				tr.SetHost(host("z"))
				for i := range services {
					tr.Set(services[i])
					tr.Set(all[i])
				}
				b.StartTimer()
				if got := len(tr.Flush()); got != n {
					b.Fatalf("%d ports of %d Services", got, n)
				}
			}
		})
	}
}

// A Service that exceeds a limit is rejected alone: what was last good of it
// is kept, its endpoints are followed, and no other Service is affected.
func TestAServiceBeyondTheLimits(t *testing.T) {
	tr := track.New()
	tr.SetHost(host("z"))
	tr.Set(service("a", "10.96.0.1", 80))
	tr.Set(service("b", "10.96.0.2", 80))
	tr.Set(slice("a-1", "a", 80, "10.0.0.1"))
	want(t, tr, "+ns/a:p80 10.0.0.1; +ns/b:p80")

	over := service("a", "10.96.0.1", 80, 81)
	over.ExternalIPs = many("198.18.0.0", 40_000)
	tr.Set(over)
	tr.Set(slice("a-1", "a", 80, "10.0.0.2"))
	want(t, tr, "~ns/a:p80 10.0.0.2")
	const text = "Service ns/a: 40001 addresses, limit 1000 (its last valid version is served): exceeds the limits of one Service, or of its namespace; split the Service"
	if ps := tr.Service(name("a")).Problems; len(ps) != 1 || ps[0].String() != text {
		t.Errorf("problems: %v", ps)
	}

	over = service("c", "10.96.0.3", 80)
	over.ExternalIPs = append(many("198.18.0.0", 40_000), netip.MustParseAddr("10.96.0.2"))
	tr.Set(over)
	want(t, tr, "")
	tr.Set(over) // and again
	want(t, tr, "")
	const nothing = "Service ns/c: 40002 addresses, limit 1000 (nothing of it is served): exceeds the limits of one Service, or of its namespace; split the Service"
	if s := tr.Service(name("c")); len(s.Problems) != 1 || s.Object == nil || len(s.Object.ExternalIPs) > 0 || s.Problems[0].String() != nothing {
		t.Errorf("problems %v, and the object is kept", s.Problems)
	}
	tr.Set(service("c", "10.96.0.3", 80))
	tr.Set(service("a", "10.96.0.1", 81))
	want(t, tr, "+ns/a:p81; +ns/c:p80; -ns/a:p80")
	for _, n := range []string{"a", "c"} {
		if ps := tr.Service(name(n)).Problems; n == "c" && len(ps) > 0 {
			t.Errorf("%s still has problems: %v", n, ps)
		}
	}
	tr.Delete(&model.Service{Name: name("a")})
	tr.Delete(&model.Service{Name: name("c")})
	want(t, tr, "-ns/a:p81; -ns/c:p80")
}

func many(first string, n int) []netip.Addr {
	all := make([]netip.Addr, n)
	for i, a := 0, netip.MustParseAddr(first); i < n; i, a = i+1, a.Next() {
		all[i] = a
	}
	return all
}

// Whom a packet concerns is asked of the engine's goroutine, where changes wait for it: also an address that
// thousands of Services ask for costs no more than their number.
func TestManyServicesConcerned(t *testing.T) {
	const most = 16_000
	built := map[int]*track.Tracker{}
	run := func(n int) []time.Duration {
		tr := built[n]
		if tr == nil {
			tr = track.New()
			tr.SetHost(host("z"))
			for i := range n {
				tr.Set(service(fmt.Sprintf("s%05d", i), "10.96.0.1", uint16(1+i)))
			}
			tr.Flush()
			built[n] = tr
		}
		return []time.Duration{growth.Timed(func() {
			if got := len(tr.Concerned(model.TCP, netip.MustParseAddrPort("10.96.0.1:1"))); got != n {
				t.Errorf("%d of %d Services", got, n)
			}
		})}
	}
	if err := growth.Linear(most, run); err != nil {
		t.Error(err)
	}
}
