// SPDX-License-Identifier: Apache-2.0

package track_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/track"
)

// What is set is not settled until it is resolved, and a Service with a new endpoint is so until its next step.
func TestSettled(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	tr := track.New()
	tr.SetClock(func() time.Time { return now })
	settled := func(what string, want bool) {
		t.Helper()
		if tr.Settled(now) != want {
			t.Errorf("%s: settled: %t", what, !want)
		}
		tr.Flush()
	}
	settled("without a host", false)
	tr.SetHost(&model.Host{Name: "here"})
	settled("nothing", true)
	tr.Set(&model.Service{
		Name: model.ServiceName{Namespace: "default", Name: "s0"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []model.ServicePort{{Proto: model.TCP, Port: 80}}, Choice: model.Choice{SlowStart: 20 * time.Second},
	})
	settled("a Service", false)
	slice := slowSlice("s0", 2)
	tr.Set(slice)
	settled("a slice", false)
	settled("nothing more", true)
	tr.SetSuspects(model.Suspects{slice.Endpoints[0].Addr: time.Time{}})
	settled("a suspect", false)
	tr.Set(slowSlice("s0", 3))
	settled("a new endpoint", false)
	settled("at its first step", true)
	now = tr.Next()
	settled("when the next one is due", false)
	now = now.Add(time.Hour)
	tr.Flush()
	settled("when it has all", true)
}

// An endpoint that is new gets its weight in ten steps, at each of which its
// Service alone is looked at, and then nothing is due any more.
func TestSlowStart(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	tr := track.New()
	tr.SetClock(func() time.Time { return now })
	tr.SetHost(&model.Host{Name: "here"})
	for i := range 50 {
		svc := &model.Service{
			Name: model.ServiceName{Namespace: "default", Name: fmt.Sprint("s", i)}, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(i + 1)})},
			Ports: []model.ServicePort{{Proto: model.TCP, Port: 80}}, Choice: model.Choice{SlowStart: 20 * time.Second},
		}
		tr.Set(svc)
		tr.Set(slowSlice(svc.Name.Name, 2))
	}
	tr.Flush()
	if next := tr.Next(); !next.IsZero() {
		t.Fatalf("the next step is due at %v, and nothing is new", next)
	}
	now = now.Add(time.Minute)
	tr.Set(slowSlice("s7", 3))
	start := now
	var shares []int
	for range 20 {
		before := tr.Stats().Resolved
		deltas := tr.Flush()
		if n := tr.Stats().Resolved - before; n != 1 || len(deltas) != 1 {
			t.Fatalf("%d Services resolved, %d changes", n, len(deltas))
		}
		pool := deltas[0].New.Pools()[0]
		shares = append(shares, int(1000*pool.Share(2)/pool.Share(0)+0.5))
		next := tr.Next()
		if next.IsZero() {
			break
		}
		if !next.After(now) {
			t.Fatalf("a step is due at %v, at %v", next, now)
		}
		now = next
	}
	if want := "[100 200 300 400 500 600 700 800 900 1000]"; fmt.Sprint(shares) != want {
		t.Errorf("shares, in thousandths of another's: %v, want %s", shares, want)
	}
	if took := now.Sub(start); took != 20*time.Second {
		t.Errorf("it took %v", took)
	}
	tr.Set(slowSlice("s7", 2)) // and when it goes and comes again it is new again
	tr.Flush()
	tr.Set(slowSlice("s7", 3))
	tr.Flush()
	if tr.Next().IsZero() {
		t.Error("an endpoint that came back is not new")
	}
	tr.Delete(&model.Service{Name: model.ServiceName{Namespace: "default", Name: "s7"}})
	tr.Flush()
	if !tr.Next().IsZero() {
		t.Error("a step of a Service that is gone is due")
	}
}

func slowSlice(service string, n int) *model.Slice {
	s := &model.Slice{Name: model.SliceName{Namespace: "default", Name: service}, Service: service, Ports: []model.SlicePort{{Proto: model.TCP, Port: 8080}}}
	for i := range n {
		s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 0, byte(i + 1)}), State: model.Ready | model.Serving})
	}
	return s
}

// A step rewrites the slots of the endpoint that is new, and hardly any of the others'.
func TestAStepRewritesFewSlots(t *testing.T) {
	for _, c := range []struct{ endpoints, most int }{{2, 1}, {5, 1}, {32, 1}, {100, 1}, {300, 4}} {
		now := time.Unix(1_700_000_000, 0)
		tr := track.New()
		tr.SetClock(func() time.Time { return now })
		tr.SetHost(&model.Host{Name: "here"})
		tr.Set(&model.Service{
			Name: model.ServiceName{Namespace: "default", Name: "s"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
			Ports: []model.ServicePort{{Proto: model.TCP, Port: 80}}, Choice: model.Choice{SlowStart: 10 * time.Second},
		})
		tr.Set(slowSlice("s", c.endpoints-1))
		tr.Flush()
		tr.Set(slowSlice("s", c.endpoints))
		var old *model.Pool
		for steps := 1; ; steps++ {
			pool := old
			for _, d := range tr.Flush() {
				pool = d.New.Pools()[0]
			}
			next := tr.Next()
			if old != nil && !next.IsZero() {
				if n := rewritten(old, pool); n > c.most {
					t.Errorf("step %d of one of %d endpoints: %d slots rewritten, of %d", steps, c.endpoints, n, pool.Size())
				}
			}
			if next.IsZero() {
				break
			}
			old, now = pool, next
		}
	}
}

// rewritten counts the slots that differ between two pools.
func rewritten(a, b *model.Pool) (n int) {
	now := map[int]netip.AddrPort{}
	for i := range b.Size() {
		now[i] = b.Slot(i).Addr
	}
	for i := range a.Size() {
		if now[i] == a.Slot(i).Addr {
			delete(now, i)
		}
	}
	return max(len(now), a.Size()-b.Size())
}

// Beside many, an endpoint that answers again gets its share at once.
func TestComebackBesideMany(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	tr := track.New()
	tr.SetClock(func() time.Time { return now })
	tr.SetHost(host("a"))
	tr.Set(service("s", "10.96.0.1", 80))
	many := slowSlice("s", 100)
	many.Name.Namespace, many.Ports[0].Name = "ns", "p80"
	tr.Set(many)
	back := many.Endpoints[7].Addr
	tr.SetSuspects(model.Suspects{back: time.Time{}})
	tr.Flush()
	tr.SetSuspects(model.Suspects{back: now})
	deltas := tr.Flush()
	if len(deltas) != 1 {
		t.Fatalf("%d changes", len(deltas))
	}
	if pool := deltas[0].New.Pools()[0]; pool.Size() != 100 || !tr.Next().IsZero() {
		t.Errorf("%d slots of 100 endpoints, the next step at %v", pool.Size(), tr.Next())
	}
}
