// SPDX-License-Identifier: Apache-2.0

// Package memory is a data plane that is a map. It replaces a kernel where
// none is needed: in the property tests of every backend, and as the smallest
// example of a dataplane.Driver.
package memory

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"sync"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
)

// Driver keeps objects in memory and checks that every op fits them.
// While others use it, look at it and change it within Do.
type Driver[K comparable, V any] struct {
	dataplane.SimpleDriver[K, V]
	mu sync.Mutex

	Objects map[K]V
	Equal   func(a, b V) bool
	Limit   dataplane.Limits

	// Fail is asked before each op, when set; an error makes the op fail and, if
	// the driver is atomic, the whole commit.
	Fail func(ledger.Op[K, V]) error
	// Broken makes Observe fail.
	Broken error
	// Slow is called by Observe, when set, after it has read and before it
	// returns, so that commits in between are not in its result.
	Slow func()
	// Miss is called for every object that Observe returns, when set, and drops
	// some, as kernel dumps miss neighbours of objects that change meanwhile.
	Miss func(K) bool

	Commits, Ops, Observes, Gets int
	disturbed                    bool
}

// New returns an empty data plane.
func New[K comparable, V any](equal func(a, b V) bool, limit dataplane.Limits) *Driver[K, V] {
	return &Driver[K, V]{Objects: map[K]V{}, Equal: equal, Limit: limit}
}

// Do runs f with exclusive use of the driver.
func (d *Driver[K, V]) Do(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// Disturb changes the objects behind the driver's back.
func (d *Driver[K, V]) Disturb(change func(map[K]V)) {
	d.Do(func() {
		change(d.Objects)
		d.disturbed = true
	})
}

// Observe passes the objects to found.
func (d *Driver[K, V]) Observe(_ context.Context, found func(K, V)) error {
	have, slow, err := d.read()
	for k, v := range have {
		found(k, v)
	}
	if slow != nil {
		slow()
	}
	return err
}

func (d *Driver[K, V]) read() (have map[K]V, slow func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.Broken != nil {
		return nil, d.Slow, d.Broken
	}
	d.Observes++
	d.disturbed = false
	have = maps.Clone(d.Objects)
	if d.Miss != nil {
		maps.DeleteFunc(have, func(k K, _ V) bool { return d.Miss(k) })
	}
	return have, d.Slow, nil
}

// Get passes on objects by their keys.
func (d *Driver[K, V]) Get(_ context.Context, keys []K, found func(K, V)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.Broken != nil {
		return d.Broken
	}
	d.Gets += len(keys)
	for _, k := range keys {
		if v, ok := d.Objects[k]; ok {
			found(k, v)
		}
	}
	return nil
}

// Disturbed reports whether Disturb was called since the last Observe.
func (d *Driver[K, V]) Disturbed(context.Context) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.disturbed, nil
}

// Errors of ops that do not match: they show a mistake in the ledger.
var (
	ErrExists  = errors.New("already exists")
	ErrMissing = errors.New("does not exist")
	ErrStale   = errors.New("differs from the op's old value")
)

// Commit applies ops.
func (d *Driver[K, V]) Commit(_ context.Context, ops []ledger.Op[K, V]) []error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Commits++
	errs := make([]error, len(ops))
	var failed error
	for i, op := range ops {
		if errs[i] = d.check(op); errs[i] != nil && failed == nil {
			failed = errs[i]
		}
	}
	for i, op := range ops {
		switch {
		case d.Limit.Atomic && failed != nil:
			errs[i] = cmp.Or(errs[i], undone(failed))
		case errs[i] == nil:
			d.apply(op)
		}
	}
	return errs
}

func (d *Driver[K, V]) check(op ledger.Op[K, V]) error {
	if d.Fail != nil {
		if err := d.Fail(op); err != nil {
			return err
		}
	}
	have, ok := d.Objects[op.Key]
	switch {
	case op.Verb == ledger.Create && ok:
		return ledger.ConflictError{Err: ErrExists}
	case op.Verb != ledger.Create && !ok:
		return ledger.ConflictError{Err: ErrMissing}
	case op.Verb != ledger.Create && !d.Equal(have, op.Old):
		return ledger.ConflictError{Err: ErrStale}
	}
	return nil
}

// undone is the result of an op that failed with another one.
func undone(failed error) error {
	if c, is := errors.AsType[ledger.ConflictError](failed); is {
		return c.Err
	}
	return failed
}

func (d *Driver[K, V]) apply(op ledger.Op[K, V]) {
	d.Ops++
	if op.Verb == ledger.Delete {
		delete(d.Objects, op.Key)
		return
	}
	d.Objects[op.Key] = op.New
}

// Limits returns Limit.
func (d *Driver[K, V]) Limits() dataplane.Limits {
	l := d.Limit
	l.Get = true
	return l
}

// Close does nothing.
func (d *Driver[K, V]) Close() error { return nil }
