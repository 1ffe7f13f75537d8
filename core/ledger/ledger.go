// Package ledger keeps the books between what shall be installed in a data
// plane and what is: the only diff in Tandem.
//
//	Want/Release ──▶ want ┐
//	                      ├─ differing keys ──▶ Plan ──▶ ops ──▶ (driver)
//	Adopt ─────────▶ have ┘                                        │
//	                  ▲──────────────── Settle ◀───────────────────┘
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
	dirty   []touch[K]     // differing keys, in the order in which they were touched
	waiting map[K]deferral // differing keys that must not be tried before a time
	next    time.Time      // not later than the first deadline in waiting; zero when it is empty
}

// Rules are what the ledger must know of the objects.
type Rules[K comparable, V any] interface {
	Rank(K) int             // order of creation
	Linger(K) time.Duration // how long an unneeded object stays
	Equal(a, b V) bool
}

type entry[V any] struct {
	want, have V
	refs       int32 // how many owners want it
	queued     int32 // its place in dirty plus one; 0 when not there
	installed  bool  // have is valid
}

type touch[K comparable] struct {
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
	return &Ledger[K, V]{rules: rules, entries: map[K]entry[V]{}, waiting: map[K]deferral{}}
}

// Want adds one owner's wish for an object. When several owners want one key
// the last value counts: they are bound to agree.
func (l *Ledger[K, V]) Want(owner *model.PortID, key K, value V) {
	e := l.entries[key]
	e.refs++
	if e.refs == 1 || !l.rules.Equal(e.want, value) {
		e.want = value
		l.touch(&e, key, owner)
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
	e.refs--
	if e.refs == 0 {
		var none V
		e.want = none
		l.touch(&e, key, owner)
	}
	l.entries[key] = e
}

// touch queues a key, or makes the latest toucher its owner if it is queued.
// The caller stores e.
func (l *Ledger[K, V]) touch(e *entry[V], key K, owner *model.PortID) {
	if e.queued != 0 {
		l.dirty[e.queued-1].owner = owner
		return
	}
	l.dirty = append(l.dirty, touch[K]{key, owner})
	e.queued = int32(len(l.dirty))
}

// Adopt takes have as what is installed and returns how many keys turned out
// to differ from what the books said. Those that differ from what is wanted
// are planned; those that are waiting go on waiting. The ledger keeps nothing of
// the map.
func (l *Ledger[K, V]) Adopt(have map[K]V) (surprises int) {
	for key, e := range l.entries {
		v, ok := have[key]
		if ok == e.installed && (!ok || l.rules.Equal(e.have, v)) {
			l.check(&e, key)
			continue
		}
		surprises++
		e.have, e.installed = v, ok
		l.check(&e, key)
	}
	for key, v := range have {
		if _, ok := l.entries[key]; !ok {
			surprises++
			e := entry[V]{have: v, installed: true}
			l.touch(&e, key, nil)
			l.entries[key] = e
		}
	}
	return surprises
}

// check queues a key whose two sides differ, and stores its entry.
func (l *Ledger[K, V]) check(e *entry[V], key K) {
	if !l.differs(*e) {
		l.keep(key, *e)
		return
	}
	if _, waits := l.waiting[key]; !waits && e.queued == 0 {
		l.touch(e, key, nil)
	}
	l.entries[key] = *e
}

func (l *Ledger[K, V]) differs(e entry[V]) bool {
	wanted := e.refs > 0
	return wanted != e.installed || wanted && !l.rules.Equal(e.want, e.have)
}

// Attribute names the owner of a queued key that has none, so that its ops are
// kept together with those of the same port. After an Adopt with surprises.
func (l *Ledger[K, V]) Attribute(owner *model.PortID, key K) {
	if e := l.entries[key]; e.queued != 0 && l.dirty[e.queued-1].owner == nil {
		l.dirty[e.queued-1].owner = owner
	}
}

// Installed returns what the books say is installed under a key.
func (l *Ledger[K, V]) Installed(key K) (v V, ok bool) {
	e := l.entries[key]
	return e.have, e.installed
}

// Len returns how many objects are in the books.
func (l *Ledger[K, V]) Len() int { return len(l.entries) }
