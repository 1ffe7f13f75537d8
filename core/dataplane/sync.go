package dataplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-proxy/tandem/core/ledger"
)

// patience is how many commits a Sync may spend on finding what is wrong with
// batches that fail as a whole. When it is used up the rest of a failing batch
// waits for the next Sync: then it is not one object that is wrong.
const patience = 64

func (b *backend[K, V]) Sync(ctx context.Context) (Work, error) {
	if b.unknown {
		if err := b.readBack(ctx); err != nil {
			return Work{Held: err}, err
		}
	}
	s := sync[K, V]{backend: b, ctx: ctx, patience: patience, now: time.Now()}
	for _, batch := range b.ledger.Plan(s.now, b.driver.Limits().Batch) {
		s.commit(batch)
	}
	return s.work, s.err
}

// The waits between attempts to read back.
const (
	firstRead = 200 * time.Millisecond
	lastRead  = 10 * time.Second
)

var errInspecting = errors.New("nothing is written until the data plane can be read again, which waits for an audit")

// readBack finds out what is installed after the outcome of a commit could not
// be told. Until that works nothing is written; attempts are spaced out however
// often it is called.
func (b *backend[K, V]) readBack(ctx context.Context) error {
	if now := time.Now(); now.Before(b.readAt) {
		return b.readErr
	}
	if b.inspecting { // it began before, so it does not tell
		b.readAt, b.readErr = time.Now().Add(firstRead), errInspecting
		return b.readErr
	}
	_, err := b.Audit(ctx)
	if err == nil {
		b.readWait = 0
		return nil
	}
	b.readWait = min(max(2*b.readWait, firstRead), lastRead)
	b.readAt = time.Now().Add(b.readWait)
	b.readErr = fmt.Errorf("nothing is written until the data plane can be read again: %w", err)
	return b.readErr
}

// sync is one run of Sync.
type sync[K comparable, V any] struct {
	*backend[K, V]
	ctx      context.Context
	work     Work
	err      error // the first
	patience int
	now      time.Time // one for all, so that what fails together is tried again together
}

// commit applies a batch and settles each of its ops. A batch that fails as a
// whole is cut in two until what fails is a single owner's, and is left alone.
func (s *sync[K, V]) commit(batch []ledger.Op[K, V]) {
	if err := s.ctx.Err(); err != nil {
		s.settle(batch, err)
		return
	}
	if s.unknown {
		s.settle(batch, ledger.ErrUnknown)
		return
	}
	errs := s.driver.Commit(s.ctx, batch)
	s.work.Commits++
	failed := worst(errs)
	switch {
	case errors.Is(failed, ledger.ErrUnknown):
		s.unknown, s.readAt = true, s.now
		s.settle(batch, failed)
	case failed == nil || !s.driver.Limits().Atomic:
		s.settleEach(batch, errs)
	case busy(failed):
		// Nothing is wrong with any op: somebody else holds the data plane.
		s.settleEach(batch, errs)
		s.err, s.work.Held = cmp.Or(s.err, failed), failed
	default:
		s.bisect(batch, failed)
	}
}

func (s *sync[K, V]) bisect(batch []ledger.Op[K, V], failed error) {
	left, right := halve(batch)
	if s.patience < 2 || len(right) == 0 {
		s.settle(batch, failed)
		return
	}
	if s.work.Refused == nil {
		s.work.Refused = fmt.Errorf("%d objects at once: %w", len(batch), failed)
	}
	s.patience -= 2
	s.commit(left)
	s.commit(right)
}

// halve cuts a batch between owners, keeping the order of each part. Ops that
// belong to no port stand for themselves. The second part is empty when there
// is nothing to cut.
func halve[K comparable, V any](batch []ledger.Op[K, V]) (left, right []ledger.Op[K, V]) {
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

func (s *sync[K, V]) settleEach(batch []ledger.Op[K, V], errs []error) {
	for i, op := range batch {
		s.settle1(op, errs[i])
	}
}

func (s *sync[K, V]) settle(batch []ledger.Op[K, V], err error) {
	for _, op := range batch {
		s.settle1(op, err)
	}
}

func (s *sync[K, V]) settle1(op ledger.Op[K, V], err error) {
	s.ledger.Settle(op, err, s.now)
	switch {
	case err == nil:
		s.work.Ops++
		s.work.Verbs[op.Verb]++
	case !busy(err):
		s.work.Failed++
		if s.err == nil {
			s.err = describe(op, err)
		}
	}
}

func busy(err error) bool {
	var b ledger.ErrBusy
	return errors.As(err, &b)
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

// Remove plans against an empty wish list, so the driver sees nothing but
// deletions of objects it reported as ours.
func (b *backend[K, V]) Remove(ctx context.Context) error {
	have, err := b.driver.Observe(ctx)
	if err != nil {
		return err
	}
	fresh := &backend[K, V]{compiler: b.compiler, driver: b.driver, ledger: ledger.New[K, V](hasty[K, V]{b.compiler})}
	fresh.ledger.Adopt(have)
	_, err = fresh.Sync(ctx)
	return err
}

// hasty are a compiler's rules for objects, without any lingering.
type hasty[K comparable, V any] struct{ ledger.Rules[K, V] }

func (hasty[K, V]) Linger(K) time.Duration { return 0 }
