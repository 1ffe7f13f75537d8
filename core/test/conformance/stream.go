// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/test/memory"
	"github.com/tandem-proxy/tandem/core/track"
)

// random tests the data plane with random worlds, each followed by a stream of
// changes. The name of a subtest has the seed.
func (s Suite[K, V]) random(t *testing.T, sum *tally) {
	worlds := s.Worlds
	if worlds == 0 {
		worlds = *worldCount
	}
	if testing.Short() {
		worlds = min(worlds, 10)
	}
	for seed := *worldFrom; seed < *worldFrom+uint64(worlds); seed++ {
		t.Run(fmt.Sprintf("seed-%d", seed), func(t *testing.T) {
			s.world(t, RandomWorld(NewRand(seed)), sum)
			// In virtual time (synctest) the waits between attempts cost nothing.
			synctest.Test(t, func(t *testing.T) { s.stream(t, NewRand(seed), seed%2 == 1) })
		})
	}
}

func (s Suite[K, V]) world(t *testing.T, w Random, sum *tally) {
	ports := w.Ports()
	out, err := compile(s.Compiler, w.Host, ports)
	if err != nil {
		t.Error(err)
	}
	s.ranges(t, "random world", w.Host, out.objects)
	trial := s.trial(t, w.Host, ports, out)
	for _, p := range Probes(w.Host, ports) {
		trial.judge("probe "+Show(p), p)
	}
	trial.report("random world", sum)
}

var errInjected = errors.New("injected failure")

// stream applies changes one after the other to a data plane in memory, of which one
// in ten ops may fail. The result must be the same as a compilation from scratch, and
// a further sync must do nothing.
func (s Suite[K, V]) stream(t *testing.T, rng *rand.Rand, faults bool) {
	const changes = 30
	d := memory.New[K](s.Compiler.Equal, dataplane.Limits{Atomic: rng.IntN(2) == 0, Batch: rng.IntN(3) * 7})
	b := dataplane.New(s.Compiler, d)
	defer b.Close()
	ctx := context.Background()
	if err := b.Adopt(ctx); err != nil {
		t.Fatal(err)
	}
	if faults {
		d.Fail = func(ledger.Op[K, V]) error {
			if rng.IntN(10) == 0 {
				return errInjected
			}
			return nil
		}
	}
	tracker := track.New()
	var now Random
	next := RandomWorld(rng)
	if faults {
		next = next.WithRoutes(rng)
	}
	for range changes {
		next.Feed(tracker, now)
		if next.Host != now.Host {
			b.SetHost(next.Host)
		}
		audited := s.inspect(t, rng, b)
		b.Update(tracker.Flush())
		if _, err := b.Sync(ctx); err != nil && !errors.Is(err, errInjected) {
			t.Fatal(err)
		}
		audited()
		now, next = next, next.Change(rng)
	}
	d.Fail = nil
	s.converged(t, b, d)
	s.same(t, now, tracker, d.Objects, true)
	s.afterDelays(t, b)
	s.same(t, now, tracker, d.Objects, false)
	if ops, err := s.restart(ctx, now, d); err != nil || ops != 0 {
		t.Errorf("a restart with nothing changed did %d ops (%v)", ops, err)
	}
}

// inspect starts an audit at times. The function that it returns is called after a
// change, and checks that the audit did not take the change for drift.
func (s Suite[K, V]) inspect(t *testing.T, rng *rand.Rand, b dataplane.Backend) (finish func()) {
	t.Helper()
	if rng.IntN(4) > 0 {
		return func() {}
	}
	result := make(chan error, 1)
	go func() {
		drift, err := b.Audit(t.Context())
		if err == nil && drift != 0 {
			err = fmt.Errorf("%d objects differ from the last commit", drift)
		}
		result <- err
	}()
	return func() {
		if err := <-result; err != nil {
			t.Errorf("an audit beside a change: %v", err)
		}
	}
}

// afterDelays lets time pass until all delayed deletions are done.
func (s Suite[K, V]) afterDelays(t *testing.T, b dataplane.Backend) {
	t.Helper()
	for waits := 0; !b.Next().IsZero(); waits++ {
		if waits == 1000 {
			t.Fatalf("something is still to be done after %d waits", waits)
		}
		time.Sleep(time.Until(b.Next()))
		if _, err := b.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// restart adopts the installed objects like a new process, which should have nothing
// to write. It returns how many ops it did.
func (s Suite[K, V]) restart(ctx context.Context, now Random, d *memory.Driver[K, V]) (ops int, err error) {
	b := dataplane.New(s.Compiler, d)
	if err := b.Adopt(ctx); err != nil {
		return 0, err
	}
	tracker := track.New()
	tracker.KeepSlots(b.Slots)
	now.Feed(tracker, Random{})
	b.SetHost(now.Host)
	b.Update(tracker.Flush())
	before := d.Ops
	_, err = b.Sync(ctx)
	return d.Ops - before, err
}

// converged waits for retries of failed ops, and then checks that a sync does
// nothing.
func (s Suite[K, V]) converged(t *testing.T, b dataplane.Backend, d *memory.Driver[K, V]) {
	t.Helper()
	ctx := context.Background()
	for attempts := 0; ; attempts++ {
		h := b.Health()
		if len(h.Failures) == 0 && h.Shared == nil && h.Left == nil {
			break
		}
		if attempts == 1000 {
			t.Fatalf("still failing after %d attempts: %v, %v, %v", attempts, h.Failures, h.Shared, h.Left)
		}
		time.Sleep(time.Until(b.Next()))
		if _, err := b.Sync(ctx); err != nil {
			t.Fatal(err)
		}
	}
	before := d.Ops
	if w, err := b.Sync(ctx); err != nil || d.Ops != before {
		t.Errorf("a sync without a change did %d ops (%v)", w.Ops, err)
	}
	if drift, err := b.Audit(ctx); err != nil || drift != 0 {
		t.Errorf("the audit found %d objects not as they were left (%v)", drift, err)
	}
}

// same compares what is installed with a compilation from scratch. More may be
// installed only while deletions are delayed, and only those with a DeleteDelay.
func (s Suite[K, V]) same(t *testing.T, w Random, tracker *track.Tracker, have map[K]V, delayed bool) {
	t.Helper()
	want, err := compile(s.Compiler, w.Host, Ports(tracker))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range want.objects {
		if got, ok := have[k]; !ok {
			t.Errorf("%v is missing", k)
		} else if !s.Compiler.Equal(got, v) {
			t.Errorf("%v is %v, want %v", k, got, v)
		}
	}
	for k, v := range have {
		if _, ok := want.objects[k]; !ok && !(delayed && s.Compiler.DeleteDelay(k) > 0) {
			t.Errorf("%v is left over: %v", k, v)
		}
	}
}
