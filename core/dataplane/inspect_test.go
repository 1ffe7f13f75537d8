package dataplane_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/dataplane/memory"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// counting counts what the compiler is asked.
type counting struct {
	toy
	ports *int
}

func (c counting) Port(h *model.Host, p *model.Port, emit func(string, string)) []model.Gap {
	*c.ports++
	return c.toy.Port(h, p, emit)
}

// crowd is a synced data plane of many ports.
func crowd(t testing.TB, n int) (b dataplane.Backend, kernel *memory.Driver[string, string], ports []*model.Port, compiled *int) {
	compiled = new(int)
	kernel = memory.New[string](toy{}.Equal, dataplane.Limits{})
	b = dataplane.New(counting{ports: compiled}, kernel)
	if err := b.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.SetHost(&model.Host{Name: "here"})
	for i := range n {
		ip := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String()
		ports = append(ports, port(fmt.Sprint("s", i), ip, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"))
		b.Update([]model.Delta{{New: ports[i]}})
	}
	if _, err := b.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b, kernel, ports, compiled
}

// However much is installed, and though something has drifted, a change waits
// for a step and no more. What drifted in the end is known by its port.
func TestAnAuditPausesForChanges(t *testing.T) {
	b, kernel, ports, compiled := crowd(t, 4000)
	lost := "3 " + ports[77].Fronts[0].At.String()
	kernel.Disturb(func(o map[string]string) {
		delete(o, lost)
		o["0 base"] = "edited" // no port's: so all of them are asked
	})
	audit := b.Inspect()
	audit.Read(t.Context())
	defer audit.Close()
	steps, most, drift := 0, 0, 0
	for more := true; more; steps++ {
		before := *compiled
		var err error
		if drift, more, err = audit.Compare(); err != nil {
			t.Fatal(err)
		}
		most = max(most, *compiled-before)
		if !more {
			break
		}
		i := 1000 + steps
		next := port(fmt.Sprint("s", i), ports[i].Fronts[0].At.Addr().String(), "10.0.0.1", fmt.Sprint("10.0.1.", steps%250))
		b.Update([]model.Delta{{Old: ports[i], New: next}})
		if work, err := b.Sync(t.Context()); err != nil || work.Ops == 0 || work.Ops > 7 {
			t.Fatalf("a change in a pause: %+v, %v", work, err)
		}
	}
	if steps < 20 || most > ledger.Step/4 || drift != 2 {
		t.Errorf("%d steps, up to %d ports compiled in one, drift %d", steps, most, drift)
	}
	kernel.Fail = func(op ledger.Op[string, string]) error {
		if op.Key == lost {
			return errors.New("no")
		}
		return nil
	}
	_, err := b.Sync(t.Context())
	if failing, _ := b.Failing(); err == nil || len(failing) != 1 || failing[ports[77].ID] == nil {
		t.Errorf("failing: %v", failing)
	}
}

// An audit that is given up leaves the rest to the next one.
func TestAnAuditIsGivenUp(t *testing.T) {
	b, kernel, _, _ := crowd(t, 1000)
	kernel.Disturb(func(o map[string]string) { clear(o) })
	audit := b.Inspect()
	audit.Read(t.Context())
	if _, more, err := audit.Compare(); !more || err != nil {
		t.Fatalf("more %v, %v", more, err)
	}
	audit.Close()
	if drift, err := b.Audit(t.Context()); drift != 6002 || err != nil {
		t.Fatalf("drift %d, %v", drift, err)
	}
}

// BenchmarkAudit says how long a change has to wait for a step of an audit.
func BenchmarkAudit(bench *testing.B) {
	for _, n := range []int{1000, 10_000, 50_000} {
		for _, drift := range []int{0, 1} {
			bench.Run(fmt.Sprint("services=", n, "/drift=", drift), func(bench *testing.B) {
				b, kernel, ports, _ := crowd(bench, n)
				var waits []time.Duration
				for bench.Loop() {
					if drift > 0 {
						kernel.Disturb(func(o map[string]string) { delete(o, "3 "+ports[n/2].Fronts[0].At.String()) })
					}
					waits = append(waits, steps(bench.Context(), b)...)
					if _, err := b.Sync(bench.Context()); err != nil {
						bench.Fatal(err)
					}
				}
				slices.Sort(waits)
				bench.ReportMetric(float64(waits[len(waits)/2].Microseconds()), "µs/step-p50")
				bench.ReportMetric(float64(waits[len(waits)*99/100].Microseconds()), "µs/step-p99")
			})
		}
	}
}

// steps audits, and returns how long each step of comparing took.
func steps(ctx context.Context, b dataplane.Backend) (took []time.Duration) {
	audit := b.Inspect()
	audit.Read(ctx)
	for more := true; more; {
		start := time.Now()
		_, more, _ = audit.Compare()
		took = append(took, time.Since(start))
	}
	return took
}

// An audit that could not read says nothing of what was written since: a later
// reading counts for that as well.
func TestAnAuditThatCouldNotReadIsForgotten(t *testing.T) {
	kernel := memory.New[string](toy{}.Equal, dataplane.Limits{Atomic: true})
	lost := &lossy{Driver: kernel}
	b := dataplane.New(toy{}, lost)
	if err := b.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.SetHost(&model.Host{Name: "here"})
	kernel.Broken = errors.New("interrupted")
	audit := b.Inspect()
	audit.Read(t.Context())
	if _, _, err := audit.Compare(); err == nil {
		t.Fatal("read what cannot be read")
	}
	kernel.Broken = nil
	b.Update([]model.Delta{{New: port("a", "10.96.0.1", "10.0.0.1")}})
	lost.lose = true
	if _, err := b.Sync(t.Context()); !errors.Is(err, ledger.ErrUnknown) {
		t.Fatalf("the acknowledgement came: %v", err)
	}
	commits := kernel.Commits
	for range 2 { // the kernel had committed: nothing to do but look
		if _, err := b.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if f := b.Health().Failures; len(f) != 0 || kernel.Commits != commits {
		t.Errorf("%d commits more, failures %v", kernel.Commits-commits, f)
	}
}
