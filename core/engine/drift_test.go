// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// writers always knows the same ones.
type writers struct {
	all   dataplane.Candidates
	asked []time.Time
	muted atomic.Bool
}

func (w *writers) Since(t time.Time) dataplane.Candidates {
	w.asked = append(w.asked, t)
	return w.all
}

func (w *writers) Mute(on bool) error {
	w.muted.Store(on)
	return nil
}

// Drift is remembered by object: what was wanted and found, whose it is, who wrote,
// when it was found and when repaired.
func TestDriftIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		who := dataplane.Writer{Name: "nft", PID: 7}
		w := &writers{all: dataplane.Candidates{Writers: []dataplane.Writer{who}, Incomplete: true}}
		b := start(t, func(o *engine.Options) { o.Writers = w })
		b.kernel.Do(func() {
			b.kernel.Fail = func(ledger.Op[string, string]) error {
				if !w.muted.Load() {
					t.Error("the engine listened to its own write")
				}
				return nil
			}
		})
		b.Set(service("a", "10.96.0.1"))
		b.Set(service("b", "10.96.0.2"))
		b.Synced(true)
		sleep(time.Minute)
		b.kernel.Disturb(func(o map[string]string) {
			delete(o, "10.96.0.1:80")
			o["10.96.0.2:80"] = "hijacked"
			o["10.96.0.3:80"] = "smuggled in"
		})
		sleep(time.Second)
		s, err := b.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		owner := func(n string) model.PortID {
			return model.PortID{Service: model.ServiceName{Namespace: "ns", Name: n}, Proto: model.TCP}
		}
		want := map[string]dataplane.Difference{
			"10.96.0.1:80": {State: dataplane.Missing, Wanted: "reject", Owner: owner("a"), Record: `{"Key":"10.96.0.1:80","Value":"reject"}`},
			"10.96.0.2:80": {State: dataplane.Differs, Wanted: "reject", Found: "hijacked", Owner: owner("b"), Record: `{"Key":"10.96.0.2:80","Value":"hijacked"}`},
			"10.96.0.3:80": {State: dataplane.Unexpected, Found: "smuggled in", Record: `{"Key":"10.96.0.3:80","Value":"smuggled in"}`},
		}
		for _, d := range s.Drifts {
			w := want[d.Object]
			w.Object = d.Object
			if d.Difference != w || len(d.By.Writers) != 1 || d.By.Writers[0] != who || !d.By.Incomplete || d.Found.IsZero() || d.Repaired.Before(d.Found) {
				t.Errorf("%+v, want %+v", d, w)
			}
			delete(want, d.Object)
		}
		if len(want) > 0 || len(b.found) != 3 {
			t.Errorf("not remembered: %v; reported %d", want, len(b.found))
		}
		if len(w.asked) != 1 || w.asked[0].IsZero() {
			t.Errorf("writers asked since %v", w.asked)
		}
		if w.muted.Load() {
			t.Error("no listener after a sync")
		}
		h := b.History().Find(history.Filter{})
		if !slices.ContainsFunc(h.Entries, func(e history.Entry) bool {
			return e.Kind == "Drift" && e.Count == 3 && e.Detail == "by nft, perhaps others"
		}) {
			t.Errorf("no name in the history: %+v", h.Entries)
		}
	})
}

// An unnoticed change is found by an audit on request, at once.
func TestAuditOnRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		if _, err := b.Audit(t.Context()); err != engine.ErrNotReady {
			t.Fatalf("before the source is synced: %v", err)
		}
		b.Set(service("a", "10.96.0.1"))
		b.Synced(true)
		sleep(time.Minute)
		b.kernel.Do(func() { delete(b.kernel.Objects, "10.96.0.1:80") }) // unnoticed
		before, audited := time.Now(), b.audited.Load()
		if _, err := b.Audit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if synctest.Wait(); b.audited.Load() != audited+1 {
			t.Errorf("%d audits reported, want 1", b.audited.Load()-audited)
		}
		s, err := b.Snapshot(t.Context())
		if err != nil || len(s.Drifts) != 1 || time.Since(before) > time.Second {
			t.Fatalf("%v, %v after %s", err, s.Drifts, time.Since(before))
		}
		b.kernel.Do(func() { b.kernel.Slow = func() { sleep(10 * time.Second) } })
		done := make(chan error, 2)
		for range 2 {
			go func() { _, err := b.Audit(t.Context()); done <- err }()
			sleep(time.Second) // the second one asks while the first audit reads
		}
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if b.kernel.Observes < 4 {
			t.Errorf("read %d times: the second answer was older than the question", b.kernel.Observes)
		}
	})
}

// Where it is certain that no other program has written, a question is answered without
// reading, by when everything was read; after a write of another program it is read.
func TestAQuestionReadsOnlyWhatOthersMayHaveChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := newKernel()
		kernel.Limit.Certain = true
		b := startOn(t, kernel, nil)
		b.Set(service("a", "10.96.0.1"))
		b.Synced(true)
		adopted := time.Now()
		sleep(time.Minute)
		b.Set(service("b", "10.96.0.2"))
		synctest.Wait()
		before := kernel.Observes
		if at, err := b.Audit(t.Context()); err != nil || at.After(adopted) || kernel.Observes != before {
			t.Errorf("read %d times, at %s, %v", kernel.Observes-before, at, err)
		}
		kernel.Disturb(func(o map[string]string) { o["10.96.0.2:80"] = "hijacked" })
		asked := time.Now()
		if at, err := b.Audit(t.Context()); err != nil || at.Before(asked) || kernel.Observes == before || b.Status().Drift != 1 {
			t.Errorf("read %d times, at %s, %v: %d objects of drift", kernel.Observes-before, at, err, b.Status().Drift)
		}
	})
}

// A day of changes, with audits in between that take their time and a neighbour that
// writes what is no business of ours: nothing is called drift.
func TestADayOfChurnIsNoDrift(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { churn(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func churn(t *testing.T, r *rand.Rand) {
	b := start(t, func(o *engine.Options) { o.AuditEvery = 30 * time.Second })
	reader := rand.New(rand.NewPCG(r.Uint64(), 2)) // of the reader
	b.kernel.Do(func() {
		b.kernel.Slow = func() { sleep(time.Duration(reader.IntN(int(2 * time.Second)))) }
		b.kernel.Miss = func(string) bool { return reader.IntN(100) == 0 } // as dumps do beside writes
	})
	b.Synced(true)
	changes := 0
	for end := time.Now().Add(24 * time.Hour); time.Now().Before(end); sleep(time.Duration(r.IntN(int(20 * time.Second)))) {
		for range 1 + r.IntN(5) {
			n := r.IntN(30)
			name := service(fmt.Sprint("s", n), fmt.Sprint("10.96.0.", 1+n))
			switch r.IntN(4) {
			case 0:
				b.Delete(name)
			case 1:
				name.ClusterIPs = service("", fmt.Sprint("10.96.1.", 1+r.IntN(250))).ClusterIPs
				b.Set(name)
			default:
				b.Set(name)
			}
			changes++
		}
		if r.IntN(10) == 0 {
			b.kernel.Disturb(func(map[string]string) {}) // another program's own table
		}
		if r.IntN(50) == 0 {
			if _, err := b.Audit(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if s := b.Status(); s.Drift != 0 || len(b.found) != 0 {
		t.Errorf("after %d changes: %d objects called drift: %+v", changes, s.Drift, b.found)
	} else {
		t.Logf("%d changes, %d audits, no drift", changes, s.Audits.Done)
	}
}

// A trace that reads for long, and snapshots beside it, hold up no change.
func TestQuestionsHoldUpNoChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		b.Set(service("a", "10.96.0.1"))
		b.Synced(true)
		sleep(time.Minute)
		b.kernel.Do(func() { b.kernel.Slow = func() { sleep(10 * time.Second) } })
		done := make(chan error, 1)
		go func() {
			found, err := b.Current().Trace(t.Context(), nil, oracle.Packet{})
			if err == nil && found.Objects != 1+1 {
				err = fmt.Errorf("%d objects read", found.Objects)
			}
			done <- err
		}()
		for i := range 9 {
			sleep(time.Second)
			before := time.Now()
			b.Set(service(fmt.Sprint("b", i), fmt.Sprint("10.96.1.", i+1)))
			synctest.Wait()
			if _, err := b.Snapshot(t.Context()); err != nil {
				t.Fatal(err)
			}
			if b.kernel.Objects[fmt.Sprint("10.96.1.", i+1, ":80")] != "reject" || !time.Now().Equal(before) {
				t.Fatalf("change %d waited for a question", i)
			}
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// interrupted is a backend that takes its time to find that it cannot be read beside changes.
type interrupted struct{ dataplane.Backend }

func (interrupted) Audit(context.Context) (int, error) {
	sleep(10 * time.Second)
	return 0, dataplane.ErrInterrupted
}

// Changes never wait for a reading that only a question needs, however often changes have
// interrupted one: the question is not answered then.
func TestQuestionsThatCannotBeAnsweredHoldUpNoChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(o *engine.Options) { o.Backend = interrupted{o.Backend} })
		b.Set(service("a", "10.96.0.1"))
		b.Synced(true)
		synctest.Wait()
		for i := range 6 { // well within the time of the next audit
			done := make(chan error, 1)
			go func() { _, err := b.Audit(t.Context()); done <- err }()
			sleep(2 * time.Second)
			b.Set(service(fmt.Sprint("b", i), fmt.Sprint("10.96.1.", i+1)))
			synctest.Wait()
			if b.kernel.Objects[fmt.Sprint("10.96.1.", i+1, ":80")] != "reject" {
				t.Fatalf("change %d waits for a question", i)
			}
			if err := <-done; !errors.Is(err, dataplane.ErrInterrupted) {
				t.Errorf("question %d: %v", i, err)
			}
		}
	})
}

// endless is a backend whose readings are interrupted after ten seconds.
type endless struct{ dataplane.Backend }

func (endless) Audit(ctx context.Context) (int, error) {
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(10 * time.Second):
		return 0, dataplane.ErrInterrupted
	}
}

// Where others' writes interrupt each audit, none holds changes up; where changes do, they
// wait now and then, and not for long.
func TestInterruptedAuditsHoldUpChangesOnlyForATime(t *testing.T) {
	for _, c := range []struct {
		changes     bool
		least, most time.Duration
	}{{false, 0, 0}, {true, time.Second, 5 * time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			b := start(t, func(o *engine.Options) { o.Backend, o.AuditEvery = endless{o.Backend}, time.Minute })
			b.Set(service("a", "10.96.0.1"))
			b.Synced(true)
			synctest.Wait()
			longest, held := time.Duration(0), 0
			for begin := time.Now(); time.Since(begin) < 20*time.Minute; sleep(300 * time.Millisecond) {
				if c.changes {
					b.Set(service("a", fmt.Sprint("10.96.1.", 1+int(time.Since(begin).Seconds())%200)))
				}
				asked := time.Now()
				if err := b.Ping(t.Context()); err != nil {
					t.Fatal(err)
				}
				if waited := time.Since(asked); waited > 0 {
					longest, held = max(longest, waited), held+1
				}
			}
			if audits := b.Status().Audits.Done; longest < c.least || longest > c.most || held > int(audits)/4 || audits < 10 {
				t.Errorf("with changes %t: of %d audits %d held them up, for up to %s", c.changes, audits, held, longest)
			}
		})
	}
}

// readElsewhere is a backend whose readings changes interrupt unless these wait, and the first of such readings
// finds another one in progress.
type readElsewhere struct {
	dataplane.Backend
	before, held int
}

func (b *readElsewhere) Audit(ctx context.Context) (int, error) {
	if _, waits := ctx.Deadline(); !waits {
		b.before++
		time.Sleep(time.Second)
		return 0, dataplane.ErrInterrupted
	}
	if b.held++; b.held == 1 {
		return 0, dataplane.ErrReading
	}
	return b.Backend.Audit(ctx)
}

// An audit that changes wait for, and that finds another reading in progress, follows soon after: it is not
// interrupted as often as before once more.
func TestAnAuditThatChangesWaitForFollowsATrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var backend *readElsewhere
		b := start(t, func(o *engine.Options) {
			backend = &readElsewhere{Backend: o.Backend}
			o.Backend, o.AuditEvery = backend, time.Minute
		})
		b.Synced(true)
		for begin := time.Now(); time.Since(begin) < 10*time.Minute && backend.held < 2; sleep(300 * time.Millisecond) {
			b.Set(service("a", fmt.Sprint("10.96.1.", 1+int(time.Since(begin).Seconds())%200)))
		}
		if backend.before != 3 || backend.held != 2 {
			t.Errorf("%d audits were interrupted, %d held changes up", backend.before, backend.held)
		}
	})
}

// Snapshots leave the engine's goroutine free but for a walk over the Services.
func BenchmarkSnapshot(b *testing.B) {
	e := engine.New(engine.Options{
		Host: func(*model.Node, []*model.ServiceCIDR) (*model.Host, []model.Problem) {
			return &model.Host{Name: "here"}, nil
		},
		Backend: dataplane.New(fronts{}, newKernel()), AuditEvery: time.Hour, Log: slog.New(slog.DiscardHandler),
	})
	go func() { _ = e.Run(b.Context()) }()
	for i := range 10_000 {
		e.Set(service(fmt.Sprint("s", i), fmt.Sprintf("10.%d.%d.%d", 96+i/62500, i/250%250, i%250+1)))
	}
	e.Synced(true)
	<-e.Programmed()
	for b.Loop() {
		if _, err := e.Snapshot(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// A change of an endpoint of a Service, from the source to the data plane: what it allocates counts.
func BenchmarkChange(b *testing.B) {
	for _, n := range []int{5, 500} {
		b.Run(fmt.Sprint(n, " endpoints"), func(b *testing.B) {
			done := make(chan struct{}, 1)
			e := engine.New(engine.Options{
				Host: func(*model.Node, []*model.ServiceCIDR) (*model.Host, []model.Problem) {
					return &model.Host{Name: "here"}, nil
				},
				Backend: dataplane.New(fronts{}, newKernel()), AuditEvery: time.Hour, Log: slog.New(slog.DiscardHandler),
				Hooks: engine.Hooks{Synced: func(engine.Sync) { done <- struct{}{} }},
			})
			go func() { _ = e.Run(b.Context()) }()
			all := readyEndpoints(n + 1)
			either := [2]*model.Slice{endpoints("ns", "a", all[:n]), endpoints("ns", "a", all[1:])}
			e.Set(service("a", "10.96.0.1"))
			e.Set(either[0])
			e.Synced(true)
			<-done
			b.ReportAllocs()
			for i := 1; b.Loop(); i++ {
				e.Set(either[i%2])
				<-done
			}
		})
	}
}

// Evaluate implements dataplane.Compiler.
func (fronts) Evaluate(map[string]string, *model.Host) func(oracle.Packet) oracle.Outcome {
	return func(oracle.Packet) oracle.Outcome { return oracle.Outcome{} }
}

func (fronts) Text(_, v string) string    { return v }
func (fronts) Opaque(string, string) bool { return false }

// Where writes are announced nothing looks for them at rest; one that is announced is found
// as soon as by looking, and one that is not is found later.
func TestAnnouncedWritesAreNotLookedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(o *engine.Options) { o.Mode.Announced = true })
		b.Set(service("a", "10.96.0.1"))
		b.Synced(true)
		b.Listening(true)
		sleep(time.Minute + 3*time.Second) // no look is due soon
		damage := func() { b.kernel.Disturb(func(o map[string]string) { delete(o, "10.96.0.1:80") }) }
		after := func(d time.Duration, what string, want uint64) {
			t.Helper()
			sleep(d)
			if got := b.Status().Drift; got != want {
				t.Errorf("%s: drift %d, want %d", what, got, want)
			}
		}
		damage()
		after(2*time.Second, "not announced", 0)
		b.Noticed()
		after(time.Second, "announced", 1)
		sleep(time.Minute)
		damage()
		after(11*time.Second, "not announced, later", 2)
		sleep(time.Minute)
		damage()
		b.Set(service("b", "10.96.0.2"))
		after(time.Second, "at the time of a sync", 3)
		sleep(time.Minute)
		b.Listening(false)
		sleep(time.Second)
		damage()
		after(time.Second, "nothing listens", 4)
	})
}
