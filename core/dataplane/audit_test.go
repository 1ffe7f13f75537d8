// SPDX-License-Identifier: Apache-2.0

package dataplane_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/memory"
)

// manyPorts is a synced data plane of many ports.
func manyPorts(t testing.TB, n int) (b dataplane.Backend, kernel *memory.Driver[string, string], ports []*model.Port) {
	kernel = memory.New[string](toy{}.Equal, dataplane.Limits{})
	b = dataplane.New(toy{}, kernel)
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
	return b, kernel, ports
}

// Changes go on beside an audit, whose reading misses neighbours of what comes
// and goes: none of those is taken for drift, and what has drifted is found, and
// known by its port.
func TestAnAuditBesideChangesFindsDriftAlone(t *testing.T) {
	const n = 2000
	b, kernel, ports := manyPorts(t, n)
	rng := rand.New(rand.NewPCG(1, 2))
	kernel.Do(func() { kernel.Miss = func(string) bool { return rng.IntN(500) == 0 } })
	for round := range 20 {
		lost := "3 " + ports[n-1-round].Frontends[0].At.String()
		if round%2 > 0 {
			kernel.Disturb(func(o map[string]string) {
				delete(o, lost)
				o["0 base"] = "edited" // no port's
			})
		}
		read, result := make(chan struct{}), make(chan int, 1)
		kernel.Do(func() { kernel.Slow = sync.OnceFunc(func() { close(read); time.Sleep(time.Millisecond) }) })
		go func() {
			drift, err := b.Audit(t.Context())
			if err != nil {
				t.Error(err)
			}
			result <- drift
		}()
		<-read
		drift := -1
		for i := 0; drift < 0; i = (i + 1) % 1000 {
			next := port(ports[i].ID.Service.Name, ports[i].Frontends[0].At.Addr().String(), "10.0.0.1", fmt.Sprint("10.0.1.", rng.IntN(250)))
			b.Update([]model.Delta{{Old: ports[i], New: next}})
			ports[i] = next
			if work, err := b.Sync(t.Context()); err != nil || work.Corrected != 0 {
				t.Fatalf("a change beside an audit: %+v, %v", work, err)
			}
			select {
			case drift = <-result:
			default:
			}
		}
		if want := round % 2 * 2; drift != want {
			t.Fatalf("drift %d, want %d", drift, want)
		}
		if _, err := b.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		if drift > 0 && kernel.Objects[lost] == "" {
			t.Fatal("a lost object is not repaired")
		}
	}
}

// A port is not right again while an object that it shares with others was not written for lack of time.
func TestSharedObjectsAreRepairedFirst(t *testing.T) {
	b, kernel, ports := manyPorts(t, 10)
	kernel.Disturb(func(o map[string]string) { delete(o, "1 count 5") })
	if _, err := b.Audit(t.Context()); err != nil {
		t.Fatal(err)
	}
	kernel.Fail = func(ledger.Op[string, string]) error { return ledger.ErrDeferred }
	if w, err := b.Sync(t.Context()); err != nil || w.Deferred != 1 || len(w.Repaired) > 0 {
		t.Errorf("left to the next Sync: %+v, %v", w, err)
	}
	kernel.Fail = nil
	if w, err := b.Sync(t.Context()); err != nil || len(w.Repaired) != len(ports) {
		t.Errorf("written: %+v, %v", w, err)
	}
}

// What has drifted is known by its port, and the port is reported once it is
// right again. The base is everybody's.
func TestRepairedPortsAreReported(t *testing.T) {
	b, kernel, ports := manyPorts(t, 10)
	repaired := func(damage func(map[string]string)) int {
		t.Helper()
		kernel.Disturb(damage)
		if _, err := b.Audit(t.Context()); err != nil {
			t.Fatal(err)
		}
		w, err := b.Sync(t.Context())
		if err != nil {
			return -len(w.Repaired) - 1
		}
		if again, err := b.Sync(t.Context()); err != nil || again.Repaired != nil {
			t.Fatalf("reported again: %v, %v", again.Repaired, err)
		}
		return len(w.Repaired)
	}
	lost := "3 " + ports[7].Frontends[0].At.String()
	if n := repaired(func(o map[string]string) { o["9 foreign"] = "x" }); n != 0 {
		t.Errorf("%d ports had something of another program's", n)
	}
	kernel.Fail = func(op ledger.Op[string, string]) error {
		if op.Key == lost {
			return errors.New("no")
		}
		return nil
	}
	if n := repaired(func(o map[string]string) { delete(o, lost) }); n != -1 {
		t.Errorf("%d ports reported, though the repair failed", n)
	}
	if failing := b.Health().Failures; len(failing) != 1 || failing[ports[7].ID] == nil {
		t.Errorf("failing: %v", failing)
	}
	kernel.Fail = nil
	time.Sleep(time.Until(b.Next()))
	if w, err := b.Sync(t.Context()); err != nil || len(w.Repaired) != 1 || w.Repaired[0] != ports[7].ID {
		t.Errorf("reported %v, %v", w.Repaired, err)
	}
	if n := repaired(func(o map[string]string) { delete(o, "0 base") }); n != len(ports) {
		t.Errorf("%d ports reported after the base was gone", n)
	}
}

// A data plane that does not answer holds up no changes, and what it says in the
// end counts for nothing.
func TestAReadingThatNeverEndsIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, kernel, ports := manyPorts(t, 10)
		hang := make(chan struct{})
		kernel.Do(func() { kernel.Slow = func() { <-hang } })
		late := make(chan error, 1)
		go func() {
			_, err := b.Audit(t.Context())
			late <- err
		}()
		time.Sleep(2 * dataplane.ReadLimit)
		for range 3 {
			if _, err := b.Audit(t.Context()); err == nil {
				t.Fatal("read beside a reading that has not ended")
			}
		}
		b.Update([]model.Delta{{Old: ports[0]}})
		if work, err := b.Sync(t.Context()); err != nil || work.Ops == 0 {
			t.Errorf("a change: %+v, %v", work, err)
		}
		kernel.Do(func() { kernel.Slow = nil })
		kernel.Disturb(func(o map[string]string) { delete(o, "0 base") })
		close(hang)
		if err := <-late; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the reading that was given up: %v", err)
		}
		if drift, err := b.Audit(t.Context()); drift != 1 || err != nil {
			t.Errorf("the next audit: drift %d, %v", drift, err)
		}
	})
}

// Books that are wrong of a key are corrected when an op does not fit, and the
// change takes place in the same Sync.
func TestOpsThatDoNotFitCorrectTheBooks(t *testing.T) {
	for _, limits := range []dataplane.Limits{{}, {Atomic: true}, {Atomic: true, Batch: 3}} {
		b := newBench(t, limits)
		b.start()
		was := port("a", "10.96.0.1", "10.0.0.1")
		b.Update([]model.Delta{{New: was}, {New: port("b", "10.96.0.2", "10.0.0.2")}})
		if _, err := b.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		foreign := port("c", "10.96.0.3", "10.0.0.3", "10.0.0.4")
		b.kernel.Do(func() {
			toy{}.Port(nil, foreign, func(k, _ string) { b.kernel.Objects[k] = "of another program" })
			toy{}.Port(nil, was, func(k, _ string) { delete(b.kernel.Objects, k) })
		})
		b.Update([]model.Delta{{Old: was}, {New: foreign}})
		reads := b.kernel.Observes
		work, err := b.Sync(t.Context())
		if err != nil || work.Failed != 0 || work.Corrected == 0 || b.kernel.Observes != reads {
			t.Errorf("%+v: %+v, %v, after %d readings", limits, work, err, b.kernel.Observes-reads)
		}
		if now := work.Repaired; !slices.Contains(now, was.ID) || !slices.Contains(now, foreign.ID) || len(now) != 2 {
			t.Errorf("%+v: repaired are %v", limits, now)
		}
		if drift, err := b.Audit(t.Context()); err != nil || drift > 1 { // what a shared with b is gone
			t.Errorf("%+v: drift %d, %v", limits, drift, err)
		}
	}
}

// BenchmarkAudit reports how long a change waits during an audit.
func BenchmarkAudit(bench *testing.B) {
	for _, n := range []int{1000, 10_000, 50_000} {
		bench.Run(fmt.Sprint("services=", n), func(bench *testing.B) {
			b, _, ports := manyPorts(bench, n)
			var waits []time.Duration
			for bench.Loop() {
				done := make(chan struct{})
				go func() {
					defer close(done)
					if drift, err := b.Audit(bench.Context()); drift != 0 || err != nil {
						bench.Error(drift, err)
					}
				}()
				waits = append(waits, beside(bench, b, ports[0], done)...)
			}
			slices.Sort(waits)
			bench.ReportMetric(float64(waits[len(waits)/2].Microseconds()), "µs/change-p50")
			bench.ReportMetric(float64(waits[len(waits)*99/100].Microseconds()), "µs/change-p99")
		})
	}
}

// beside takes a port away and back until done, and returns how long each took.
func beside(bench *testing.B, b dataplane.Backend, p *model.Port, done chan struct{}) (took []time.Duration) {
	for {
		start := time.Now()
		b.Update([]model.Delta{{Old: p}})
		b.Update([]model.Delta{{New: p}})
		if _, err := b.Sync(bench.Context()); err != nil {
			bench.Fatal(err)
		}
		took = append(took, time.Since(start))
		select {
		case <-done:
			return took
		default:
			time.Sleep(200 * time.Microsecond)
		}
	}
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
	if _, err := b.Audit(t.Context()); err == nil {
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

// plain hides that a driver can look at single objects.
type plain struct {
	dataplane.Driver[string, string]
}

func (p plain) Limits() dataplane.Limits {
	l := p.Driver.Limits()
	l.Get = false
	return l
}

func (plain) Get(context.Context, []string, func(string, string)) error {
	panic("it has said that it cannot")
}

// suspects asks twice, as an engine may, whether others have written.
func suspects(t *testing.T, b dataplane.Backend) bool {
	t.Helper()
	yes, err := b.Disturbed(t.Context())
	if again, _ := b.Disturbed(t.Context()); err != nil || again != yes {
		t.Errorf("disturbed: %t and %t, %v", yes, again, err)
	}
	return yes
}

// An audit that reads twice, and finds the same both times, leaves no suspicion.
func TestTheSecondReadingIsAnAudit(t *testing.T) {
	kernel := memory.New[string](toy{}.Equal, dataplane.Limits{})
	b := dataplane.New(toy{}, plain{kernel})
	if err := b.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.SetHost(&model.Host{Name: "here"})
	b.Update([]model.Delta{{New: port("a", "10.96.0.1", "10.0.0.1")}})
	if _, err := b.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	kernel.Disturb(func(o map[string]string) { delete(o, "0 base") })
	if drift, err := b.Audit(t.Context()); drift != 1 || err != nil || suspects(t, b) {
		t.Errorf("drift %d, %v; or another audit is due", drift, err)
	}
}

// What others write between the two readings of one audit is suspected after it,
// though the second reading has seen it: that one reads what it was asked for.
func TestAWriteBetweenTwoReadingsIsSuspected(t *testing.T) {
	kernel := memory.New[string](toy{}.Equal, dataplane.Limits{})
	b := dataplane.New(toy{}, plain{kernel})
	if err := b.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.SetHost(&model.Host{Name: "here"})
	b.Update([]model.Delta{{New: port("a", "10.96.0.1", "10.0.0.1")}})
	mustAudit := func(want int) {
		t.Helper()
		if drift, err := b.Audit(t.Context()); drift != want || err != nil {
			t.Fatalf("drift %d, %v, want %d", drift, err, want)
		}
		if _, err := b.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	mustAudit(0)
	kernel.Disturb(func(o map[string]string) { delete(o, "0 base") })
	kernel.Do(func() {
		kernel.Slow = sync.OnceFunc(func() { kernel.Disturb(func(o map[string]string) { delete(o, "3 10.96.0.1:80") }) })
	})
	mustAudit(1)
	if !suspects(t, b) {
		t.Error("a write between the readings is not suspected")
	}
	mustAudit(1)
	if kernel.Objects["3 10.96.0.1:80"] == "" {
		t.Error("not repaired")
	}
	mustAudit(0)
	if suspects(t, b) {
		t.Error("suspicious forever")
	}
}

// An audit that fails after a good reading has not repaired what that would have
// shown.
func TestAnAuditThatFailsLateLeavesSuspicion(t *testing.T) {
	b, kernel, _ := manyPorts(t, 1)
	kernel.Disturb(func(o map[string]string) { delete(o, "0 base") })
	kernel.Do(func() { kernel.Slow = func() { kernel.Do(func() { kernel.Broken = errors.New("no memory") }) } })
	if _, err := b.Audit(t.Context()); err == nil {
		t.Fatal("read what cannot be read")
	}
	if !suspects(t, b) {
		t.Error("objects that the audit has not read are not suspected")
	}
	kernel.Do(func() { kernel.Broken, kernel.Slow = nil, nil })
	if drift, err := b.Audit(t.Context()); drift != 1 || err != nil || suspects(t, b) {
		t.Errorf("the next audit: drift %d, %v", drift, err)
	}
}

// Reading back that has to wait for an audit continues soon after it.
func TestReadBackFollowsAnAuditSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := memory.New[string](toy{}.Equal, dataplane.Limits{Atomic: true})
		lost := &lossy{Driver: kernel}
		b := dataplane.New(toy{}, plain{lost})
		if err := b.Adopt(t.Context()); err != nil {
			t.Fatal(err)
		}
		const long = 30 * time.Second
		kernel.Do(func() { kernel.Slow = sync.OnceFunc(func() { time.Sleep(long) }) })
		end := time.Now().Add(long)
		go func() { _, _ = b.Audit(t.Context()) }()
		synctest.Wait()
		b.SetHost(&model.Host{Name: "here"})
		lost.lose = true
		for attempts := 0; ; attempts++ {
			if _, err := b.Sync(t.Context()); err == nil {
				break
			}
			if attempts > 200 {
				t.Fatal("a busy loop")
			}
			time.Sleep(time.Until(b.Next()))
		}
		if late := time.Since(end); late < 0 || late > time.Second {
			t.Errorf("read back %s after the audit", late)
		}
	})
}

// More suspects than are read one by one are read again, and what that
// misses is looked at: two readings that miss the same object agree on nothing.
func TestTwoReadingsThatMissTheSameFindNoDrift(t *testing.T) {
	const n = 300 // of seven objects each
	b, kernel, ports := manyPorts(t, n)
	missed := "3 " + ports[0].Frontends[0].At.String()
	kernel.Do(func() { kernel.Miss = func(k string) bool { return k == missed } })
	edited := 0
	kernel.Disturb(func(o map[string]string) {
		for k := range o {
			if k[0] == '2' {
				o[k] = "edited"
				edited++
			}
		}
	})
	if drift, err := b.Audit(t.Context()); drift != edited || edited <= 1024 || err != nil {
		t.Errorf("drift %d of %d objects, %v", drift, edited, err)
	}
	if kernel.Observes != 3 || kernel.Gets != 1 {
		t.Errorf("%d readings with that of the start, %d single looks", kernel.Observes, kernel.Gets)
	}
	if _, err := b.Sync(t.Context()); err != nil || kernel.Gets != 1 {
		t.Errorf("%v after %d single looks: an op did not fit", err, kernel.Gets)
	}
}
