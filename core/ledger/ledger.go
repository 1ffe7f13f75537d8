// SPDX-License-Identifier: Apache-2.0

// Package ledger compares the desired objects of a data plane with the
// installed ones: the only diff in Tandem.
//
//	Want/Release ──▶ want ┐
//	                      ├─ differing keys ──▶ Plan ──▶ ops ──▶ (driver)
//	readings ──────▶ have ┘                                        │
//	                  ▲──────────────── Record ◀───────────────────┘
//
// It does no I/O and reads no clock. Cost follows change: a key is visited only
// after it was wanted, released or read; adoption and the end of a Review alone walk over all. A failed op stays a difference and is
// retried with back-off; nothing else waits for it.
package ledger

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// Ledger is the desired and installed state of one data plane. It is not safe
// for concurrent use.
type Ledger[K comparable, V any] struct {
	rules   Rules[K, V]
	entries entries[K, V]
	stale   map[K]V        // the installed value where another one is wanted
	dirty   []queued[K, V] // differing keys, in the order in which they changed
	waiting map[K]deferral // differing keys that must not be planned before a time
	next    time.Time      // not later than the first deadline in waiting; zero when it is empty
	adopted bool           // keys that an adoption found and nothing wanted yet are not queued
	founds  int            // how many entries have the mark found

	// joined links owners between which keys have moved, each to another one of its
	// set (a union-find): what one of them deletes may be in use until the other has replaced it.
	joined map[model.PortID]model.PortID
	latest [2]*model.PortID // that were joined, or are the same: many keys move between two
	// planned are those that were joined in the last Plan, for ops that it has to be planned again.
	planned map[model.PortID]model.PortID
	// second are the second owners of keys since the last Plan: where the first one is released, the
	// key has moved.
	second map[*entry[K, V]]*model.PortID

	review *Review[K, V] // the one in progress; nil for none

	// keepUnknown keeps installed objects that were never wanted.
	keepUnknown bool
	kept        map[K]struct{}
}

// Rules are what the ledger must know of the objects.
type Rules[K comparable, V any] interface {
	// Rank is the object's place in the order of creation: lower ranks first.
	// Deletion runs backwards.
	Rank(K) int
	// Equal reports whether two values of one key are the same to the data plane.
	Equal(a, b V) bool
	// DeleteDelay is how long an unwanted object is kept, in case it is needed again
	// soon. Zero for all but objects that are expensive to create.
	DeleteDelay(K) time.Duration
	// Admits returns the guard of an object that admits clients, and which ones; the zero prefix for
	// all other keys. A guard shuts out all clients but those that such objects admit, which may belong
	// to another owner than the guarded address does by now. An object that admits has a lower rank than
	// its guard, and that a lower one than the objects that admitted clients reach.
	Admits(K) (guard K, clients netip.Prefix)
}

// queued is a key to plan, by its entry: one that is queued or in flight is never dropped.
type queued[K comparable, V any] struct {
	*entry[K, V]
	owner *model.PortID
}

type deferral struct {
	until   time.Time
	owner   *model.PortID
	with    *model.PortID // that the owner was joined with; nil for none
	wait    time.Duration // the last one, after the latest of consecutive failures; zero before the first
	err     error
	untried bool      // deferred for lack of time (ErrDeferred)
	busy    time.Time // since when every attempt was busy; zero when the last one was not
	delayed bool      // a deletion that has not been tried (Rules.DeleteDelay)
}

// failed reports whether it is the last attempt that has failed.
func (d deferral) failed() bool { return d.err != nil && !d.untried }

// New returns an empty ledger.
func New[K comparable, V any](rules Rules[K, V]) *Ledger[K, V] {
	return &Ledger[K, V]{
		rules: rules, entries: newEntries[K, V](), stale: map[K]V{}, waiting: map[K]deferral{}, kept: map[K]struct{}{}, second: map[*entry[K, V]]*model.PortID{},
	}
}

// Want adds an owner of an object. Owners that share a key must want the same
// value; if they do not, the last one counts.
func (l *Ledger[K, V]) Want(owner *model.PortID, key K, value V) {
	e := l.entries.add(key)
	e.refs++
	l.setFound(e, false)
	switch pos := e.queuePos(); {
	case e.refs == 1 && pos != 0:
		l.join(l.dirty[pos-1].owner, owner)
	case e.refs == 2 && owner != nil:
		l.second[e] = owner
	}
	if e.refs == 1 || !l.rules.Equal(e.value, value) {
		have := l.have(e)
		e.value = value
		l.setInstalled(e, have)
		if e.differs() {
			l.enqueue(e, owner)
			return
		}
	}
	if _, waits := l.waiting[key]; waits && e.queuePos() == 0 {
		l.enqueue(e, owner) // what failed for other owners is retried for this one
	}
}

// Expect makes room for as many new keys as differ now, times a factor: to grow to a size of which
// nothing is known makes twice as much garbage.
func (l *Ledger[K, V]) Expect(times int) {
	l.dirty = slices.Grow(l.dirty, len(l.dirty)*times)
}

// Release removes an owner of an object. To change an owner's objects, Want the
// new ones before releasing the old: objects in both are then not touched.
func (l *Ledger[K, V]) Release(owner *model.PortID, key K) {
	e := l.entries.find(key)
	if e == nil || e.refs == 0 {
		return
	}
	have := l.have(e)
	e.refs--
	if e.refs == 0 {
		l.setInstalled(e, have)
		l.enqueue(e, owner)
		return
	}
	if pos := e.queuePos(); pos != 0 {
		l.join(owner, l.dirty[pos-1].owner)
	}
	if e.refs == 1 {
		l.join(owner, l.second[e])
	}
}

// setFound sets the mark found.
func (l *Ledger[K, V]) setFound(e *entry[K, V], on bool) {
	switch {
	case e.is(found) == on:
		return
	case on:
		l.founds++
	default:
		l.founds--
	}
	e.set(found, on)
}

// have returns what is installed.
func (l *Ledger[K, V]) have(e *entry[K, V]) (h installation[V]) {
	switch {
	case e.is(stale):
		return installation[V]{l.stale[e.key], true}
	case e.is(installed):
		return installation[V]{e.value, true}
	}
	return h
}

// installation is what is installed under a key, if anything.
type installation[V any] struct {
	value V
	ok    bool
}

// setInstalled stores what is installed: in value, or in Ledger.stale where
// another value is wanted.
func (l *Ledger[K, V]) setInstalled(e *entry[K, V], have installation[V]) {
	if e.is(stale) {
		delete(l.stale, e.key)
	}
	e.set(installed, have.ok)
	e.set(stale, false)
	switch {
	case e.refs == 0:
		e.value = have.value
	case have.ok && !l.rules.Equal(e.value, have.value):
		e.set(stale, true)
		l.stale[e.key] = have.value
	}
}

// enqueue queues a key. The owner of one that is queued already is replaced: the
// latest counts.
func (l *Ledger[K, V]) enqueue(e *entry[K, V], owner *model.PortID) {
	if pos := e.queuePos(); pos != 0 {
		t := &l.dirty[pos-1]
		l.join(t.owner, owner)
		t.owner = owner
		return
	}
	l.dirty = append(l.dirty, queued[K, V]{e, owner})
	e.setQueuePos(len(l.dirty))
}

// join notes that a queued key has moved between two owners.
func (l *Ledger[K, V]) join(a, b *model.PortID) {
	if a == nil || b == nil || l.latest == [2]*model.PortID{a, b} {
		return
	}
	l.latest = [2]*model.PortID{a, b}
	from, to := l.leader(a), l.leader(b)
	if from == to {
		return
	}
	if l.joined == nil {
		l.joined = map[model.PortID]model.PortID{}
	}
	l.joined[from] = to
}

// leader stands for an owner and all that are joined with it.
func (l *Ledger[K, V]) leader(owner *model.PortID) model.PortID {
	return leaderIn(l.joined, portOf(owner))
}

func leaderIn(joined map[model.PortID]model.PortID, id model.PortID) model.PortID {
	for {
		next, ok := joined[id]
		if !ok {
			return id
		}
		if last, ok := joined[next]; ok {
			joined[id] = last // the way is shorter the next time
		}
		id = next
	}
}

// joinedWith returns what stands for all that the owner of a planned op was joined with; nil when that is
// the owner itself.
func (l *Ledger[K, V]) joinedWith(owner *model.PortID) *model.PortID {
	if owner == nil || len(l.planned) == 0 {
		return nil
	}
	if lead := leaderIn(l.planned, *owner); lead != *owner {
		return &lead
	}
	return nil
}

// KeepUnknown sets whether installed objects that were never wanted may belong to
// an input that could not be read, and are kept for now. When the doubt is over
// they are planned for deletion.
func (l *Ledger[K, V]) KeepUnknown(doubt bool) {
	l.keepUnknown = doubt
	if doubt {
		return
	}
	for key := range l.kept {
		if e := l.entries.find(key); e != nil && e.differs() {
			l.enqueue(e, nil)
		}
	}
	l.kept = map[K]struct{}{}
}

// Installed returns the installed object of a key, as last read or written.
func (l *Ledger[K, V]) Installed(key K) (v V, ok bool) {
	e := l.entries.find(key)
	if e == nil {
		return v, false
	}
	h := l.have(e)
	return h.value, h.ok
}

// Left reports whether there is an object that was found installed and was never wanted.
func (l *Ledger[K, V]) Left(key K) bool {
	e := l.entries.find(key)
	return e != nil && e.refs == 0 && e.is(installed) && e.is(found)
}

// AllInstalled iterates over the installed objects, as last read or written, in no
// particular order. Meanwhile the ledger must not be used otherwise.
func (l *Ledger[K, V]) AllInstalled() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for e := range l.entries.all() {
			if h := l.have(e); h.ok && !yield(e.key, h.value) {
				return
			}
		}
	}
}

// Len returns how many objects are wanted or installed.
func (l *Ledger[K, V]) Len() int { return l.entries.len() }

// Wanted returns the wanted object of a key, and how many owners it has; no owners
// is that it is not wanted.
func (l *Ledger[K, V]) Wanted(key K) (v V, owners int) {
	e := l.entries.find(key)
	if e == nil || e.refs == 0 {
		return v, 0
	}
	return e.value, int(e.refs)
}

// Op is one difference between desired and installed state.
type Op[K comparable, V any] struct {
	Verb Verb
	Key  K
	Old  V // what is installed; the zero value for Create
	New  V // the desired value; the zero value for Delete

	// Owner is the port for whose sake the object changes, nil for the base and
	// for left-overs. Ops of one owner belong together.
	Owner *model.PortID
}

// Port is the owner by value, the zero id without one. Owners are compared by
// it: an op that is retried may point to an earlier object of the same port.
func (o Op[K, V]) Port() model.PortID { return portOf(o.Owner) }

func portOf(owner *model.PortID) (id model.PortID) {
	if owner != nil {
		id = *owner
	}
	return id
}

// Verb is the kind of an Op.
type Verb uint8

const (
	Create Verb = iota
	Replace
	Delete
	Verbs // how many there are
)

// String returns the verb's name.
func (v Verb) String() string { return [...]string{"create", "replace", "delete"}[v] }

// MarshalText returns the verb's name: its form in JSON.
func (v Verb) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText is the reverse of MarshalText.
func (v *Verb) UnmarshalText(text []byte) error {
	for *v = range Verbs {
		if v.String() == string(text) {
			return nil
		}
	}
	return fmt.Errorf("unknown verb %.20q", text)
}

// ErrUnknown is the result of an op whose outcome is unknown, for instance because
// the acknowledgement was lost after the kernel may have committed. The data plane
// must be read back before anything else is written.
var ErrUnknown = errors.New("outcome unknown")

// ErrDeferred is the result of an op that was not tried, since its commit had used
// up its time. It is planned again at once.
var ErrDeferred = errors.New("not programmed yet")

// BusyError is the result of an op that cannot be done yet: another program holds the
// xtables lock, or the address of a listener is not ready. It is not a failure for BusyLimit.
type BusyError struct{ After time.Duration }

func (e BusyError) Error() string { return fmt.Sprintf("busy; retry in %s", e.After) }

// ConflictError is the result of an op that was not done because its key is not as
// the ledger says: it is there and should be created, or is not and should be
// replaced or deleted.
type ConflictError struct{ Err error }

func (e ConflictError) Error() string { return e.Err.Error() }

// Unwrap returns the error of the data plane.
func (e ConflictError) Unwrap() error { return e.Err }

// LeftError is the result of an op that failed halfway and left neither the old nor the
// new object. What it left is recorded, and the op is retried.
type LeftError[V any] struct {
	Value V
	There bool // false: nothing is installed any more
	Err   error
}

// Error implements error.
func (e LeftError[V]) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e LeftError[V]) Unwrap() error { return e.Err }
