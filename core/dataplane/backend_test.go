// SPDX-License-Identifier: Apache-2.0

package dataplane_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/memory"
)

// toy compiles a port to one object a frontend, one an endpoint, and one shared by
// all ports with the same number of endpoints.
type toy struct {
	dataplane.SimpleCompiler[string, string]
}

func (toy) Base(h *model.Host, emit func(string, string)) { emit("0 base", h.Name) }

func (toy) Port(_ *model.Host, p *model.Port, emit func(string, string)) (gaps []model.Gap) {
	for _, f := range p.Frontends {
		if f.On[0].Pool == nil {
			emit("3 "+f.At.String(), f.On[0].Verdict.String())
			continue
		}
		n := len(f.On[0].Pool.Endpoints)
		emit(fmt.Sprint("1 count ", n), "")
		for i, e := range f.On[0].Pool.Endpoints {
			emit(fmt.Sprint("2 ", f.At, " ", i), e.Addr.String())
		}
		emit("3 "+f.At.String(), fmt.Sprint("count ", n))
	}
	if p.SessionAffinity > 0 {
		gaps = append(gaps, model.Gap{Detail: "no affinity"})
	}
	return gaps
}

func (toy) Rank(k string) int { return int(k[0] - '0') }
func (toy) DeleteDelay(k string) time.Duration {
	return map[bool]time.Duration{true: time.Minute}[k[0] == '1']
}
func (toy) Equal(a, b string) bool { return a == b }

func port(n string, ip string, endpoints ...string) *model.Port {
	p := &model.Port{ID: model.PortID{Service: model.ServiceName{Namespace: "ns", Name: n}, Proto: model.TCP}}
	act := model.Action{Verdict: model.Reject}
	if len(endpoints) > 0 {
		act = model.Action{Verdict: model.Balance, Pool: &model.Pool{}}
		for _, e := range endpoints {
			act.Pool.Endpoints = append(act.Pool.Endpoints, model.Endpoint{Addr: netip.MustParseAddrPort(e + ":80")})
		}
	}
	p.Frontends = []model.Frontend{{At: netip.MustParseAddrPort(ip + ":80"), On: [model.Origins]model.Action{act, act, act}}}
	return p
}

type bench struct {
	t *testing.T
	dataplane.Backend
	kernel *memory.Driver[string, string]
	log    []string
}

func newBench(t *testing.T, limits dataplane.Limits) *bench {
	d := memory.New[string](toy{}.Equal, limits)
	b := &bench{t: t, Backend: dataplane.New(toy{}, d), kernel: d}
	d.Fail = func(op ledger.Op[string, string]) error {
		b.log = append(b.log, op.Verb.String()+" "+op.Key)
		return nil
	}
	return b
}

func (b *bench) start() {
	b.t.Helper()
	if err := b.Adopt(context.Background()); err != nil {
		b.t.Fatal(err)
	}
	b.SetHost(&model.Host{Name: "here"})
}

func (b *bench) sync(want ...string) {
	b.t.Helper()
	b.log = nil
	if _, err := b.Sync(context.Background()); err != nil {
		b.t.Fatal(err)
	}
	if !slices.Equal(b.log, want) {
		b.t.Errorf("ops:\n got %q\nwant %q", b.log, want)
	}
}

func TestAChangeWritesWhatDiffers(t *testing.T) {
	b := newBench(t, dataplane.Limits{Atomic: true})
	b.start()
	v1, v2 := port("a", "10.96.0.1", "10.0.0.1", "10.0.0.2"), port("a", "10.96.0.1", "10.0.0.1", "10.0.0.3")
	b.Update([]model.Delta{{New: v1}})
	b.sync("create 0 base", "create 1 count 2", "create 2 10.96.0.1:80 0", "create 2 10.96.0.1:80 1", "create 3 10.96.0.1:80")
	b.Update([]model.Delta{{Old: v1, New: v2}})
	b.sync("replace 2 10.96.0.1:80 1")
	b.sync()
	b.Update([]model.Delta{{Old: v2}})
	b.sync("delete 3 10.96.0.1:80", "delete 2 10.96.0.1:80 0", "delete 2 10.96.0.1:80 1") // the deletion of the shared object is delayed
	if got := slices.Sorted(maps.Keys(b.kernel.Objects)); !slices.Equal(got, []string{"0 base", "1 count 2"}) {
		t.Errorf("left: %q", got)
	}
}

func TestRestartWritesNothing(t *testing.T) {
	b := newBench(t, dataplane.Limits{Atomic: true})
	b.start()
	p := port("a", "10.96.0.1", "10.0.0.1")
	b.Update([]model.Delta{{New: p}})
	b.Sync(t.Context())
	again := newBench(t, dataplane.Limits{Atomic: true})
	again.kernel.Objects = b.kernel.Objects
	again.start()
	again.Update([]model.Delta{{New: p}})
	again.sync()
}

func TestUnreadableKernelChangesNothing(t *testing.T) {
	b := newBench(t, dataplane.Limits{})
	b.kernel.Broken = errors.New("no permission")
	if err := b.Adopt(t.Context()); !errors.Is(err, b.kernel.Broken) {
		t.Fatalf("Adopt: %v", err)
	}
	if err := b.Remove(t.Context()); !errors.Is(err, b.kernel.Broken) {
		t.Fatalf("Remove: %v", err)
	}
	if b.kernel.Commits != 0 {
		t.Fatal("wrote to a kernel that it could not read")
	}
}

func TestOneBadServiceDoesNotHoldUpTheRest(t *testing.T) {
	for _, atomic := range []bool{true, false} {
		b := newBench(t, dataplane.Limits{Atomic: atomic, Batch: 40})
		b.start()
		boom := errors.New("boom")
		b.kernel.Fail = func(op ledger.Op[string, string]) error {
			if strings.Contains(op.Key, "10.96.0.13:80") {
				return boom
			}
			return nil
		}
		var deltas []model.Delta
		for i := range 30 {
			deltas = append(deltas, model.Delta{New: port(fmt.Sprint("s", i), fmt.Sprint("10.96.0.", i), "10.0.0.1")})
		}
		b.Update(deltas)
		work, err := b.Sync(t.Context())
		if !errors.Is(err, boom) || !strings.Contains(err.Error(), "ns/s13") {
			t.Fatalf("atomic %v: error %v does not name the Service", atomic, err)
		}
		if errors.Is(work.BatchErr, boom) != atomic {
			t.Errorf("atomic %v: a batch was taken apart because of %v", atomic, work.BatchErr)
		}
		if want := 1 + 1 + 29*2; work.Ops != want || len(b.kernel.Objects) != want || work.Failed != 2 {
			t.Errorf("atomic %v: %+v, %d objects, want %d", atomic, work, len(b.kernel.Objects), want)
		}
		h := b.Health()
		if len(h.Failures) != 1 || h.Failures[deltas[13].New.ID] == nil {
			t.Errorf("failures: %v", h.Failures)
		}
	}
}

// A transaction that was cut, and of which some parts were done, is booked so: what
// was done is not done again, and only the bad Service fails.
func TestACutTransactionIsBookedInParts(t *testing.T) {
	b := newBench(t, dataplane.Limits{Atomic: true})
	b.kernel.Fail = func(op ledger.Op[string, string]) error {
		if op.Key == "3 10.96.0.13:80" {
			return errors.New("boom")
		}
		return nil
	}
	b.Backend = dataplane.New(toy{}, cutting{b.kernel})
	b.start()
	for i := range 30 {
		b.Update([]model.Delta{{New: port(fmt.Sprint("s", i), fmt.Sprint("10.96.0.", i), "10.0.0.1")}})
	}
	work, err := b.Sync(t.Context())
	if want := 1 + 1 + 30 + 29; err == nil || work.Ops != want || len(b.kernel.Objects) != want || work.Failed != 1 {
		t.Errorf("%+v, %v, %d objects, want %d", work, err, len(b.kernel.Objects), want)
	}
}

// cutting applies a commit in parts of ten ops.
type cutting struct{ *memory.Driver[string, string] }

func (c cutting) Commit(ctx context.Context, ops []ledger.Op[string, string]) (errs []error) {
	for part := range slices.Chunk(ops, 10) {
		last := error(nil)
		if n := len(errs); n > 0 {
			last = errs[n-1]
		}
		if last != nil {
			errs = append(errs, slices.Repeat([]error{last}, len(part))...)
		} else {
			errs = append(errs, c.Driver.Commit(ctx, part)...)
		}
	}
	return errs
}

// When everything fails, the search for a culprit must end.
func TestPatienceIsBounded(t *testing.T) {
	b := newBench(t, dataplane.Limits{Atomic: true})
	b.start()
	b.kernel.Fail = func(ledger.Op[string, string]) error { return errors.New("no") }
	for i := range 2000 {
		b.Update([]model.Delta{{New: port(fmt.Sprint("s", i), netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String(), "10.0.0.1")}})
	}
	if _, err := b.Sync(t.Context()); err == nil {
		t.Fatal("no error")
	}
	if b.kernel.Commits > 1+64 {
		t.Errorf("%d commits", b.kernel.Commits)
	}
}

func TestUnknownOutcomeIsReadBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, dataplane.Limits{Atomic: true})
		b.start()
		b.Update([]model.Delta{{New: port("a", "10.96.0.1", "10.0.0.1")}})
		lost := &lossy{Driver: b.kernel, lose: true}
		b.Backend = dataplane.New(toy{}, lost)
		b.start()
		b.Update([]model.Delta{{New: port("a", "10.96.0.1", "10.0.0.1")}})
		if _, err := b.Sync(t.Context()); !errors.Is(err, ledger.ErrUnknown) {
			t.Fatalf("first sync: %v", err)
		}
		if next := b.Next(); !next.Equal(time.Now()) {
			t.Errorf("wants to read back at %v, not at once", next)
		}
		time.Sleep(time.Second)
		b.sync() // the kernel had committed: nothing to do but look
		if f := b.Health().Failures; len(f) != 0 {
			t.Errorf("failures: %v", f)
		}
	})
}

// lossy loses the acknowledgement of its first commit.
type lossy struct {
	*memory.Driver[string, string]
	lose bool
}

func (l *lossy) Commit(ctx context.Context, ops []ledger.Op[string, string]) []error {
	errs := l.Driver.Commit(ctx, ops)
	if l.lose {
		l.lose = false
		for i := range errs {
			errs[i] = fmt.Errorf("acknowledgement: %w", ledger.ErrUnknown)
		}
	}
	return errs
}

func TestDriftIsRepairedPortByPort(t *testing.T) {
	b := newBench(t, dataplane.Limits{Atomic: true})
	b.start()
	b.Update([]model.Delta{{New: port("a", "10.96.0.1", "10.0.0.1")}, {New: port("b", "10.96.0.2")}})
	b.Sync(t.Context())
	b.kernel.Disturb(func(o map[string]string) {
		delete(o, "3 10.96.0.1:80")
		o["3 10.96.0.2:80"] = "edited"
		o["9 left over"] = "x"
	})
	if yes, _ := b.Disturbed(t.Context()); !yes {
		t.Fatal("not disturbed")
	}
	if drift, err := b.Audit(t.Context()); drift != 3 || err != nil {
		t.Fatalf("drift %d, %v", drift, err)
	}
	b.log = nil
	if _, err := b.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	slices.Sort(b.log)
	if want := []string{"create 3 10.96.0.1:80", "delete 9 left over", "replace 3 10.96.0.2:80"}; !slices.Equal(b.log, want) {
		t.Errorf("got %q, want %q", b.log, want)
	}
}

func TestNewHostRecompilesEverything(t *testing.T) {
	b := newBench(t, dataplane.Limits{})
	b.start()
	b.Update([]model.Delta{{New: port("a", "10.96.0.1", "10.0.0.1")}})
	b.Sync(t.Context())
	b.SetHost(&model.Host{Name: "renamed"})
	b.sync("replace 0 base")
}

func TestRemoveDeletesOurs(t *testing.T) {
	b := newBench(t, dataplane.Limits{Atomic: true})
	b.start()
	b.Update([]model.Delta{{New: port("a", "10.96.0.1", "10.0.0.1")}})
	b.Sync(t.Context())
	if err := b.Remove(t.Context()); err != nil || len(b.kernel.Objects) != 0 {
		t.Fatalf("%v, left %v", err, b.kernel.Objects)
	}
}

func TestGapsAreReported(t *testing.T) {
	b := newBench(t, dataplane.Limits{})
	b.start()
	p, q := port("a", "10.96.0.1"), port("a", "10.96.0.1")
	p.SessionAffinity = time.Hour
	b.Update([]model.Delta{{New: p}})
	if g := b.AllGaps()[p.ID]; len(g) != 1 {
		t.Fatalf("gaps: %v", g)
	}
	b.Update([]model.Delta{{Old: p, New: q}})
	if g := b.AllGaps(); len(g) != 0 {
		t.Fatalf("gaps that are gone: %v", g)
	}
}

// While the kernel cannot be read after an unknown outcome, attempts to read it
// are spaced out, and nothing is written.
func TestReadBackIsSpacedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, dataplane.Limits{Atomic: true})
		lost := &lossy{Driver: b.kernel, lose: true}
		b.Backend = dataplane.New(toy{}, lost)
		b.start()
		b.Update([]model.Delta{{New: port("a", "10.96.0.1", "10.0.0.1")}})
		if _, err := b.Sync(t.Context()); !errors.Is(err, ledger.ErrUnknown) {
			t.Fatalf("first sync: %v", err)
		}
		if next := b.Next(); !next.Equal(time.Now()) {
			t.Errorf("wants to read back at %v, not at once", next)
		}
		b.kernel.Broken = errors.New("no memory")
		start, attempts := time.Now(), 0
		for time.Since(start) < time.Minute {
			if _, err := b.Sync(t.Context()); !errors.Is(err, b.kernel.Broken) {
				t.Fatalf("sync: %v", err)
			}
			if attempts++; !b.Next().After(time.Now()) {
				t.Fatal("Next is not in the future: a busy loop")
			}
			time.Sleep(time.Until(b.Next()))
		}
		if attempts > 20 || b.kernel.Commits != 1 {
			t.Fatalf("%d attempts in a minute, %d commits", attempts, b.kernel.Commits)
		}
		b.kernel.Broken = nil
		time.Sleep(10 * time.Second)
		if _, err := b.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// Ports that share an object with one that the kernel refuses must work.
func TestARefusedPortDoesNotTakeSharedObjectsWithIt(t *testing.T) {
	b := newBench(t, dataplane.Limits{Atomic: true})
	b.start()
	b.kernel.Fail = func(op ledger.Op[string, string]) error {
		if strings.Contains(op.Key, "10.96.0.1:80") {
			return errors.New("refused")
		}
		if _, chain := b.kernel.Objects["1 count 1"]; op.Key == "3 10.96.0.2:80" && !chain && b.kernel.Commits > 1 {
			return errors.New("no such chain")
		}
		return nil
	}
	b.Update([]model.Delta{{New: port("bad", "10.96.0.1", "10.0.0.1")}, {New: port("good", "10.96.0.2", "10.0.0.1")}})
	if _, err := b.Sync(t.Context()); err == nil {
		t.Fatal("no error")
	}
	if _, ok := b.kernel.Objects["3 10.96.0.2:80"]; !ok {
		t.Errorf("the good port is missing: %v", b.kernel.Objects)
	}
}

// What fails without an owner is named, and what ports share is told from the host's own: one tenant's Services
// can make the former fail.
func TestWhatFailsWithoutAnOwner(t *testing.T) {
	b := newBench(t, dataplane.Limits{})
	b.start()
	refuse := func(key string) {
		b.kernel.Fail = func(op ledger.Op[string, string]) error {
			if op.Key == key {
				return errors.New("refused")
			}
			return nil
		}
	}
	refuse("1 count 1")
	b.Update([]model.Delta{{New: port("a", "10.96.0.1", "10.0.0.1")}, {New: port("b", "10.96.0.2", "10.0.0.1")}})
	_, err := b.Sync(t.Context())
	if h := b.Health(); err == nil || fmt.Sprint(h.Shared) != "1 count 1: refused" || len(h.Failures) > 0 {
		t.Errorf("shared %v, failures %v (%v)", h.Shared, h.Failures, err)
	}
	refuse("0 base")
	b.SetHost(&model.Host{Name: "another"})
	_, err = b.Sync(t.Context())
	if h := b.Health(); err == nil || fmt.Sprint(h.Failures[model.PortID{}]) != "0 base: refused" {
		t.Errorf("failures %v (%v)", h.Failures, err)
	}
}

// A data plane that another program holds is not searched for a bad Service, and
// a Sync that could do nothing says so.
// A kernel refuses to delete what others still use, for instance a port whose own change
// fails. That must not undo what the owner of the deletion wants.
func TestADeletionThatFailsHoldsUpNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, dataplane.Limits{Atomic: true})
		b.start()
		v1, v2, v3 := port("a", "10.96.0.1", "10.0.0.1", "10.0.0.2"), port("a", "10.96.0.1", "10.0.0.1"), port("a", "10.96.0.1", "10.0.0.3")
		b.Update([]model.Delta{{New: v1}})
		b.Sync(t.Context())
		b.kernel.Fail = func(op ledger.Op[string, string]) error {
			if op.Verb == ledger.Delete && op.Key == "1 count 2" {
				return errors.New("in use")
			}
			return nil
		}
		b.Update([]model.Delta{{Old: v1, New: v2}})
		b.Sync(t.Context())
		time.Sleep(time.Minute) // the deletion is due
		b.Sync(t.Context())
		time.Sleep(time.Second) // and again
		b.Update([]model.Delta{{Old: v2, New: v3}})
		work, err := b.Sync(t.Context())
		if got := b.kernel.Objects["2 10.96.0.1:80 0"]; got != "10.0.0.3:80" || work.Failed != 1 || err == nil {
			t.Errorf("the endpoint is %s, failed %d, error %v", got, work.Failed, err)
		}
	})
}

func TestABusyDataPlaneIsTriedAgainAsAWhole(t *testing.T) {
	d := memory.New[string](toy{}.Equal, dataplane.Limits{Atomic: true})
	b := dataplane.New(toy{}, d)
	if err := b.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.Fail = func(ledger.Op[string, string]) error { return ledger.BusyError{After: time.Minute} }
	b.SetHost(&model.Host{Name: "here"})
	b.Update([]model.Delta{{New: port("a", "10.96.0.1", "10.0.0.1")}, {New: port("b", "10.96.0.2", "10.0.0.2")}})
	work, err := b.Sync(t.Context())
	var busy ledger.BusyError
	if !errors.As(err, &busy) || work.Commits != 1 || work.Failed != 0 {
		t.Errorf("%+v, %v", work, err)
	}
	if wait := time.Until(b.Next()); len(b.Health().Failures) != 0 || wait <= 0 || wait > time.Minute {
		t.Errorf("failures %v, next in %s", b.Health().Failures, wait)
	}
}

// A data plane that cannot be read back after an unknown outcome reports nothing of
// any port, not only of those that were written then.
func TestFailedReadBackReportsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, dataplane.Limits{Atomic: true})
		lost := &lossy{Driver: b.kernel}
		b.Backend = dataplane.New(toy{}, lost)
		b.start()
		if _, err := b.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		lost.lose = true
		b.Update([]model.Delta{{New: port("a", "10.96.0.1", "10.0.0.1")}})
		if _, err := b.Sync(t.Context()); !errors.Is(err, ledger.ErrUnknown) {
			t.Fatalf("first sync: %v", err)
		}
		b.kernel.Broken = errors.New("interrupted")
		b.Update([]model.Delta{{New: port("b", "10.96.0.2", "10.0.0.1")}})
		if work, err := b.Sync(t.Context()); err == nil || work.Held == nil {
			t.Errorf("%+v, %v: as if unaffected objects worked", work, err)
		}
		b.kernel.Broken = nil
		time.Sleep(time.Minute)
		if work, err := b.Sync(t.Context()); err != nil || work.Held != nil {
			t.Fatalf("%+v, %v", work, err)
		}
		if ports := b.Health().Failures; len(ports) != 0 {
			t.Errorf("failing: %v", ports)
		}
	})
}

// One op of a commit that fails in the usual way does not hide that the outcome
// of another is unknown.
func TestUnknownOutcomeBehindAnotherError(t *testing.T) {
	for _, limits := range []dataplane.Limits{{}, {Atomic: true}} {
		kernel := memory.New[string](toy{}.Equal, limits)
		b := dataplane.New(toy{}, &mixed{Driver: kernel})
		if err := b.Adopt(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.SetHost(&model.Host{Name: "here"})
		b.Update([]model.Delta{{New: port("a", "10.96.0.1", "10.0.0.1")}})
		_, _ = b.Sync(t.Context())
		commits := kernel.Commits
		if work, err := b.Sync(t.Context()); err != nil || kernel.Observes+kernel.Gets < 2 || kernel.Commits != commits {
			t.Errorf("%+v: %d commits before anything was read back, %+v, %v", limits, kernel.Commits-commits, work, err)
		}
	}
}

// mixed commits everything, and answers with an ordinary error for the first op
// and an unknown outcome for the last one.
type mixed struct {
	*memory.Driver[string, string]
	done bool
}

func (m *mixed) Commit(ctx context.Context, ops []ledger.Op[string, string]) []error {
	errs := m.Driver.Commit(ctx, ops)
	if !m.done {
		m.done = true
		errs[0], errs[len(errs)-1] = errors.New("refused"), ledger.ErrUnknown
	}
	return errs
}

// Of what fails for a port the first op counts, whatever else fails or waits: the error that is shown does not change
// between two looks, and a port is not taken for one that a later Sync programs.
func TestTheFirstFailureOfAPortCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, dataplane.Limits{})
		b.start()
		first := errors.New("no room for an endpoint")
		b.kernel.Fail = func(op ledger.Op[string, string]) error {
			switch op.Key[0] {
			case '1':
				return ledger.ErrDeferred
			case '2':
				return first
			}
			return errors.New("no endpoints")
		}
		p := port("a", "10.96.0.1", "10.0.0.1")
		b.Update([]model.Delta{{New: p}})
		_, _ = b.Sync(t.Context())
		for range 50 {
			if ports := b.Health().Failures; !errors.Is(ports[p.ID], first) {
				t.Fatalf("failing: %v", ports)
			}
		}
	})
}
