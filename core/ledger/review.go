// SPDX-License-Identifier: Apache-2.0

package ledger

import "github.com/tandem-proxy/tandem/core/model"

// Step is how many objects Sweep compares between two pauses.
const Step = 512

// Review compares a reading of the data plane with the ledger, object by object,
// while ops go on. Its methods are called like those of the ledger; between two
// calls the ledger may be used at any time. There is one Review at a time, from
// Adopt or Review to Close; after that its methods do nothing.
//
// A reading may show a key as it was before an op or after it. So a Review ignores
// keys that were written since it began.
type Review[K comparable, V any] struct {
	// Suspects are the keys that were not read as expected, each with the port that
	// owns its repair, which the caller may set.
	Suspects map[K]*model.PortID
	Accepted int // keys that were corrected

	ledger  *Ledger[K, V]
	trust   bool
	first   bool           // nothing was in the ledger before, which could be missing: what is seen is not marked
	written map[K]struct{} // keys whose ops have ended since
}

// Review begins a Review in which differences are suspects until confirmed.
func (l *Ledger[K, V]) Review() *Review[K, V] {
	l.review = &Review[K, V]{Suspects: map[K]*model.PortID{}, ledger: l, written: map[K]struct{}{}}
	return l.review
}

// Adopt begins a Review that accepts every difference at once: for the first
// reading, when the ledger knows nothing yet.
func (l *Ledger[K, V]) Adopt() *Review[K, V] {
	r := l.Review()
	r.trust, r.first = true, l.entries.len() == 0
	return r
}

// Close ends the Review.
func (r *Review[K, V]) Close() {
	if r.open() {
		r.ledger.review = nil
	}
}

func (r *Review[K, V]) open() bool { return r.ledger.review == r }

// See compares an object that was read. An object may be seen more than once.
func (r *Review[K, V]) See(key K, value V) {
	if !r.open() {
		return
	}
	e := r.ledger.entries.find(key)
	if e != nil {
		e.set(seen, !r.first)
	}
	r.compare(key, e, installation[V]{value, true})
}

// Sweep ends a read: installed objects that were not seen are missing. If the read
// was incomplete its suspects are dropped. It pauses after every Step objects.
func (r *Review[K, V]) Sweep(whole bool, pause func()) {
	if r.first {
		r.first = false // what a reading that was not whole has found may be missing in the next
		return
	}
	n := 0
	for e := range r.ledger.entries.all() {
		switch {
		case e.is(seen):
			e.set(seen, false)
		case whole && r.open():
			r.compare(e.key, e, installation[V]{})
		}
		if n++; n%Step == 0 {
			pause()
		}
	}
	if !whole {
		clear(r.Suspects)
	}
}

// compare compares what was read of a key with its entry, which may be nil.
func (r *Review[K, V]) compare(key K, e *entry[K, V], read installation[V]) {
	switch {
	case !r.differs(key, e, read):
	case r.trust:
		r.Accepted++
		r.ledger.adopt(key, read).set(seen, read.ok && !r.first)
	default:
		r.Suspects[key] = nil
	}
}

// differs reports whether what was read of a key is not what is expected.
func (r *Review[K, V]) differs(key K, e *entry[K, V], read installation[V]) bool {
	if _, moved := r.written[key]; moved || e.is(inFlight) {
		return false
	}
	return !r.ledger.same(r.ledger.have(e), read)
}

// Confirm drops the suspects that are as expected in have, a second read.
func (r *Review[K, V]) Confirm(have map[K]V) {
	for key := range r.Suspects {
		v, ok := have[key]
		if !r.open() || !r.differs(key, r.ledger.entries.find(key), installation[V]{v, ok}) {
			delete(r.Suspects, key)
		}
	}
}

// Accept takes the objects read for the suspects as installed, and queues those that differ
// from the desired ones.
func (r *Review[K, V]) Accept(have map[K]V) {
	r.Confirm(have)
	for key, owner := range r.Suspects {
		v, ok := have[key]
		r.ledger.correct(key, installation[V]{v, ok}, owner)
	}
	r.Accepted += len(r.Suspects)
}

// Correct records the result of a single read of a key as installed, and reports
// whether it differs. A Review in progress, which may have read the key earlier,
// ignores it from now on.
func (l *Ledger[K, V]) Correct(key K, value V, there bool) (changed bool) {
	e, read := l.entries.find(key), installation[V]{value, there}
	if l.review != nil {
		l.review.written[key] = struct{}{}
	}
	if l.same(l.have(e), read) {
		return false
	}
	l.correct(key, read, nil)
	return true
}

func (l *Ledger[K, V]) same(a, b installation[V]) bool {
	return a.ok == b.ok && (!a.ok || l.rules.Equal(a.value, b.value))
}

// correct takes what was read of a key as installed, and queues the key if it
// differs from what is wanted.
func (l *Ledger[K, V]) correct(key K, read installation[V], owner *model.PortID) {
	if e := l.take(key, read); e.differs() {
		l.enqueueOnce(e, owner)
	}
}

// adopt is correct for an adoption, after which nearly all that was found is wanted: what
// is not is queued by the next Plan.
func (l *Ledger[K, V]) adopt(key K, read installation[V]) *entry[K, V] {
	e := l.take(key, read)
	switch {
	case !e.differs():
	case e.refs > 0:
		l.enqueueOnce(e, nil)
	default:
		l.adopted = true
	}
	return e
}

// take takes what was read of a key as installed. The entry is a zero one if there is nothing left to know.
func (l *Ledger[K, V]) take(key K, read installation[V]) *entry[K, V] {
	e := l.entries.add(key)
	l.setFound(e, e.is(found) || e.refs == 0 && read.ok && !e.is(installed))
	l.setInstalled(e, read)
	if !e.differs() {
		l.keep(e)
	}
	return e
}

// enqueueOnce queues a key that is neither queued nor deferred.
func (l *Ledger[K, V]) enqueueOnce(e *entry[K, V], owner *model.PortID) {
	if _, waits := l.waiting[e.key]; !waits && e.queuePos() == 0 {
		l.enqueue(e, owner)
	}
}
