package ledger

import "github.com/tandem-proxy/tandem/core/model"

// Step is how many objects Sweep looks at between two pauses.
const Step = 512

// Review compares a reading of the data plane with the books, object by object,
// while ops go on. Every method is called like those of the ledger; between two
// calls the ledger may be used at any time. There is one Review at a time, from
// Adopt or Review to Close; after that its methods find nothing any more.
//
// A reading may say of a key what was true before an op or after it. So keys that
// ops were given out for since the Review began are not judged by it.
type Review[K comparable, V any] struct {
	// Suspects are the keys that were not read as the books say, each with the
	// port for whose sake it is repaired, which the caller may name.
	Suspects map[K]*model.PortID
	Accepted int // how many keys were entered that were not as the books said

	ledger  *Ledger[K, V]
	trust   bool
	written map[K]struct{} // keys that ops were settled for meanwhile
}

// Review begins a Review that suspects what differs.
func (l *Ledger[K, V]) Review() *Review[K, V] {
	l.review = &Review[K, V]{Suspects: map[K]*model.PortID{}, ledger: l, written: map[K]struct{}{}}
	return l.review
}

// Adopt begins a Review that enters what differs at once: for the first reading,
// before which the books say nothing.
func (l *Ledger[K, V]) Adopt() *Review[K, V] {
	r := l.Review()
	r.trust = true
	return r
}

// Close ends the Review.
func (r *Review[K, V]) Close() {
	if r.open() {
		r.ledger.review = nil
	}
}

func (r *Review[K, V]) open() bool { return r.ledger.review == r }

// See takes an object that was read. It may be read more than once.
func (r *Review[K, V]) See(key K, value V) {
	if !r.open() {
		return
	}
	l := r.ledger
	e, known := l.entries[key]
	e.set(seen, true)
	if known {
		l.entries[key] = e
	}
	r.compare(key, e, installation[V]{value, true})
}

// Sweep ends a reading: what is installed by the books was there unless it was
// read. A reading that is not whole tells nothing, and its suspects are dropped.
// After every Step of objects there is a pause.
func (r *Review[K, V]) Sweep(whole bool, pause func()) {
	n := 0
	for key, e := range r.ledger.entries {
		switch {
		case e.is(seen):
			e.set(seen, false)
			r.ledger.entries[key] = e
		case whole && r.open():
			r.compare(key, e, installation[V]{})
		}
		if n++; n%Step == 0 {
			pause()
		}
	}
	if !whole {
		clear(r.Suspects)
	}
}

func (r *Review[K, V]) compare(key K, e entry[V], read installation[V]) {
	switch {
	case !r.differs(key, e, read):
	case r.trust:
		r.Accepted++
		r.ledger.correct(key, e, read, nil)
	default:
		r.Suspects[key] = nil
	}
}

// differs reports whether what was read of a key is not what the books say.
func (r *Review[K, V]) differs(key K, e entry[V], read installation[V]) bool {
	if _, moved := r.written[key]; moved || e.is(inFlight) {
		return false
	}
	return !r.ledger.same(r.ledger.have(key, e), read)
}

// Confirm drops the suspects of which the books are right after all, given what
// is installed under the suspects by a second look.
func (r *Review[K, V]) Confirm(have map[K]V) {
	for key := range r.Suspects {
		v, ok := have[key]
		if !r.open() || !r.differs(key, r.ledger.entries[key], installation[V]{v, ok}) {
			delete(r.Suspects, key)
		}
	}
}

// Accept books what is installed under the suspects, and plans what differs from
// what is wanted.
func (r *Review[K, V]) Accept(have map[K]V) {
	r.Confirm(have)
	for key, owner := range r.Suspects {
		v, ok := have[key]
		r.ledger.correct(key, r.ledger.entries[key], installation[V]{v, ok}, owner)
	}
	r.Accepted += len(r.Suspects)
}

// Correct books what is installed under a key by a single look, and reports
// whether the books said something else. A Review that is under way, which may
// have begun before, does not judge the key any more.
func (l *Ledger[K, V]) Correct(key K, value V, there bool) (changed bool) {
	e, read := l.entries[key], installation[V]{value, there}
	if l.review != nil {
		l.review.written[key] = struct{}{}
	}
	if l.same(l.have(key, e), read) {
		return false
	}
	l.correct(key, e, read, nil)
	return true
}

func (l *Ledger[K, V]) same(a, b installation[V]) bool {
	return a.ok == b.ok && (!a.ok || l.rules.Equal(a.value, b.value))
}

// add books what was read of a key, and queues it if something is to be done.
func (l *Ledger[K, V]) correct(key K, e entry[V], read installation[V], owner *model.PortID) {
	e.set(found, e.is(found) || e.refs == 0 && read.ok && !e.is(installed))
	l.setInstalled(key, &e, read)
	if !differs(e) {
		l.keep(key, e)
		return
	}
	if _, waits := l.waiting[key]; !waits && e.queuePos() == 0 {
		l.enqueue(&e, key, owner)
	}
	l.entries[key] = e
}
