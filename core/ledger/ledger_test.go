// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/growth"
)

// rules: the key's last digit is its rank; keys that start with "shared" have a DeleteDelay.
type rules struct{}

func (rules) Rank(k string) int { return int(k[len(k)-1] - '0') }
func (rules) DeleteDelay(k string) time.Duration {
	if len(k) > 6 && k[:6] == "shared" {
		return time.Minute
	}
	return 0
}
func (rules) Equal(a, b string) bool { return a == b }

func (rules) Admits(string) (guard string, clients netip.Prefix) { return guard, clients }

var epoch = time.Unix(1000, 0)

func owner(n string) *model.PortID {
	return &model.PortID{Service: model.ServiceName{Namespace: "ns", Name: n}}
}

func render(batches [][]ledger.Op[string, string]) (lines []string) {
	for i, b := range batches {
		for _, op := range b {
			lines = append(lines, fmt.Sprintf("%d %s %s %s>%s", i, op.Verb, op.Key, op.Old, op.New))
		}
	}
	return lines
}

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("plan:\n got %q\nwant %q", got, want)
	}
}

func record(l *ledger.Ledger[string, string], batches [][]ledger.Op[string, string], now time.Time) {
	for _, b := range batches {
		for _, op := range b {
			l.Record(op, nil, now)
		}
	}
}

// adopt takes have as what is installed.
func adopt(l *ledger.Ledger[string, string], have map[string]string) { review(l.Adopt(), have) }

// audit compares have with the ledger and returns how many keys differ.
func audit(l *ledger.Ledger[string, string], have map[string]string) int {
	return review(l.Review(), have)
}

func review(r *ledger.Review[string, string], have map[string]string) int {
	for _, k := range slices.Sorted(maps.Keys(have)) {
		r.See(k, have[k])
	}
	r.Sweep(true, func() {})
	r.Accept(have)
	r.Close()
	return r.Accepted
}

// plan returns all batches of a plan; nil for none.
func plan[V any](l *ledger.Ledger[string, V], now time.Time, limit int) (batches [][]ledger.Op[string, V]) {
	p := l.Plan(now, limit)
	for b := p.Next(); b != nil; b = p.Next() {
		batches = append(batches, slices.Clone(b))
	}
	return batches
}

// What a data plane does for each batch may grow with all that it has: a start has few batches, however much it writes.
func TestBatchesGrow(t *testing.T) {
	const limit = 100
	for _, c := range []struct{ ops, most int }{{limit, 1}, {10 * limit, 10}, {100 * limit, 45}, {1000 * limit, 350}} {
		l := ledger.New(rules{})
		for i := range c.ops {
			l.Want(&model.PortID{Name: fmt.Sprint(i)}, fmt.Sprint("element", i), "v")
		}
		all, largest := 0, 0
		batches := plan(l, epoch, limit)
		for _, b := range batches {
			all, largest = all+len(b), max(largest, len(b))
		}
		if all != c.ops || len(batches) > c.most || largest > min(max(limit, c.ops/8), 3*limit) {
			t.Errorf("%d ops in %d batches, at most %d; the largest has %d of %d", all, len(batches), c.most, largest, c.ops)
		}
	}
}

// A start writes many batches one after the other: all of them are made in the memory of one.
func TestBatchesShareMemory(t *testing.T) {
	const batches, limit = 20, 1000
	l := ledger.New[string, string](rules{})
	for i := range batches * limit {
		l.Want(owner(fmt.Sprint("s", i)), fmt.Sprint("key", i), "v")
	}
	p := l.Plan(epoch, limit)
	before, n := allocated(), 0
	for b := p.Next(); b != nil; b = p.Next() {
		n += len(b)
	}
	each, one := (allocated()-before)/batches, uint64(limit)*uint64(unsafe.Sizeof(ledger.Op[string, string]{}))
	if n != batches*limit || each > one/4 {
		t.Errorf("%d ops in batches that allocate %d bytes each, where the ops of one take %d", n, each, one)
	}
}

func TestOrderWithinABatch(t *testing.T) {
	l := ledger.New[string, string](rules{})
	adopt(l, map[string]string{"old1": "x", "old3": "x", "b2": "old"})
	l.Want(owner("s"), "c3", "v")
	l.Want(owner("s"), "a1", "v")
	l.Want(owner("s"), "b2", "v")
	p := plan(l, epoch, 0)
	expect(t, render(p), "0 create a1 >v", "0 replace b2 old>v", "0 create c3 >v", "0 delete old3 x>", "0 delete old1 x>")
	record(l, p, epoch)
	expect(t, render(plan(l, epoch, 0)))
}

// Room for more changes nothing about what is there, and saves most of what growing costs.
func TestExpect(t *testing.T) {
	const few, all = 10, 20_000
	fill := func(expect bool) (*ledger.Ledger[string, string], uint64) {
		l := ledger.New[string, string](rules{})
		adopt(l, map[string]string{"old1": "x"})
		before := allocated()
		for i := range all {
			if i == few && expect {
				l.Expect(all / few)
			}
			l.Want(owner("s"), fmt.Sprint("k", i), "v")
		}
		return l, allocated() - before
	}
	a, grown := fill(false)
	b, expected := fill(true)
	if a, b := render(plan(a, epoch, 0)), render(plan(b, epoch, 0)); !slices.Equal(a, b) || len(a) != all+1 {
		t.Errorf("%d ops, and %d where they were expected", len(a), len(b))
	}
	t.Logf("%d bytes allocated, %d where they were expected", grown, expected)
	switch {
	case growth.Raced():
		t.Log("not judged: the race detector allocates for itself")
	case expected > grown*3/4:
		t.Error("what was expected had to grow")
	}
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// What has failed is tried again apart from all others, by namespace, so that what one namespace cannot have makes no
// other's fail; the ops of one owner stay together, and left-overs go last.
func TestFailedOwnersAreApart(t *testing.T) {
	l := ledger.New[string, string](rules{})
	adopt(l, map[string]string{"old1": "x"})
	of := func(namespace, name string) *model.PortID {
		return &model.PortID{Service: model.ServiceName{Namespace: namespace, Name: name}}
	}
	evil, shop := of("evil", "a"), of("shop", "b")
	l.Want(evil, "e1", "v")
	l.Want(evil, "e2", "v")
	l.Want(shop, "s1", "v")
	first := plan(l, epoch, 100)
	expect(t, render(first), "0 create e1 >v", "0 create s1 >v", "0 create e2 >v", "0 delete old1 x>")
	no := errors.New("no")
	for _, op := range first[0] { // e1 is rejected, and all others with it
		l.Record(op, no, epoch)
	}
	l.Want(of("shop", "new"), "n3", "v")
	l.Want(evil, "e4", "v")
	later := epoch.Add(time.Minute)
	second := plan(l, later, 100)
	of3 := map[string][]string{}
	for _, batch := range second {
		var keys []string
		for _, op := range batch {
			keys = append(keys, op.Key)
		}
		of3[keys[0]] = keys
	}
	if len(second) != 4 || second[0][0].Key != "n3" || second[3][0].Key != "old1" ||
		!slices.Equal(of3["e1"], []string{"e1", "e2", "e4"}) || !slices.Equal(of3["s1"], []string{"s1"}) {
		t.Errorf("planned: %q", render(second))
	}
	record(l, second, later)
	l.Want(evil, "e5", "v")
	l.Want(shop, "s6", "v")
	expect(t, render(plan(l, later, 100)), "0 create e5 >v", "0 create s6 >v")
}

func TestSharedObjectsLiveWhileWanted(t *testing.T) {
	l := ledger.New[string, string](rules{})
	a, b := owner("a"), owner("b")
	l.Want(a, "k1", "v")
	l.Want(b, "k1", "v")
	record(l, plan(l, epoch, 0), epoch)
	l.Release(a, "k1")
	expect(t, render(plan(l, epoch, 0)))
	l.Release(b, "k1")
	expect(t, render(plan(l, epoch, 0)), "0 delete k1 v>")
}

func TestWantBeforeReleaseIsNoOp(t *testing.T) {
	l := ledger.New[string, string](rules{})
	a := owner("a")
	l.Want(a, "k1", "v")
	record(l, plan(l, epoch, 0), epoch)
	l.Want(a, "k1", "v")
	l.Release(a, "k1")
	expect(t, render(plan(l, epoch, 0)))
}

func TestLingeringObjectsAreDeletedLater(t *testing.T) {
	l := ledger.New[string, string](rules{})
	a := owner("a")
	l.Want(a, "shared1", "v")
	record(l, plan(l, epoch, 0), epoch)
	l.Release(a, "shared1")
	expect(t, render(plan(l, epoch, 0)))
	if want := epoch.Add(time.Minute); !l.Next().Equal(want) {
		t.Fatalf("Next: got %v, want %v", l.Next(), want)
	}
	l.Want(a, "shared1", "v") // needed again in time: nothing to do, ever
	expect(t, render(plan(l, epoch.Add(time.Hour), 0)))
	l.Release(a, "shared1")
	now := epoch.Add(2 * time.Hour)
	expect(t, render(plan(l, now, 0)))
	expect(t, render(plan(l, now.Add(59*time.Second), 0)))
	expect(t, render(plan(l, now.Add(time.Minute), 0)), "0 delete shared1 v>")
}

// What an owner's failed ops were to replace may still use the object that delayed: it
// stays until they have succeeded.
func TestLingeringObjectsOutliveTheirOwnersFailures(t *testing.T) {
	l := ledger.New[string, string](rules{})
	a, b := owner("a"), owner("b")
	l.Want(a, "shared1", "v")
	l.Want(a, "user2", "shared1")
	l.Want(b, "shared3", "v")
	record(l, plan(l, epoch, 0), epoch)
	l.Want(a, "user2", "other")
	l.Release(a, "user2")
	l.Release(a, "shared1")
	l.Release(b, "shared3")
	now := epoch
	for end := epoch.Add(5 * time.Minute); now.Before(end); now = l.Next() {
		for _, batch := range plan(l, now, 0) {
			for _, op := range batch {
				if op.Key == "shared1" {
					t.Fatalf("after %v: %s %s", now.Sub(epoch), op.Verb, op.Key)
				}
				var err error
				if op.Key == "user2" {
					err = errors.New("rejected")
				}
				l.Record(op, err, now)
			}
		}
	}
	if _, there := l.Installed("shared3"); there {
		t.Error("what delayed waits for failures of another owner")
	}
	for end := now.Add(2 * time.Minute); now.Before(end) && !l.Next().IsZero(); now = l.Next() {
		record(l, plan(l, now, 0), now)
	}
	if _, there := l.Installed("shared1"); there || !l.Next().IsZero() {
		t.Errorf("nothing fails any more: there %v, next %v", there, l.Next())
	}
}

func TestOwnersAreNotSplit(t *testing.T) {
	l := ledger.New[string, string](rules{})
	a, b, c := owner("a"), owner("b"), owner("c")
	l.Want(nil, "base0", "v")
	for i, o := range []*model.PortID{a, b, c, a, b, c} {
		l.Want(o, fmt.Sprintf("k%d", i), "v")
	}
	expect(t, render(plan(l, epoch, 3)),
		"0 create base0 >v", "0 create k0 >v", "0 create k3 >v", "1 create k1 >v", "1 create k4 >v", "2 create k2 >v", "2 create k5 >v")
}

// A key moves from one owner to another: what it used before is deleted only when it is
// replaced, whichever of the two comes first, and also when all has to be planned again.
func TestAKeyThatMovesKeepsItsOwnersTogether(t *testing.T) {
	type ops = ledger.Op[string, string]
	type books = *ledger.Ledger[string, string]
	for what, again := range map[string]func(books, ops){
		"at once": nil,
		"held":    func(l books, op ops) { l.Hold(op, epoch) },
		"failed":  func(l books, op ops) { l.Record(op, errors.New("no"), epoch.Add(-time.Minute)) },
		"no time": func(l books, op ops) { l.Record(op, ledger.ErrDeferred, epoch) },
		"back":    func(l books, op ops) { l.Return(op) },
	} {
		for _, takerFirst := range []bool{false, true} {
			l := ledger.New[string, string](rules{})
			a, b, c := owner("a"), owner("b"), owner("c")
			l.Want(a, "relay-a1", "v")
			l.Want(a, "port2", "to relay-a1")
			record(l, plan(l, epoch, 0), epoch)
			release := func() {
				l.Release(a, "relay-a1")
				l.Release(a, "port2")
			}
			l.Want(a, "a1", "v")
			if !takerFirst {
				release()
			}
			l.Want(c, "c1", "v")
			l.Want(b, "relay-b1", "v")
			l.Want(b, "port2", "to relay-b1")
			if takerFirst {
				release()
			}
			for range 2 {
				if again == nil {
					break
				}
				for _, batch := range plan(l, epoch, 1) {
					for _, op := range batch {
						again(l, op)
					}
				}
			}
			var order []string
			for _, line := range render(plan(l, epoch, 1)) {
				order = append(order, line[2:])
			}
			replaced, deleted := slices.Index(order, "replace port2 to relay-a1>to relay-b1"), slices.Index(order, "delete relay-a1 v>")
			if len(order) != 5 || replaced < 0 || deleted < replaced || slices.Index(order, "create relay-b1 >v") > replaced {
				t.Errorf("%s, taker first %t: %q", what, takerFirst, order)
			}
		}
	}
}

// Left-overs of an earlier process may still be in use by what a later batch replaces.
func TestLeftOversAreDeletedAfterAllOthers(t *testing.T) {
	l := ledger.New[string, string](rules{})
	adopt(l, map[string]string{"base0": "old", "left1": "v", "left2": "v", "a2": "to left1", "b2": "to left1"})
	l.Want(nil, "base0", "v")
	l.Want(owner("a"), "a2", "v")
	l.Want(owner("b"), "b2", "v")
	expect(t, render(plan(l, epoch, 1)), "0 replace base0 old>v", "1 replace a2 to left1>v", "2 replace b2 to left1>v",
		"3 delete left2 v>", "4 delete left1 v>")
}

func TestAnOwnerLargerThanTheLimitStaysWhole(t *testing.T) {
	l := ledger.New[string, string](rules{})
	a := owner("a")
	for i := range 5 {
		l.Want(a, fmt.Sprintf("k%d", i), "v")
	}
	l.Want(owner("b"), "z0", "v")
	if p := plan(l, epoch, 2); len(p) != 2 || len(p[0]) != 5 || len(p[1]) != 1 {
		t.Fatalf("got %q", render(p))
	}
}

func TestFailuresAreRetriedAloneAndLater(t *testing.T) {
	l := ledger.New[string, string](rules{})
	a := owner("a")
	l.Want(a, "bad1", "v")
	l.Want(a, "good1", "v")
	now := epoch
	boom := errors.New("boom")
	fail := func() {
		for _, b := range plan(l, now, 0) {
			for _, op := range b {
				var err error
				if op.Key == "bad1" {
					err = boom
				}
				l.Record(op, err, now)
			}
		}
	}
	fail()
	if f := l.Failures(); len(f) != 1 || f[0].Key != "bad1" || f[0].Owner != a || !errors.Is(f[0].Err, boom) {
		t.Fatalf("failures: %+v", f)
	}
	expect(t, render(plan(l, now.Add(199*time.Millisecond), 0)))
	var waits []time.Duration
	for range 10 {
		waits = append(waits, l.Next().Sub(now))
		now = l.Next()
		fail()
	}
	if waits[0] != 200*time.Millisecond || waits[1] != 400*time.Millisecond || waits[9] != 30*time.Second {
		t.Fatalf("waits: %v", waits)
	}
	l.Want(a, "bad1", "better") // a change is tried at once
	p := plan(l, now, 0)
	expect(t, render(p), "0 create bad1 >better")
	record(l, p, now)
	if len(l.Failures()) != 0 || !l.Next().IsZero() {
		t.Fatal("a success must end the failure")
	}
}

func TestBusyIsNoFailure(t *testing.T) {
	l := ledger.New[string, string](rules{})
	adopt(l, map[string]string{"k1": "v"})
	p := plan(l, epoch, 0)
	l.Record(p[0][0], ledger.BusyError{After: time.Second}, epoch)
	if len(l.Failures()) != 0 || !l.Next().Equal(epoch.Add(time.Second)) {
		t.Fatalf("failures %v, next %v", l.Failures(), l.Next())
	}
	expect(t, render(plan(l, epoch.Add(time.Second), 0)), "0 delete k1 v>")
}

// What stays busy is a failure in the end, tried again every five seconds, as it may be free at
// any time, and counts anew after a success or another error.
func TestBusyForLongIsAFailure(t *testing.T) {
	l := ledger.New[string, string](rules{})
	l.Want(owner("a"), "k1", "v")
	now := epoch
	try := func(err error) (failing bool) {
		t.Helper()
		p := plan(l, now, 0)
		if len(p) != 1 || len(p[0]) != 1 {
			t.Fatalf("planned after %s: %s", now.Sub(epoch), render(p))
		}
		return l.Record(p[0][0], err, now)
	}
	busy := ledger.BusyError{After: 100 * time.Millisecond}
	attempts := 0
	for ; now.Sub(epoch) < ledger.BusyLimit; now = l.Next() {
		if try(fmt.Errorf("address: %w", busy)) || len(l.Failures()) != 0 {
			t.Fatalf("a failure after %s", now.Sub(epoch))
		}
	}
	for ; now.Sub(epoch) < 5*time.Minute; now = l.Next() {
		if !try(fmt.Errorf("address: %w", busy)) {
			t.Fatalf("no failure after %s", now.Sub(epoch))
		}
		f := l.Failures()
		if attempts++; len(f) != 1 || f[0].Owner.Service.Name != "a" || !strings.Contains(f[0].Err.Error(), "busy for 10s and longer: address: ") {
			t.Fatalf("failures %v", f)
		}
	}
	if attempts < 55 || attempts > 70 {
		t.Errorf("%d attempts within 5 minutes", attempts)
	}
	if !try(errors.New("no")) {
		t.Error("an error is no failure")
	}
	if now = l.Next(); try(busy) || len(l.Failures()) != 0 {
		t.Error("busy once is a failure")
	}
	if now = l.Next(); try(nil) || len(l.Failures()) != 0 || !l.Next().IsZero() {
		t.Error("a success is a failure")
	}
}

func TestAReviewFindsWhatDiffers(t *testing.T) {
	l := ledger.New[string, string](rules{})
	a := owner("a")
	for _, k := range []string{"same1", "edited1", "gone1"} {
		l.Want(a, k, "v")
	}
	record(l, plan(l, epoch, 0), epoch)
	r := l.Review()
	have := map[string]string{"same1": "v", "edited1": "w", "foreign1": "x"}
	for _, k := range slices.Sorted(maps.Keys(have)) {
		r.See(k, have[k])
	}
	r.Sweep(true, func() { t.Fatal("a pause after a few objects") })
	if _, ok := r.Suspects["edited1"]; !ok || len(r.Suspects) != 3 {
		t.Fatalf("suspects: %v", r.Suspects)
	}
	if plan(l, epoch, 0) != nil {
		t.Fatal("something is planned on suspicion")
	}
	r.Suspects["edited1"] = a
	r.Accept(have)
	r.Close()
	if r.Accepted != 3 {
		t.Fatalf("entered: got %d, want 3", r.Accepted)
	}
	p := plan(l, epoch, 0)
	if len(p) != 1 || len(p[0]) != 3 {
		t.Fatalf("got %q", render(p))
	}
	for _, op := range p[0] {
		if op.Key == "edited1" && op.Owner != a {
			t.Fatal("the owner was named and is not known")
		}
	}
	record(l, p, epoch)
	if n := audit(l, map[string]string{"same1": "v", "edited1": "v", "gone1": "v"}); n != 0 {
		t.Fatalf("differences after the repair: %d", n)
	}
}

// What the second look does not confirm was no drift.
func TestSuspicionIsNoDrift(t *testing.T) {
	l := ledger.New[string, string](rules{})
	for _, k := range []string{"a1", "b1"} {
		l.Want(owner("a"), k, "v")
	}
	record(l, plan(l, epoch, 0), epoch)
	r := l.Review()
	r.See("a1", "other")
	r.See("c1", "gone since")
	r.Sweep(true, func() {})
	if len(r.Suspects) != 3 {
		t.Fatalf("suspects: %v", r.Suspects)
	}
	r.Accept(map[string]string{"a1": "v", "b1": "v"})
	r.Close()
	if p := plan(l, epoch, 0); r.Accepted != 0 || p != nil || l.Len() != 2 {
		t.Fatalf("%d entered, plan %q", r.Accepted, render(p))
	}
}

// A reading that is not whole says nothing, and leaves nothing behind for the
// next one.
func TestFailedReadReportsNothing(t *testing.T) {
	l := ledger.New[string, string](rules{})
	for _, k := range []string{"a1", "b1"} {
		l.Want(owner("a"), k, "v")
	}
	record(l, plan(l, epoch, 0), epoch)
	r := l.Review()
	r.See("a1", "v")
	r.See("x1", "v")
	r.Sweep(false, func() {})
	if len(r.Suspects) != 0 {
		t.Fatalf("suspects: %v", r.Suspects)
	}
	r.See("b1", "v")
	r.Sweep(true, func() {})
	r.Close()
	if _, ok := r.Suspects["a1"]; !ok || len(r.Suspects) != 1 {
		t.Fatalf("suspects: %v, want what only the first attempt read", r.Suspects)
	}
	r.See("a1", "late")
	r.Accept(nil)
	if p := plan(l, epoch, 0); p != nil {
		t.Fatalf("a review that was closed had %q planned", render(p))
	}
}

// An adoption that was interrupted begins anew: what its first reading found and the next did not is not
// there.
func TestAnInterruptedAdoption(t *testing.T) {
	l := ledger.New[string, string](rules{})
	r := l.Adopt()
	r.See("a1", "v")
	r.See("b1", "old")
	r.Sweep(false, func() {})
	r.See("b1", "v")
	r.See("b1", "v") // an object may be read twice
	r.See("c1", "v")
	r.Sweep(true, func() {})
	r.Close()
	have := maps.Collect(l.AllInstalled())
	if want := map[string]string{"b1": "v", "c1": "v"}; !maps.Equal(have, want) {
		t.Fatalf("installed are %v, want %v", have, want)
	}
	l.Want(owner("a"), "a1", "v")
	l.Want(owner("a"), "b1", "v")
	expect(t, render(plan(l, epoch, 0)), "0 create a1 >v", "0 delete c1 v>")
	if drift := audit(l, map[string]string{"b1": "v", "c1": "v"}); drift != 0 {
		t.Errorf("%d objects differ from what was read", drift)
	}
}

// After an adoption, whatever was wanted and released before the first plan, exactly what is wanted is
// installed in the end.
func TestAfterAnAdoptionOnlyWhatIsWantedStays(t *testing.T) {
	left := 0 // worlds in which something had to be deleted
	for seed := range uint64(5000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		world := func() map[string]string {
			m := map[string]string{}
			for i := range 6 {
				if rng.IntN(3) > 0 {
					m[fmt.Sprint("k", i)] = fmt.Sprint("v", rng.IntN(3)/2)
				}
			}
			return m
		}
		l := ledger.New[string, string](rules{})
		kernel, want := world(), map[string]string{}
		r := l.Adopt()
		if rng.IntN(3) == 0 {
			for k, v := range world() {
				r.See(k, v)
			}
			r.Sweep(false, func() {})
		}
		review(r, kernel)
		for range rng.IntN(12) {
			k := fmt.Sprint("k", rng.IntN(6))
			_, wanted := want[k]
			switch {
			case rng.IntN(8) == 0:
				kernel = world() // somebody else writes
				audit(l, kernel)
			case wanted:
				l.Release(owner("a"), k)
				delete(want, k)
			default:
				want[k] = "v0"
				l.Want(owner("a"), k, "v0")
			}
		}
		for batches := plan(l, epoch, 0); batches != nil; batches = plan(l, epoch, 0) {
			for _, op := range slices.Concat(batches...) {
				if op.Verb == ledger.Delete {
					left++
					delete(kernel, op.Key)
				} else {
					kernel[op.Key] = op.New
				}
				l.Record(op, nil, epoch)
			}
		}
		if !maps.Equal(kernel, want) {
			t.Fatalf("seed %d: installed is %v, wanted is %v", seed, kernel, want)
		}
	}
	if left < 1000 {
		t.Errorf("%d deletions: the test proves nothing", left)
	}
}

// What is read while ops are done, or under way, is right about everything else
// only.
func TestAReviewBelievesTheBooksOfWhatWasDoneMeanwhile(t *testing.T) {
	l := ledger.New[string, string](rules{})
	a := owner("a")
	for _, k := range []string{"stays1", "goes1", "edited1", "flying1"} {
		l.Want(a, k, "v")
	}
	record(l, plan(l, epoch, 0), epoch)
	l.Release(a, "flying1")
	flying := plan(l, epoch, 0) // under way before the reading begins
	r := l.Review()
	for k, v := range map[string]string{"stays1": "v", "goes1": "v", "edited1": "w"} {
		r.See(k, v)
	}
	record(l, flying, epoch)
	l.Release(a, "goes1")
	l.Want(a, "comes1", "v")
	p := plan(l, epoch, 0)
	r.Sweep(true, func() {})
	r.Accept(map[string]string{"edited1": "w", "flying1": "v", "goes1": "v"})
	record(l, p, epoch)
	r.Close()
	if r.Accepted != 1 {
		t.Fatalf("got %d differences, want the edited one", r.Accepted)
	}
	expect(t, render(plan(l, epoch, 0)), "0 replace edited1 w>v")
}

// A sweep pauses, and what changes in between is not taken for drift.
func TestASweepLetsChangesPass(t *testing.T) {
	l := ledger.New[string, string](rules{})
	a := owner("a")
	have := map[string]string{}
	for i := range 6 * ledger.Step { // a sweep may miss the few that come and go in its pauses
		k := fmt.Sprint("k", i, "-1")
		l.Want(a, k, "v")
		have[k] = "v"
	}
	record(l, plan(l, epoch, 0), epoch)
	r := l.Review()
	delete(have, "k7-1")
	have["k8-1"] = "w"
	for k, v := range have {
		r.See(k, v)
	}
	pauses, ops := 0, 0
	r.Sweep(true, func() {
		k := fmt.Sprint("k", 100+pauses, "-1")
		l.Release(a, k)
		l.Want(a, "new"+k, "v")
		p := plan(l, epoch, 0)
		ops += len(p[0])
		record(l, p, epoch)
		pauses++
	})
	if pauses < 5 || ops != 2*pauses {
		t.Fatalf("%d pauses, %d ops in them", pauses, ops)
	}
	l.Release(a, "k8-1") // and the edited one has no owner any more
	r.Accept(have)
	r.Close()
	if r.Accepted != 2 {
		t.Fatalf("got %d differences, want 2", r.Accepted)
	}
	p := plan(l, epoch, 0)
	record(l, p, epoch)
	if len(p) != 1 || len(p[0]) != 2 || l.Len() != 6*ledger.Step-1 {
		t.Fatalf("got %q, %d objects", render(p), l.Len())
	}
}

// An op that did not fit shows that the ledger are wrong: they are corrected and
// the op is planned again, as another one where need be.
func TestOpsThatDoNotFitArePlannedAnew(t *testing.T) {
	l := ledger.New[string, string](rules{})
	a := owner("a")
	adopt(l, map[string]string{"lost1": "old", "gone1": "v"})
	l.Want(a, "there1", "v")
	l.Want(a, "right1", "v")
	l.Want(a, "lost1", "v")
	for _, batch := range plan(l, epoch, 0) {
		changed := 0
		for k, v := range map[string]string{"there1": "w", "right1": "v"} {
			if l.Correct(k, v, true) {
				changed++
			}
		}
		for _, k := range []string{"lost1", "gone1"} {
			if l.Correct(k, "", false) {
				changed++
			}
		}
		if l.Correct("gone1", "", false) || changed != 4 {
			t.Fatalf("%d corrections", changed)
		}
		for _, op := range batch {
			l.Return(op)
		}
	}
	p := plan(l, epoch, 0)
	got := render(p)
	slices.Sort(got)
	expect(t, got, "0 create lost1 >v", "0 replace there1 w>v")
	record(l, p, epoch)
	if l.Len() != 3 || plan(l, epoch, 0) != nil {
		t.Fatalf("%d objects", l.Len())
	}
}

// Any sequence of wanted changes, failures and external changes converges to exactly what
// is wanted, and then plans nothing.
func TestConvergesUnderRandomFailures(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		l := ledger.New[string, string](rules{})
		kernel := map[string]string{}
		wish := map[string]map[string]string{} // owner -> key -> value
		owners := map[string]*model.PortID{}
		now := epoch
		apply := func(failing bool) {
			for _, b := range plan(l, now, 5) {
				for _, op := range b {
					if failing && rng.IntN(10) == 0 {
						l.Record(op, errors.New("injected"), now)
						continue
					}
					if op.Verb == ledger.Delete {
						delete(kernel, op.Key)
					} else {
						kernel[op.Key] = op.New
					}
					l.Record(op, nil, now)
				}
			}
		}
		for range 60 {
			name := string(rune('a' + rng.IntN(4)))
			if owners[name] == nil {
				owners[name] = owner(name)
			}
			next := map[string]string{}
			for range rng.IntN(4) {
				next[fmt.Sprintf("%s%d", name, rng.IntN(6))] = fmt.Sprint(rng.IntN(3))
			}
			if rng.IntN(2) == 0 {
				next["shared0"] = "v"
			}
			for k, v := range next {
				l.Want(owners[name], k, v)
			}
			for k := range wish[name] {
				l.Release(owners[name], k)
			}
			wish[name] = next
			if rng.IntN(8) == 0 {
				for k := range kernel {
					delete(kernel, k)
					break
				}
				adopt(l, maps.Clone(kernel))
			}
			apply(true)
			now = now.Add(time.Duration(rng.IntN(500)) * time.Millisecond)
		}
		for range 20 {
			now = now.Add(2 * time.Minute)
			apply(false)
		}
		want := map[string]string{}
		for _, m := range wish {
			maps.Copy(want, m)
		}
		if !maps.Equal(kernel, want) {
			t.Fatalf("seed %d: kernel %v, want %v", seed, kernel, want)
		}
		if l.Len() != len(want) || len(plan(l, now, 0)) != 0 || !l.Next().IsZero() {
			t.Fatalf("seed %d: books not at rest: %d entries for %d objects", seed, l.Len(), len(want))
		}
	}
}

// A shared object must not fail with the first of its owners.
func TestSharedObjectsHaveNoOwner(t *testing.T) {
	l := ledger.New[string, string](rules{})
	bad, good := owner("bad"), owner("good")
	l.Want(bad, "chain1", "v")
	l.Want(bad, "own2", "v")
	l.Want(good, "chain1", "v")
	for _, op := range plan(l, epoch, 0)[0] {
		if want := map[string]*model.PortID{"chain1": nil, "own2": bad}[op.Key]; op.Owner != want {
			t.Errorf("%s belongs to %v, want %v", op.Key, op.Owner, want)
		}
		l.Record(op, errors.New("no"), epoch)
	}
	l.Want(owner("third"), "chain1", "v") // does not have to wait for the others' retry
	expect(t, render(plan(l, epoch, 0)), "0 create chain1 >v")
}

// What failed of one owner is retried together, however often each part had
// failed before.
func TestAnOwnersFailuresAreRetriedTogether(t *testing.T) {
	l := ledger.New[string, string](rules{})
	a, b := owner("a"), owner("b")
	fail := func(now time.Time) {
		for _, batch := range plan(l, now, 0) {
			for _, op := range batch {
				l.Record(op, errors.New("no"), now)
			}
		}
	}
	l.Want(a, "x1", "v")
	l.Want(b, "y1", "v")
	fail(epoch)
	fail(epoch.Add(time.Second)) // a and b: next in 400 ms
	l.Want(a, "z2", "v")
	fail(epoch.Add(time.Second)) // z2 alone: next in 200 ms
	expect(t, render(plan(l, epoch.Add(1200*time.Millisecond), 0)), "0 create x1 >v", "0 create z2 >v")
}

// What there was no time for comes again at once and keeps the error of its last
// attempt. What failed is retried after its back-off, also beside that.
func TestDeferredOpsDoNotHurryFailures(t *testing.T) {
	l := ledger.New[string, string](rules{})
	web, refused := owner("web"), errors.New("refused")
	l.Want(web, "a0", "x")
	l.Want(web, "b1", "y")
	commit := func(now time.Time, results map[string]error) (tried []string) {
		for _, batch := range plan(l, now, 0) {
			for _, op := range batch {
				l.Record(op, results[op.Key], now)
				tried = append(tried, op.Key)
			}
		}
		return tried
	}
	commit(epoch, map[string]error{"a0": refused, "b1": ledger.ErrDeferred})
	expect(t, commit(epoch, map[string]error{"b1": ledger.ErrDeferred}), "b1")
	later := epoch.Add(time.Hour)
	expect(t, commit(later, map[string]error{"a0": ledger.ErrDeferred, "b1": ledger.ErrDeferred}), "a0", "b1")
	for _, f := range l.Failures() {
		if want := map[string]error{"a0": refused, "b1": ledger.ErrDeferred}[f.Key]; f.Err != want {
			t.Errorf("%s: %v, want %v", f.Key, f.Err, want)
		}
	}
}

func TestSparedObjectsStayWhileThereIsDoubt(t *testing.T) {
	l := ledger.New[string, string](rules{})
	adopt(l, map[string]string{"a1": "v", "b1": "v"})
	l.KeepUnknown(true)
	l.Want(owner("a"), "a1", "v")
	expect(t, render(plan(l, epoch, 0)))
	l.Want(owner("c"), "c1", "v") // everything else continues
	p := plan(l, epoch, 0)
	expect(t, render(p), "0 create c1 >v")
	record(l, p, epoch)
	l.Release(owner("a"), "a1") // it had an owner, and has none any more
	expect(t, render(plan(l, epoch, 0)), "0 delete a1 v>")
	l.KeepUnknown(false)
	expect(t, render(plan(l, epoch, 0)), "0 delete b1 v>")
}

// A deletion that failed before the doubt is no failure while the object is kept: nothing retries it.
func TestWhatIsKeptDoesNotFail(t *testing.T) {
	l := ledger.New[string, string](rules{})
	adopt(l, map[string]string{"b1": "v"})
	l.Record(plan(l, epoch, 0)[0][0], errors.New("in use"), epoch)
	l.KeepUnknown(true)
	later := epoch.Add(time.Minute)
	expect(t, render(plan(l, later, 0)))
	if f := l.Failures(); len(f) > 0 || !l.Next().IsZero() {
		t.Errorf("failures: %+v, next %v", f, l.Next())
	}
	l.KeepUnknown(false)
	expect(t, render(plan(l, later, 0)), "0 delete b1 v>")
}

// What is ours and wanted no more goes, whatever there is doubt about: also what
// belongs to no port.
func TestDoubtIsAboutWhatWasFoundAlone(t *testing.T) {
	l := ledger.New[string, string](rules{})
	adopt(l, map[string]string{"a1": "v", "b1": "v"})
	l.KeepUnknown(true)
	l.Want(nil, "a1", "v")
	l.Want(nil, "c1", "v")
	record(l, plan(l, epoch, 0), epoch)
	l.Release(nil, "a1")
	l.Release(nil, "c1")
	expect(t, render(plan(l, epoch, 0)), "0 delete a1 v>", "0 delete c1 v>")
	adopt(l, map[string]string{"b1": "v", "d1": "v"}) // d1 came from an earlier run as well
	expect(t, render(plan(l, epoch, 0)))
}

func TestAKeyIsPlannedOnce(t *testing.T) {
	l := ledger.New[string, string](rules{})
	a := owner("a")
	l.Want(a, "k1", "v")
	l.Release(a, "k1")
	adopt(l, nil)
	l.Want(a, "k1", "v")
	expect(t, render(plan(l, epoch, 0)), "0 create k1 >v")
}

// What is read of a key whose op is still to come leaves that op as it was planned.
func TestAnOpInFlightIsItsOwn(t *testing.T) {
	l := ledger.New[string, string](rules{})
	adopt(l, map[string]string{"old1": "x"})
	l.Want(owner("s"), "a1", "v")
	p := l.Plan(epoch, 1)
	expect(t, render([][]ledger.Op[string, string]{p.Next()}), "0 create a1 >v")
	if !l.Correct("old1", "", false) {
		t.Error("old1 was gone before")
	}
	l.Want(owner("s"), "b1", "v")
	op := p.Next()[0]
	if op.Key != "old1" || op.Verb != ledger.Delete {
		t.Errorf("planned: %s of %s", op.Verb, op.Key)
	}
	l.Record(op, nil, epoch)
	l.Record(ledger.Op[string, string]{Key: "a1", New: "v"}, nil, epoch)
	expect(t, render(plan(l, epoch, 0)), "0 create b1 >v")
	if l.Len() != 2 {
		t.Errorf("%d objects, want a1 and b1", l.Len())
	}
}

// What an op leaves behind halfway is known: a wish that turns back to the old
// value is no empty one, and what was made is deleted with its owner.
func TestWhatIsLeftHalfwayIsBooked(t *testing.T) {
	l := ledger.New[string, string](rules{})
	a := owner("a")
	half := ledger.LeftError[string]{Value: "half", There: true, Err: errors.New("not all of it")}
	l.Want(a, "k1", "v")
	l.Record(plan(l, epoch, 0)[0][0], half, epoch)
	if f := l.Failures(); len(f) != 1 || !errors.Is(f[0].Err, half.Err) {
		t.Fatalf("failures: %+v", f)
	}
	expect(t, render(plan(l, epoch.Add(time.Second), 0)), "0 replace k1 half>v")
	l.Release(a, "k1")
	p := plan(l, epoch.Add(time.Second), 0)
	expect(t, render(p), "0 delete k1 half>")
	record(l, p, epoch.Add(time.Second))

	adopt(l, map[string]string{"k1": "old"})
	l.Want(a, "k1", "new")
	l.Record(plan(l, epoch, 0)[0][0], ledger.LeftError[string]{Err: half.Err}, epoch)
	l.Want(a, "k1", "old")
	l.Release(a, "k1")
	expect(t, render(plan(l, epoch.Add(time.Second), 0)), "0 create k1 >old")
}

// An owner is the same port whatever object names it: a retry points to an
// earlier one.
func TestOwnersAreComparedByValue(t *testing.T) {
	l := ledger.New[string, string](rules{})
	for i := range 4 {
		l.Want(owner("a"), fmt.Sprint("a", i, "-1"), "v")
		l.Want(owner("b"), fmt.Sprint("b", i, "-1"), "v")
	}
	for i, batch := range plan(l, epoch, 3) {
		for _, op := range batch {
			if len(batch) != 4 || *op.Owner != *batch[0].Owner {
				t.Errorf("batch %d has %d ops, one of %v", i, len(batch), op.Owner)
			}
		}
	}
}

// BenchmarkRestart adopts objects that are all wanted.
func BenchmarkRestart(b *testing.B) {
	for _, n := range []int{10_000, 100_000, 350_000} {
		b.Run(fmt.Sprint("objects=", n), func(b *testing.B) {
			keys := make([]string, n)
			for i := range keys {
				keys[i] = fmt.Sprintf("%08d", i)
			}
			b.ReportAllocs()
			for b.Loop() {
				l := ledger.New[string, string](rules{})
				r := l.Adopt()
				for _, k := range keys {
					r.See(k, "v")
				}
				r.Sweep(true, func() {})
				r.Close()
				for _, k := range keys {
					l.Want(nil, k, "v")
				}
				if p := plan(l, epoch, 0); p != nil {
					b.Fatalf("%d batches", len(p))
				}
			}
		})
	}
}

// guarded are rules where keys such as "10.0.0.0/8@1" admit clients to what guard2 shuts them out of.
type guarded struct{ rules }

func (guarded) Admits(k string) (guard string, clients netip.Prefix) {
	if text, _, ok := strings.Cut(k, "@"); ok {
		return "guard2", netip.MustParsePrefix(text)
	}
	return guard, clients
}

// passing is a ledger of an address that a's endpoint serves to some clients, and then b's to others.
func passing(l *ledger.Ledger[string, string], b *model.PortID) {
	for _, k := range []string{"10.1.0.0/16@1", "10.2.0.0/16@1", "192.0.2.0/28@1", "guard2", "b3"} {
		l.Want(b, k, "v")
	}
}

// Where a guarded address passes to another owner, those whom one of both admits are shut out before
// and admitted after it, and those whom both admit are admitted all the time.
func TestGuardedAddressPasses(t *testing.T) {
	a, b := owner("a"), owner("b")
	had := []string{"10.1.0.0/24@1", "172.16.0.0/12@1", "192.0.2.0/24@1", "guard2", "a3"}
	for _, limit := range []int{0, 1} {
		l := ledger.New[string, string](guarded{})
		for _, k := range had {
			l.Want(a, k, "v")
		}
		record(l, plan(l, epoch, 0), epoch)
		passing(l, b)
		for _, k := range had {
			l.Release(a, k)
		}
		expect(t, render(plan(l, epoch, limit)),
			"0 create 192.0.2.0/28@1 >v", "0 delete 172.16.0.0/12@1 v>", "0 delete 192.0.2.0/24@1 v>",
			"0 create b3 >v", "0 delete a3 v>",
			"0 create 10.1.0.0/16@1 >v", "0 create 10.2.0.0/16@1 >v", "0 delete 10.1.0.0/24@1 v>")
	}
}

// The same at a start: whose the ranges were is not known, nor, while there is doubt, whether they are
// of an input that could not be read. They are of the one whose address it is now, or of nobody.
func TestGuardedAddressHasPassedAtAStart(t *testing.T) {
	l := ledger.New[string, string](guarded{})
	adopt(l, map[string]string{"172.16.0.0/12@1": "v", "guard2": "v", "a3": "v"})
	l.KeepUnknown(true)
	passing(l, owner("b"))
	p := plan(l, epoch, 1)
	expect(t, render(p),
		"0 delete 172.16.0.0/12@1 v>", "0 create b3 >v",
		"0 create 10.1.0.0/16@1 >v", "0 create 10.2.0.0/16@1 >v", "0 create 192.0.2.0/28@1 >v")
	record(l, p, epoch)
	l.KeepUnknown(false)
	expect(t, render(plan(l, epoch, 1)), "0 delete a3 v>")

	l = ledger.New[string, string](guarded{})
	adopt(l, map[string]string{"172.16.0.0/12@1": "v", "guard2": "v", "a3": "v"})
	passing(l, owner("b"))
	expect(t, render(plan(l, epoch, 1)),
		"0 delete 172.16.0.0/12@1 v>", "0 create b3 >v", "1 delete a3 v>",
		"2 create 10.1.0.0/16@1 >v", "2 create 10.2.0.0/16@1 >v", "2 create 192.0.2.0/28@1 >v")
}

// An address that gets ranges, or none, is open until it has all, and from before they go.
func TestGuardComesAndGoes(t *testing.T) {
	l, b := ledger.New[string, string](guarded{}), owner("b")
	passing(l, b)
	p := plan(l, epoch, 0)
	expect(t, render(p), "0 create 10.1.0.0/16@1 >v", "0 create 10.2.0.0/16@1 >v", "0 create 192.0.2.0/28@1 >v", "0 create guard2 >v", "0 create b3 >v")
	record(l, p, epoch)
	for _, k := range []string{"10.1.0.0/16@1", "10.2.0.0/16@1", "192.0.2.0/28@1", "guard2"} {
		l.Release(b, k)
	}
	expect(t, render(plan(l, epoch, 0)), "0 delete guard2 v>", "0 delete 10.1.0.0/16@1 v>", "0 delete 10.2.0.0/16@1 v>", "0 delete 192.0.2.0/28@1 v>")
}
