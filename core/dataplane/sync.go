// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/sleep"
)

// bisectBudget is how many commits a Sync may spend on splitting batches that fail as
// a whole. When it is used up, the rest of a failing batch waits for the next Sync:
// then the failure is not about a single object.
const bisectBudget = 64

func (b *backend[K, V]) Sync(ctx context.Context) (Work, error) {
	s := run[K, V]{backend: b, ctx: ctx, budget: bisectBudget, now: time.Now()}
	if b.unknown {
		if err := s.readBack(); err != nil {
			return Work{Held: err}, err
		}
	}
	for s.again = true; s.again; {
		s.again = false
		p := s.plan()
		for batch := s.next(p); batch != nil; batch = s.next(p) {
			s.commit(batch)
		}
	}
	if s.work.Held == nil && s.work.Deferred == 0 {
		s.work.Repaired = b.repaired()
	}
	return s.work, s.err
}

// The waits between attempts to read back.
const (
	firstRead = 200 * time.Millisecond
	lastRead  = 10 * time.Second
)

// run is one run of Sync.
type run[K comparable, V any] struct {
	*backend[K, V]
	ctx    context.Context
	work   Work
	err    error // the first
	budget int
	now    time.Time // the same for all ops, so that those that fail together are retried together
	again  bool      // ops were returned to be planned again
}

// readBack reads the installed objects after a commit with an unknown outcome. Nothing is
// written until it succeeds; attempts are spaced out, however often it is called.
func (s *run[K, V]) readBack() (err error) {
	if s.now.Before(s.readAt) {
		return s.readErr
	}
	if s.driver.Limits().Get {
		err = s.reread(s.unknownKeys)
	} else {
		_, err = s.Audit(s.ctx)
	}
	if err == nil {
		s.unknown, s.unknownKeys, s.readWait = false, nil, 0
		return nil
	}
	wait := firstRead
	if !errors.Is(err, ErrReading) { // an audit that is under way is no failure
		s.readWait = sleep.Longer(s.readWait, firstRead, lastRead)
		wait = s.readWait
	}
	s.readAt = time.Now().Add(wait)
	s.readErr = fmt.Errorf("writes paused until the data plane can be read: %w", err)
	return s.readErr
}

// reread reads single keys, and corrects the ledger.
func (s *run[K, V]) reread(keys []K) error {
	have, err := s.getAll(s.ctx, keys)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range keys {
		if v, there := have[k]; s.ledger.Correct(k, v, there) {
			s.work.Corrected++
		}
	}
	return nil
}

func (s *run[K, V]) plan() *ledger.Planned[K, V] {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(s.repairing, s.damaged)
	clear(s.damaged)
	return s.ledger.Plan(s.now, s.driver.Limits().Batch)
}

func (s *run[K, V]) next(p *ledger.Planned[K, V]) []ledger.Op[K, V] {
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.Next()
}

// commit applies a batch and records the result of each op. A batch that fails as a
// whole is split until the failing part is what a single owner creates and replaces, or
// a single deletion.
func (s *run[K, V]) commit(batch []ledger.Op[K, V]) {
	if err := s.ctx.Err(); err != nil {
		s.recordAll(batch, err)
		return
	}
	if s.unknown {
		s.recordAll(batch, ledger.ErrUnknown)
		return
	}
	errs := s.driver.Commit(s.ctx, batch)
	s.work.Commits++
	failed := worst(errs)
	switch {
	case errors.Is(failed, ledger.ErrUnknown):
		s.unknown, s.readAt = true, s.now
		for _, op := range batch {
			s.unknownKeys = append(s.unknownKeys, op.Key)
		}
		s.recordAll(batch, failed)
	case failed != nil && s.resolveConflicts(batch, errs):
	case failed == nil || !s.driver.Limits().Atomic:
		s.recordEach(batch, errs)
	case busy(failed):
		// No op is wrong: another program holds the data plane.
		s.hold(batch, errs)
		s.err, s.work.Held = cmp.Or(s.err, failed), failed
	default:
		s.bisect(s.recordDone(batch, errs), failed)
	}
}

// recordDone records the ops that were done, and returns the others.
func (s *run[K, V]) recordDone(batch []ledger.Op[K, V], errs []error) (failed []ledger.Op[K, V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, op := range batch {
		if errs[i] == nil {
			s.record(op, nil)
		} else {
			failed = append(failed, op)
		}
	}
	return failed
}

// resolveConflicts corrects the ledger where ops do not match what is installed, and has those
// ops planned again, with all others of the batch that were not done for them. Their
// ports were damaged (Repaired). It reports whether the ledger was wrong.
func (s *run[K, V]) resolveConflicts(batch []ledger.Op[K, V], errs []error) bool {
	var keys []K
	for i, op := range batch {
		if conflict(errs[i]) {
			keys = append(keys, op.Key)
		}
	}
	if !s.driver.Limits().Get || len(keys) == 0 || s.budget < 2 {
		return false
	}
	s.budget -= 2
	before := s.work.Corrected
	if err := s.reread(keys); err != nil || s.work.Corrected == before {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, op := range batch {
		if conflict(errs[i]) && op.Owner != nil {
			s.repairing[*op.Owner] = struct{}{}
		}
		if errs[i] != nil && (s.driver.Limits().Atomic || conflict(errs[i])) {
			s.ledger.Return(op)
		} else {
			s.record(op, errs[i])
		}
	}
	s.again = true
	return true
}

func conflict(err error) bool {
	_, is := errors.AsType[ledger.ConflictError](err)
	return is
}

func (s *run[K, V]) bisect(batch []ledger.Op[K, V], failed error) {
	left, right := splitByOwner(batch)
	together := len(right) == 0
	if together {
		left, right = splitDeletions(batch)
	}
	if s.budget < 2 || len(left) == 0 || len(right) == 0 {
		s.recordAll(batch, failed)
		return
	}
	if s.work.BatchErr == nil {
		s.work.BatchErr = fmt.Errorf("%d objects at once: %w", len(batch), failed)
	}
	s.budget -= 2
	before := s.work.Failed
	s.commit(left)
	if together && s.work.Failed > before { // the object to delete is still in use
		s.recordAll(right, failed)
		return
	}
	s.commit(right)
}

// splitDeletions cuts a batch of one owner where its deletions begin or end, or
// between them: what is not wanted any more must not hold up what is, but where that shuts
// clients out first. A part is empty when there is nothing to cut.
func splitDeletions[K comparable, V any](batch []ledger.Op[K, V]) (left, right []ledger.Op[K, V]) {
	deletes := func(op ledger.Op[K, V]) bool { return op.Verb == ledger.Delete }
	n := slices.IndexFunc(batch, func(op ledger.Op[K, V]) bool { return deletes(op) != deletes(batch[0]) })
	switch {
	case n < 0 && deletes(batch[0]):
		n = len(batch) / 2
	case n < 0:
		n = len(batch)
	}
	return batch[:n], batch[n:]
}

// splitByOwner cuts a batch between owners, keeping the order of each part. Ops that
// belong to no port are groups of one. The second part is empty when there
// is nothing to cut.
func splitByOwner[K comparable, V any](batch []ledger.Op[K, V]) (left, right []ledger.Op[K, V]) {
	part := make([]int, len(batch)) // which owner each op belongs to, counted from 0
	seen := map[any]int{}
	owners := 0
	for i, op := range batch {
		var owner any = op.Key
		if op.Owner != nil {
			owner = op.Port()
		}
		n, ok := seen[owner]
		if !ok {
			n = owners
			seen[owner] = n
			owners++
		}
		part[i] = n
	}
	for i, op := range batch {
		if part[i] < (owners+1)/2 {
			left = append(left, op)
		} else {
			right = append(right, op)
		}
	}
	return left, right
}

func (s *run[K, V]) recordEach(batch []ledger.Op[K, V], errs []error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, op := range batch {
		s.record(op, errs[i])
	}
}

// hold records the ops of a batch; an op that met a busy data plane is not a failure.
func (s *run[K, V]) hold(batch []ledger.Op[K, V], errs []error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, op := range batch {
		if b, is := errors.AsType[ledger.BusyError](errs[i]); is {
			s.ledger.Hold(op, s.now.Add(b.After))
		} else {
			s.record(op, errs[i])
		}
	}
}

func (s *run[K, V]) recordAll(batch []ledger.Op[K, V], err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, op := range batch {
		s.record(op, err)
	}
}

func (s *run[K, V]) record(op ledger.Op[K, V], err error) {
	failing := s.ledger.Record(op, err, s.now)
	switch {
	case err == nil:
		s.work.Ops++
		s.work.Verbs[op.Verb]++
	case errors.Is(err, ledger.ErrDeferred):
		s.work.Deferred++
	case failing:
		s.work.Failed++
		if s.err == nil {
			s.err = describe(op, err)
		}
	}
}

func busy(err error) bool {
	_, is := errors.AsType[ledger.BusyError](err)
	return is
}

func describe[K comparable, V any](op ledger.Op[K, V], err error) error {
	if op.Owner == nil {
		return fmt.Errorf("%s %v: %w", op.Verb, op.Key, err)
	}
	return fmt.Errorf("%s: %s %v: %w", op.Owner, op.Verb, op.Key, err)
}

// worst returns ErrUnknown if any op has it, since then nothing may be written
// before the data plane is read; else the first error.
func worst(errs []error) (failed error) {
	for _, err := range errs {
		if errors.Is(err, ledger.ErrUnknown) {
			return err
		}
		failed = cmp.Or(failed, err)
	}
	return failed
}

// Remove plans with nothing wanted, so the driver sees nothing but
// deletions of objects that it reported as owned.
func (b *backend[K, V]) Remove(ctx context.Context) error {
	fresh := newBackend(b.compiler, b.driver, ledger.Rules[K, V](noDelay[K, V]{b.compiler}), b.reading)
	if err := fresh.Adopt(ctx); err != nil {
		return err
	}
	found := fresh.Health().Objects
	_, err := SyncAll(ctx, fresh)
	if found > 0 && err == nil {
		err = b.driver.Prune(ctx)
	}
	return err
}

// SyncAll calls Sync until nothing is deferred or no op succeeds. It returns the Work of the last
// one, with the ports that all of them have repaired, and the first error.
func SyncAll(ctx context.Context, b Backend) (work Work, err error) {
	for {
		repaired := work.Repaired
		var failed error
		work, failed = b.Sync(ctx)
		err = cmp.Or(err, failed)
		work.Repaired = append(repaired, work.Repaired...)
		if work.Deferred == 0 || work.Ops == 0 || ctx.Err() != nil {
			return work, err
		}
	}
}

// noDelay are a compiler's rules for objects, without any DeleteDelay.
type noDelay[K comparable, V any] struct{ ledger.Rules[K, V] }

func (noDelay[K, V]) DeleteDelay(K) time.Duration { return 0 }
