// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/sleep"
)

// ErrInterrupted is what Observe returns where the data plane has changed while
// it was read, in a way that may hide objects from the reader.
var ErrInterrupted = errors.New("data plane changed while it was read")

// ErrReading is what Audit returns at once while something else reads the data plane. It is
// no failure: the audit is still due.
var ErrReading = errors.New("another read of the data plane is in progress")

const (
	readTries = 10   // how often an interrupted read is repeated
	readChunk = 256  // objects that are compared at once: 50 µs or so
	readAhead = 2    // chunks that wait for that
	mostGets  = 1024 // suspects that are read one by one; for more there is a second full read first
)

func (b *backend[K, V]) Adopt(ctx context.Context) error {
	_, err := b.withReview(ctx, b.ledger.Adopt, b.read)
	return err
}

func (b *backend[K, V]) Audit(ctx context.Context) (drift int, err error) {
	drift, err = b.withReview(ctx, b.ledger.Review, func(ctx context.Context, r *ledger.Review[K, V]) error {
		if err := b.read(ctx, r); err != nil {
			return err
		}
		return b.confirm(ctx, r)
	})
	return drift, err
}

// withReview compares the data plane with the ledger, and returns how many keys
// differ. Results of a driver after the end of ctx are ignored, and nothing else is
// read until it returns.
func (b *backend[K, V]) withReview(ctx context.Context, begin func() *ledger.Review[K, V],
	read func(context.Context, *ledger.Review[K, V]) error,
) (drift int, err error) {
	if !b.reading.TryLock() {
		return 0, ErrReading
	}
	defer b.reading.Unlock()
	ctx, cancel := context.WithTimeout(ctx, b.Limits().Read)
	defer cancel()
	b.mu.Lock()
	review := begin()
	b.mu.Unlock()
	closed := func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		review.Close()
	}
	defer closed()
	defer context.AfterFunc(ctx, closed)()
	if err = cmp.Or(read(ctx, review), ctx.Err()); err != nil {
		b.incomplete.Store(true)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return review.Accepted, err
}

// RetryInterrupted repeats a read that concurrent changes interrupted (ErrInterrupted), a
// bounded number of times. The read begins anew each time.
func RetryInterrupted(read func() error) (err error) {
	for range readTries {
		if err = read(); !errors.Is(err, ErrInterrupted) {
			return err
		}
	}
	return fmt.Errorf("%w (%d attempts)", err, readTries)
}

// read reads the whole data plane.
func (b *backend[K, V]) read(ctx context.Context, r *ledger.Review[K, V]) error {
	return RetryInterrupted(func() error { return b.readOnce(ctx, r, func(K, V) {}) })
}

// readOnce reads everything and compares it with the ledger: what was read is compared while
// more is read.
func (b *backend[K, V]) readOnce(ctx context.Context, r *ledger.Review[K, V], found func(K, V)) error {
	b.incomplete.Store(false)
	chunks, empty := make(chan []object[K, V], readAhead), make(chan []object[K, V], readAhead+2)
	for range cap(empty) {
		empty <- nil
	}
	var comparing sync.WaitGroup
	comparing.Go(func() {
		for chunk := range chunks {
			b.compare(r, chunk)
			empty <- chunk[:0]
		}
	})
	chunk := <-empty
	err := b.driver.Observe(ctx, func(k K, v V) {
		found(k, v)
		if chunk = append(chunk, object[K, V]{k, v}); len(chunk) == readChunk {
			chunks <- chunk
			chunk = <-empty
		}
	})
	chunks <- chunk
	close(chunks)
	comparing.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	r.Sweep(err == nil, b.pause)
	return err
}

func (b *backend[K, V]) compare(r *ledger.Review[K, V], chunk []object[K, V]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, o := range chunk {
		r.See(o.key, o.value)
	}
}

// pause releases the lock for a moment.
func (b *backend[K, V]) pause() {
	b.mu.Unlock()
	runtime.Gosched()
	b.mu.Lock()
}

// confirm reads differing keys again, and accepts those that still differ: a read
// concurrent with writes may miss existing objects.
func (b *backend[K, V]) confirm(ctx context.Context, r *ledger.Review[K, V]) error {
	if len(r.Suspects) == 0 {
		return nil
	}
	keys := slices.Collect(maps.Keys(r.Suspects))
	have, err := b.get(ctx, r, keys)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	r.Confirm(have)
	b.findOwners(r.Suspects)
	b.noteDrift(r.Suspects, have)
	r.Accept(have)
	return nil
}

// get reads what is installed under keys: one by one if the driver can do that and
// they are few, else by a full read. A full read may miss objects, so keys that it
// does not return are read one by one if they are few.
func (b *backend[K, V]) get(ctx context.Context, r *ledger.Review[K, V], keys []K) (have map[K]V, err error) {
	single := b.driver.Limits().Get
	if single && len(keys) <= mostGets {
		return b.getAll(ctx, keys)
	}
	have, err = b.readAgain(ctx, r, keys)
	if err != nil || !single {
		return have, err
	}
	absent := slices.DeleteFunc(keys, func(k K) bool { _, there := have[k]; return there })
	if len(absent) == 0 || len(absent) > mostGets {
		return have, nil
	}
	there, err := b.getAll(ctx, absent)
	maps.Copy(have, there)
	return have, err
}

// readAgain reads everything, and returns what is installed under keys. Disturbed
// forgets what was before, so everything is compared; if other keys differ, another audit is due to
// confirm them.
func (b *backend[K, V]) readAgain(ctx context.Context, r *ledger.Review[K, V], keys []K) (have map[K]V, err error) {
	asked := make(map[K]struct{}, len(keys))
	for _, k := range keys {
		asked[k] = struct{}{}
	}
	err = RetryInterrupted(func() error {
		have = map[K]V{}
		return b.readOnce(ctx, r, func(k K, v V) {
			if _, ok := asked[k]; ok {
				have[k] = v
			}
		})
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	for k := range r.Suspects {
		if _, ok := asked[k]; !ok {
			b.incomplete.Store(true)
			delete(r.Suspects, k)
		}
	}
	return have, err
}

func (b *backend[K, V]) getAll(ctx context.Context, keys []K) (have map[K]V, err error) {
	err = RetryInterrupted(func() error {
		have = map[K]V{}
		return b.driver.Get(ctx, keys, func(k K, v V) { have[k] = v })
	})
	return have, err
}

// findOwners finds the ports that drifted objects belong to, so that the ops that
// repair them are kept together, and notes the ports whose connections may have
// gone to a wrong endpoint. The caller holds the lock and releases it between two ports. Of a
// port that changes meanwhile it may miss an object: its repair has no owner
// then.
func (b *backend[K, V]) findOwners(drifted map[K]*model.PortID) {
	if len(drifted) == 0 || b.host == nil {
		return
	}
	shared := false
	b.compiler.Base(b.host, func(k K, _ V) {
		_, hit := drifted[k]
		shared = shared || hit
	})
	var hits []model.PortID
	for port := range b.ports {
		host, hit := b.host, shared
		b.mu.Unlock()
		b.compiler.Port(host, port, func(k K, _ V) {
			if owner, ok := drifted[k]; ok {
				hit = true
				if owner == nil {
					drifted[k] = &port.ID
				}
			}
		})
		b.mu.Lock()
		if hit {
			hits = append(hits, port.ID)
		}
	}
	for _, id := range hits { // not earlier: a Sync may have begun since
		b.damaged[id] = struct{}{}
	}
}

// repaired returns the ports of which objects were found damaged, and that are
// right now, and forgets them.
func (b *backend[K, V]) repaired() (ports []model.PortID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.repairing) == 0 || b.unknown {
		return nil
	}
	var h Health
	if b.failing(&h); h.Failures[model.PortID{}] != nil || h.Shared != nil {
		return nil
	}
	for id := range b.repairing {
		if h.Failures[id] == nil {
			ports = append(ports, id)
			delete(b.repairing, id)
		}
	}
	return ports
}

// lockReading waits until no other read is in progress.
func (b *backend[K, V]) lockReading(ctx context.Context) error {
	for !b.reading.TryLock() {
		if !sleep.For(ctx, 5*time.Millisecond) {
			return fmt.Errorf("%w: %w", ErrReading, ctx.Err())
		}
	}
	return nil
}
