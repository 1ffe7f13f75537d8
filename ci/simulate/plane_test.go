// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/test/memory"
)

// decide returns the outcome of a packet.
type decide func(oracle.Packet) oracle.Outcome

// looker is called after each write with a function that decides packets on a host.
type looker func(at func(*model.Host) decide)

// plane is what a mode writes to: it outlives processes.
type plane interface {
	mode() dataplane.Mode
	begin(*process) // is the one that writes from now on
	killed()        // the process has just been killed
	watch(looker)

	now(*model.Host) decide                  // from the installed objects
	fresh(*model.Host, []*model.Port) decide // as a fresh start would leave it
	state() (objects, writes int)

	trouble(func(*trouble))          // changes the injected faults
	damage(rng *rand.Rand, most int) // deletes objects behind everybody's back
}

// trouble is the injected faults of a data plane.
type trouble struct {
	failing     int           // percent of ops that are rejected
	unknown     int           // percent of transactions without a reported outcome
	interrupted int           // percent of readings that changes disturb
	unreadable  bool          // reading fails
	busy        bool          // another program has the lock
	absent      bool          // probing fails, and so does everything else
	slow        time.Duration // of a transaction
}

var (
	errInjected = errors.New("injected failure")
	errInUse    = errors.New("device or resource busy")
)

// table is a data plane of objects.
type table[K comparable, V any] struct {
	name     config.Mode
	compiler dataplane.Compiler[K, V]
	sim      func(map[K]V, *model.Host) decide
	inUse    inUse[K, V]
	fate     func(K) (group int, shared bool) // which ops of a Commit are one transaction
	limits   dataplane.Limits
	rng      *rand.Rand

	mu        sync.Mutex
	process   *process
	objects   map[K]V
	trouble_  trouble
	disturbed bool
	writes    int
	watcher   looker
}

// inUse reports whether an object cannot be deleted: others refer to it, or would replace it and
// are among those of the same Commit that could not be written. nil is never.
type inUse[K comparable, V any] func(objects map[K]V, failed []K, key K) bool

func newTable[K comparable, V any](name config.Mode, c dataplane.Compiler[K, V], limits dataplane.Limits, sim func(map[K]V, *model.Host) decide, inUse inUse[K, V], rng *rand.Rand) *table[K, V] {
	alone := func(K) (int, bool) { return 0, false }
	return &table[K, V]{name: name, compiler: c, sim: sim, inUse: inUse, fate: alone, limits: limits, rng: rng, objects: map[K]V{}}
}

func (t *table[K, V]) mode() dataplane.Mode {
	return dataplane.Mode{
		Name: t.name, Conntrack: true,
		Probe: func(context.Context) error {
			t.mu.Lock()
			defer t.mu.Unlock()
			if t.trouble_.absent {
				return errInjected
			}
			return nil
		},
		Open: func(context.Context, *config.Config, *slog.Logger) (dataplane.Backend, error) {
			t.mu.Lock()
			defer t.mu.Unlock()
			return dataplane.New(t.compiler, &driver[K, V]{table: t, process: t.process}), nil
		},
	}
}

func (t *table[K, V]) begin(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.process = p
}

func (t *table[K, V]) killed() {}

func (t *table[K, V]) watch(f looker) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.watcher = f
}

func (t *table[K, V]) now(host *model.Host) decide {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sim(maps.Clone(t.objects), host)
}

func (t *table[K, V]) fresh(host *model.Host, ports []*model.Port) decide {
	objects, _ := dataplane.Compile(t.compiler, host, ports)
	return t.sim(objects, host)
}

func (t *table[K, V]) state() (objects, writes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.objects), t.writes
}

func (t *table[K, V]) trouble(f func(*trouble)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&t.trouble_)
}

func (t *table[K, V]) damage(rng *rand.Rand, most int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(t.objects), func(a, b K) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	rng.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	for _, k := range keys[:min(most, len(keys))] {
		delete(t.objects, k)
	}
	t.disturbed = true
}

// chance is under the lock.
func (t *table[K, V]) chance(percent int) bool { return percent > 0 && t.rng.IntN(100) < percent }

// driver is a process' access to a table.
type driver[K comparable, V any] struct {
	dataplane.SimpleDriver[K, V]
	table   *table[K, V]
	process *process
}

func (d *driver[K, V]) Limits() dataplane.Limits { return d.table.limits }
func (d *driver[K, V]) Close() error             { return nil }

func (d *driver[K, V]) Observe(ctx context.Context, found func(K, V)) error {
	t := d.table
	t.mu.Lock()
	objects, broken := maps.Clone(t.objects), t.trouble_.unreadable || t.trouble_.absent
	interrupted := t.chance(t.trouble_.interrupted)
	t.disturbed = false
	t.mu.Unlock()
	for k, v := range objects {
		if interrupted && len(objects)%2 == 0 {
			break // what it has seen so far is passed on, and does not count
		}
		found(k, v)
	}
	switch {
	case !d.process.alive():
		return errDead
	case broken:
		return errInjected
	case interrupted:
		return dataplane.ErrInterrupted
	}
	return ctx.Err()
}

func (d *driver[K, V]) Get(_ context.Context, keys []K, found func(K, V)) error {
	t := d.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.trouble_.unreadable || t.trouble_.absent {
		return errInjected
	}
	for _, k := range keys {
		if v, ok := t.objects[k]; ok {
			found(k, v)
		}
	}
	return nil
}

func (d *driver[K, V]) Disturbed(context.Context) (bool, error) {
	d.table.mu.Lock()
	defer d.table.mu.Unlock()
	return d.table.disturbed, nil
}

func (d *driver[K, V]) Commit(_ context.Context, ops []ledger.Op[K, V]) []error {
	t := d.table
	t.mu.Lock()
	slow := t.trouble_.slow
	t.mu.Unlock()
	time.Sleep(slow)
	t.mu.Lock()
	defer t.mu.Unlock()
	errs := make([]error, len(ops))
	fail := func(from int, err error) []error {
		for i := from; i < len(ops); i++ {
			errs[i] = err
		}
		return errs
	}
	switch {
	case t.trouble_.busy:
		return fail(0, ledger.BusyError{After: 200 * time.Millisecond})
	case t.trouble_.absent:
		return fail(0, errInjected)
	case t.limits.Atomic:
		return d.whole(ops, errs, fail)
	}
	var failed []K
	rejected := map[int]bool{} // by transaction
	for i, op := range ops {
		if !d.process.step() {
			return fail(i, errDead)
		}
		group, shared := t.fate(op.Key)
		if _, known := rejected[group]; shared && !known {
			rejected[group] = t.chance(t.trouble_.failing)
		}
		switch {
		case shared && rejected[group], !shared && t.chance(t.trouble_.failing):
			errs[i] = errInjected
		default:
			errs[i] = t.check(op)
		}
		if errs[i] == nil && op.Verb == ledger.Delete && t.inUse != nil && t.inUse(t.objects, failed, op.Key) {
			errs[i] = errInUse
		}
		if errs[i] != nil && op.Verb != ledger.Delete {
			failed = append(failed, op.Key)
		}
		if errs[i] == nil {
			apply(t.objects, op)
			t.wrote()
			if t.chance(t.trouble_.unknown) {
				errs[i] = ledger.ErrUnknown
			}
		}
	}
	return errs
}

// whole applies all ops or none.
func (d *driver[K, V]) whole(ops []ledger.Op[K, V], errs []error, fail func(int, error) []error) []error {
	t := d.table
	if !d.process.step() {
		return fail(0, errDead)
	}
	var failed error
	next := maps.Clone(t.objects)
	for i, op := range ops {
		if errs[i] = t.check(op); t.chance(t.trouble_.failing) {
			errs[i] = errInjected
		}
		if errs[i] == nil && op.Verb == ledger.Delete && t.inUse != nil && t.inUse(next, nil, op.Key) {
			errs[i] = errInUse
		}
		apply(next, op)
		failed = cmp.Or(failed, errs[i])
	}
	if failed != nil {
		var c ledger.ConflictError
		if errors.As(failed, &c) {
			failed = c.Err
		}
		for i := range errs {
			if errs[i] == nil {
				errs[i] = failed
			}
		}
		return errs
	}
	t.objects = next
	t.wrote()
	if t.chance(t.trouble_.unknown) { // as when the acknowledgement is lost (ENOBUFS)
		return fail(0, ledger.ErrUnknown)
	}
	return errs
}

func (t *table[K, V]) check(op ledger.Op[K, V]) error {
	have, ok := t.objects[op.Key]
	switch {
	case op.Verb == ledger.Create && ok:
		return ledger.ConflictError{Err: memory.ErrExists}
	case op.Verb != ledger.Create && !ok:
		return ledger.ConflictError{Err: memory.ErrMissing}
	case op.Verb != ledger.Create && !t.compiler.Equal(have, op.Old):
		return ledger.ConflictError{Err: memory.ErrStale}
	}
	return nil
}

func apply[K comparable, V any](objects map[K]V, op ledger.Op[K, V]) {
	if op.Verb == ledger.Delete {
		delete(objects, op.Key)
		return
	}
	objects[op.Key] = op.New
}

// wrote has the judge look.
func (t *table[K, V]) wrote() {
	t.writes++
	if t.watcher != nil {
		t.watcher(func(h *model.Host) decide { return t.sim(t.objects, h) })
	}
}
