// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// Plan turns the queued differences, and the deferred keys that are due, into
// batches of ops. Each batch is in the order in which it must be committed:
// creations and replacements by rising rank, then deletions by falling rank. The
// ops of one owner are in one batch, together with those of owners to which keys of
// it have moved since the last Plan, or the other way round; a batch has at most limit ops (0: no limit)
// unless these alone are more.
//
// Every op must be given to Record or Return before the next Plan.
func (l *Ledger[K, V]) Plan(now time.Time, limit int) [][]Op[K, V] {
	l.requeueDue(now)
	l.queueAdopted()
	n := 0 // that are planned, at the beginning of dirty
	for i := range l.dirty {
		t := &l.dirty[i]
		e := t.entry
		e.setQueuePos(0)
		if !differs(e) {
			l.keep(t.key, e)
			continue
		}
		if e.refs == 0 && l.keepUnknown && e.is(found) {
			l.kept[t.key] = struct{}{}
			delete(l.waiting, t.key) // a deletion that failed before the doubt
			continue
		}
		if e.refs == 0 && l.delayDelete(t, now) {
			continue
		}
		e.set(inFlight, true)
		if e.refs > 1 {
			t.owner = nil // shared: it must not fail with one of its owners
		}
		l.dirty[n] = *t
		n++
	}
	batches := l.batches(l.dirty[:n], limit)
	l.joined = nil
	clear(l.dirty)
	l.dirty = l.dirty[:0]
	if cap(l.dirty) > 4096 { // after a full sync: free it
		l.dirty = nil
	}
	return batches
}

// queueAdopted queues what an adoption found and nothing wants. A restart mostly wants all of it.
func (l *Ledger[K, V]) queueAdopted() {
	search := l.adopted && l.founds > 0
	l.adopted = false
	if !search {
		return
	}
	for key, e := range l.entries {
		if differs(e) && !e.is(inFlight) {
			l.enqueueOnce(key, e, nil)
		}
	}
}

// requeueDue queues the deferred keys that are due.
func (l *Ledger[K, V]) requeueDue(now time.Time) {
	if l.next.IsZero() || now.Before(l.next) {
		return
	}
	l.next = time.Time{}
	failing, due := map[model.PortID]bool{}, map[model.PortID]bool{}
	for _, d := range l.waiting {
		if d.owner != nil && d.failed() {
			failing[*d.owner] = true
			due[*d.owner] = due[*d.owner] || !now.Before(d.until)
		}
	}
	for key, d := range l.waiting {
		if d.delayed && !now.Before(d.until) && d.owner != nil && failing[*d.owner] {
			// What its owner's failed ops were to replace may still use it.
			d.until = now.Add(lastRetry)
			l.deferKey(key, d)
			continue
		}
		// Failed ops of one owner are retried together: they may depend on each other.
		together := d.owner != nil && d.failed() && due[*d.owner]
		if now.Before(d.until) && !together {
			l.wakeBy(d.until)
			continue
		}
		if e := l.entry(key); e.queuePos() == 0 {
			l.enqueue(e, key, d.owner)
		}
	}
}

// delayDelete defers the deletion of an object that has a DeleteDelay, and
// reports whether it did.
func (l *Ledger[K, V]) delayDelete(t *queued[K, V], now time.Time) bool {
	if d, waits := l.waiting[t.key]; waits {
		return d.err == nil && now.Before(d.until)
	}
	delay := l.rules.DeleteDelay(t.key)
	if delay == 0 {
		return false
	}
	l.deferKey(t.key, deferral{until: now.Add(delay), owner: t.owner, delayed: true})
	return true
}

func (l *Ledger[K, V]) op(t *queued[K, V]) Op[K, V] {
	e := t.entry
	op := Op[K, V]{Key: t.key, Owner: t.owner, Old: l.have(t.key, e).value}
	switch {
	case e.refs == 0:
		op.Verb = Delete
	case e.is(installed):
		op.Verb, op.New = Replace, e.value
	default:
		op.Verb, op.New = Create, e.value
	}
	return op
}

// batches cuts what is planned between owners, and makes the ops of each batch.
func (l *Ledger[K, V]) batches(planned []queued[K, V], limit int) (batches [][]Op[K, V]) {
	if limit > 0 && len(planned) > limit {
		l.group(planned)
	}
	for len(planned) > 0 {
		n := l.cut(planned, limit)
		batches, planned = append(batches, l.sorted(planned[:n])), planned[n:]
	}
	return batches
}

// sorted returns the ops of a batch in the order of commit. Those of one position keep their
// order. It takes linear time, and makes each op where it stays: positions are few, and a
// Service may have 30,000 ops, which are large.
func (l *Ledger[K, V]) sorted(batch []queued[K, V]) []Op[K, V] {
	positions := make([]int, len(batch))
	next := map[int]int{} // by position: first how many ops, then where the next one goes
	for i := range batch {
		positions[i] = l.position(&batch[i])
		next[positions[i]]++
	}
	start := 0
	for _, p := range slices.Sorted(maps.Keys(next)) {
		start, next[p] = start+next[p], start
	}
	ops := make([]Op[K, V], len(batch))
	for i, p := range positions {
		ops[next[p]] = l.op(&batch[i])
		next[p]++
	}
	return ops
}

// position is the place of an op in a batch: creations and replacements by rising
// rank, then deletions by falling rank.
func (l *Ledger[K, V]) position(t *queued[K, V]) int {
	const deletions = 1 << 30 // greater than any rank
	rank := l.rules.Rank(t.key)
	if t.entry.refs == 0 {
		return 2*deletions - rank
	}
	return rank
}

// group sorts what is planned by owner, joined ones as one, in the order of their first op. Ops without
// an owner come first, by position, since all others depend on the base; but deletions
// without an owner are left-overs, which others may use until they are replaced, and
// come last.
func (l *Ledger[K, V]) group(planned []queued[K, V]) {
	first := map[model.PortID]int{}
	for i := range planned {
		if by := l.leader(planned[i].owner); planned[i].owner != nil {
			if _, ok := first[by]; !ok {
				first[by] = i
			}
		}
	}
	place := func(t *queued[K, V]) int {
		switch {
		case t.owner != nil:
			return first[l.leader(t.owner)]
		case t.entry.refs == 0:
			return len(planned)
		}
		return -1
	}
	slices.SortStableFunc(planned, func(a, b queued[K, V]) int {
		if c := cmp.Compare(place(&a), place(&b)); c != 0 {
			return c
		}
		return cmp.Compare(l.position(&a), l.position(&b))
	})
}

// cut returns how many ops the next batch takes.
func (l *Ledger[K, V]) cut(planned []queued[K, V], limit int) int {
	if limit <= 0 || len(planned) <= limit {
		return len(planned)
	}
	together := func(n int) bool { // with the op before it
		return planned[n].owner != nil && l.leader(planned[n-1].owner) == l.leader(planned[n].owner)
	}
	n := limit
	for n > 0 && together(n) {
		n--
	}
	if n > 0 {
		return n
	}
	for n = limit; n < len(planned) && together(n); n++ { // more than the limit belong together
	}
	return n
}
