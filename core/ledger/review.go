package ledger

import (
	"iter"

	"github.com/tandem-proxy/tandem/core/model"
)

// Step is how many objects are looked at between two pauses of something long:
// a millisecond's work, or less.
const Step = 1024

// Watch begins to note the keys that ops are done for: what is read from now on
// may say of those what was true before or after. Enter ends it.
func (l *Ledger[K, V]) Watch() { l.settled = map[K]struct{}{} }

// Unwatch ends it when there is nothing to review.
func (l *Ledger[K, V]) Unwatch() { l.settled = nil }

// Adopt takes have as what is installed and returns how many keys turned out
// to differ from what the books said. Those that differ from what is wanted
// are planned; those that are waiting go on waiting. Of keys that ops were done
// for since Watch it believes the books. The ledger keeps nothing of the map.
func (l *Ledger[K, V]) Adopt(have map[K]V) (surprises int) {
	r := l.Review(have)
	for range r.Steps() {
	}
	return r.Enter()
}

// Review is an Adopt in steps: first the Steps, between which the ledger may be
// used like at any other time, then Enter. There is one at a time.
type Review[K comparable, V any] struct {
	// Drifted are the wanted keys that are not as the books say. The caller may
	// name for whose sake each is repaired, so that its ops are kept together
	// with those of the same port.
	Drifted map[K]*model.PortID

	ledger    *Ledger[K, V]
	have      map[K]V
	surprises int
}

// Review begins to compare what was read back with the books.
func (l *Ledger[K, V]) Review(have map[K]V) *Review[K, V] {
	return &Review[K, V]{Drifted: map[K]*model.PortID{}, ledger: l, have: have}
}

// Steps compares, and pauses after every Step of objects.
func (r *Review[K, V]) Steps() iter.Seq[struct{}] {
	return func(pause func(struct{}) bool) {
		seen := 0
		// A map may change while it is walked: what is new then was wanted after
		// the reading, and is not its affair.
		for key, e := range r.ledger.entries {
			if r.news(key, e) {
				r.note(key, e)
			}
			if seen++; seen%Step == 0 && !pause(struct{}{}) {
				return
			}
		}
		for key := range r.have {
			if e, known := r.ledger.entries[key]; !known && r.news(key, e) {
				r.note(key, e)
			}
			if seen++; seen%Step == 0 && !pause(struct{}{}) {
				return
			}
		}
	}
}

// news reports whether what was read of a key is not what the books say.
func (r *Review[K, V]) news(key K, e entry[V]) bool {
	if _, moved := r.ledger.settled[key]; moved {
		return false
	}
	v, ok := r.have[key]
	said := r.ledger.have(key, e)
	return said.ok != ok || ok && !r.ledger.rules.Equal(said.value, v)
}

// note keeps a wanted key until its owner is known. What nobody wants has none.
func (r *Review[K, V]) note(key K, e entry[V]) {
	if e.refs > 0 {
		r.Drifted[key] = nil
		return
	}
	r.enter(key, e, nil)
}

// enter books what was read of a key, and queues it if something is to be done.
func (r *Review[K, V]) enter(key K, e entry[V], owner *model.PortID) {
	l := r.ledger
	v, ok := r.have[key]
	e.set(found, e.is(found) || e.refs == 0 && ok && !e.is(installed))
	l.book(key, &e, installation[V]{v, ok})
	r.surprises++
	if !differs(e) {
		l.keep(key, e)
		return
	}
	if _, waits := l.waiting[key]; !waits && e.place() == 0 {
		l.touch(&e, key, owner)
	}
	l.entries[key] = e
}

// Enter ends the review: what differs is planned. It returns how many keys were
// not as the books said.
func (r *Review[K, V]) Enter() (surprises int) {
	for key, owner := range r.Drifted {
		if e := r.ledger.entries[key]; r.news(key, e) {
			r.enter(key, e, owner)
		}
	}
	r.ledger.settled = nil
	return r.surprises
}
