// Package ledger keeps the books between what shall be installed in a data
// plane and what is: the only diff in Tandem.
//
//	Want/Release ──▶ want ┐
//	                      ├─ differing keys ──▶ Plan ──▶ ops ──▶ (driver)
//	readings ──────▶ have ┘                                        │
//	                  ▲──────────────── Record ◀───────────────────┘
//
// It does no I/O and reads no clock. Work is proportional to what changed: a
// key is looked at only after somebody touched it. What fails stays in the
// books as a difference and is planned again later; nothing else waits for it.
package ledger

import (
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// Ledger is the book of one data plane. It is not safe for concurrent use.
type Ledger[K comparable, V any] struct {
	rules   Rules[K, V]
	entries map[K]entry[V]
	stale   map[K]V        // what is installed where something else is wanted
	dirty   []queued[K]    // differing keys, in the order in which they were touched
	waiting map[K]deferral // differing keys that must not be tried before a time
	next    time.Time      // not later than the first deadline in waiting; zero when it is empty

	review *Review[K, V] // the one that is under way; nil for none

	// keepUnknown keeps what was found installed and nobody has asked for.
	keepUnknown bool
	kept        []K
}

// Rules are what the ledger must know of the objects.
type Rules[K comparable, V any] interface {
	Rank(K) int                  // order of creation
	DeleteDelay(K) time.Duration // how long an unneeded object stays
	Equal(a, b V) bool
}

// entry is what the books say of one key. There is one for every object, so it
// is small: wanted and installed are nearly always the same and held once, and
// the marks share a word.
type entry[V any] struct {
	value V      // what is wanted; if nobody wants it, what is installed
	refs  int32  // how many owners want it
	marks uint32 // those below, and from placeUnit on the place in dirty, counted from 1
}

const (
	installed = 1 << iota // something is installed
	stale                 // and it is not value, but in Ledger.stale
	found                 // it was there, and nobody has asked for it since
	inFlight              // an op is given out, and not settled
	seen                  // the reading that is under way has told of it
	posUnit               // environment 1
)

func (e *entry[V]) is(mark uint32) bool { return e.marks&mark != 0 }

func (e *entry[V]) set(mark uint32, on bool) {
	e.marks &^= mark
	if on {
		e.marks |= mark
	}
}

// environment is the entry's place in dirty, counted from 1; 0 when it is not there.
func (e *entry[V]) queuePos() int { return int(e.marks / posUnit) }

func (e *entry[V]) setQueuePos(n int) { e.marks = e.marks%posUnit + uint32(n)*posUnit }

type queued[K comparable] struct {
	key   K
	owner *model.PortID
}

type deferral struct {
	until    time.Time
	owner    *model.PortID
	attempts int // failed ones in a row
	err      error
}

// New returns an empty ledger.
func New[K comparable, V any](rules Rules[K, V]) *Ledger[K, V] {
	return &Ledger[K, V]{rules: rules, entries: map[K]entry[V]{}, stale: map[K]V{}, waiting: map[K]deferral{}}
}

// Want adds one owner's wish for an object. When several owners want one key
// the last value counts: they are bound to agree.
func (l *Ledger[K, V]) Want(owner *model.PortID, key K, value V) {
	e := l.entries[key]
	e.refs++
	e.set(found, false)
	if e.refs == 1 || !l.rules.Equal(e.value, value) {
		have := l.have(key, e)
		e.value = value
		l.setInstalled(key, &e, have)
		l.enqueue(&e, key, owner)
	} else if _, waits := l.waiting[key]; waits {
		l.enqueue(&e, key, owner) // what failed for others is tried again for this one
	}
	l.entries[key] = e
}

// Release takes one owner's wish back. To change an owner's objects, Want the
// new ones before releasing the old: objects in both are then left alone.
func (l *Ledger[K, V]) Release(owner *model.PortID, key K) {
	e, ok := l.entries[key]
	if !ok || e.refs == 0 {
		return
	}
	have := l.have(key, e)
	e.refs--
	if e.refs == 0 {
		l.setInstalled(key, &e, have)
		l.enqueue(&e, key, owner)
	}
	l.entries[key] = e
}

// have returns what is installed.
func (l *Ledger[K, V]) have(key K, e entry[V]) (h installation[V]) {
	switch {
	case e.is(stale):
		return installation[V]{l.stale[key], true}
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

// setInstalled enters what is installed, where it belongs by what is wanted.
func (l *Ledger[K, V]) setInstalled(key K, e *entry[V], have installation[V]) {
	if e.is(stale) {
		delete(l.stale, key)
	}
	e.set(installed, have.ok)
	e.set(stale, false)
	switch {
	case e.refs == 0:
		e.value = have.value
	case have.ok && !l.rules.Equal(e.value, have.value):
		e.set(stale, true)
		l.stale[key] = have.value
	}
}

// queued queues a key, or makes the latest toucher its owner if it is queued.
// The caller stores e.
func (l *Ledger[K, V]) enqueue(e *entry[V], key K, owner *model.PortID) {
	if place := e.queuePos(); place != 0 {
		l.dirty[place-1].owner = owner
		return
	}
	l.dirty = append(l.dirty, queued[K]{key, owner})
	e.setQueuePos(len(l.dirty))
}

// KeepUnknown says whether installed objects that nobody has ever asked for may stand
// for something that could not be understood, and so are kept for now. When the
// doubt is over they are planned for deletion.
func (l *Ledger[K, V]) KeepUnknown(doubt bool) {
	l.keepUnknown = doubt
	if doubt {
		return
	}
	for _, key := range l.kept {
		if e, ok := l.entries[key]; ok && differs(e) {
			l.enqueue(&e, key, nil)
			l.entries[key] = e
		}
	}
	l.kept = nil
}

func differs[V any](e entry[V]) bool {
	return e.is(stale) || e.is(installed) != (e.refs > 0)
}

// Installed returns what the books say is installed under a key.
func (l *Ledger[K, V]) Installed(key K) (v V, ok bool) {
	h := l.have(key, l.entries[key])
	return h.value, h.ok
}

// Len returns how many objects are in the books.
func (l *Ledger[K, V]) Len() int { return len(l.entries) }
