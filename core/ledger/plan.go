// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/sleep"
)

// Plan takes the queued differences, and the deferred keys that are due, and cuts them into
// batches of ops. The
// ops of one owner are in one batch, together with those of owners to which keys of
// it have moved since the last Plan, or the other way round; a batch has at most limit ops (0: no limit)
// unless these alone are more, or it comes after many: see growth.
//
// Every op must be given to Record, Return or Hold before the next Plan.
func (l *Ledger[K, V]) Plan(now time.Time, limit int) *Planned[K, V] {
	l.requeueDue(now)
	l.queueAdopted()
	n := 0 // that are planned, at the beginning of dirty
	for i := range l.dirty {
		t := &l.dirty[i]
		e := t.entry
		e.setQueuePos(0)
		if !e.differs() {
			l.keep(e)
			continue
		}
		if e.refs == 0 && l.keepUnknown && e.is(found) && !l.guarded(t.key) {
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
	p := &Planned[K, V]{ledger: l, moment: l.moments(l.dirty[:n])}
	p.cut(l.dirty[:n], limit)
	l.dirty, l.planned, l.joined, l.second = nil, l.joined, nil, map[*entry[K, V]]*model.PortID{}
	l.latest = [2]*model.PortID{}
	return p
}

// Planned are batches that are to be committed one after the other.
type Planned[K comparable, V any] struct {
	ledger  *Ledger[K, V]
	batches [][]queued[K, V]
	largest int          // of them
	moment  map[K]moment // where it is not the usual one

	ops       []Op[K, V] // of the last batch; used again for the next
	positions []int      // of its ops
}

// Next returns the next batch, in the order in which it must be committed:
// creations and replacements by rising rank, then deletions by falling rank; but who is
// admitted to a guarded address changes in steps: see moments. Ops of one position keep their
// order. After the last batch it returns nil. The ops are valid until the next call.
//
// It takes linear time, and makes each op where it stays: positions are few, and a
// Service may have 30,000 ops. They are large, so that those of one batch are made at a time.
func (p *Planned[K, V]) Next() []Op[K, V] {
	if len(p.batches) == 0 {
		return nil
	}
	batch := p.batches[0]
	p.batches = p.batches[1:]
	p.ops, p.positions = slices.Grow(p.ops[:0], p.largest)[:len(batch)], slices.Grow(p.positions[:0], p.largest)[:len(batch)]
	next := map[int]int{} // by position: first how many ops, then where the next one goes
	for i := range batch {
		p.positions[i] = p.position(&batch[i])
		next[p.positions[i]]++
	}
	start := 0
	for _, at := range slices.Sorted(maps.Keys(next)) {
		start, next[at] = start+next[at], start
	}
	for i, at := range p.positions {
		p.ops[next[at]] = p.ledger.op(&batch[i])
		next[at]++
	}
	return p.ops
}

// queueAdopted queues what an adoption found and nothing wants. A restart mostly wants all of it.
func (l *Ledger[K, V]) queueAdopted() {
	search := l.adopted && l.founds > 0
	l.adopted = false
	if !search {
		return
	}
	for e := range l.entries.all() {
		if e.differs() && !e.is(inFlight) {
			l.enqueueOnce(e, nil)
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
		if e := l.entries.add(key); e.queuePos() == 0 {
			l.enqueue(e, d.owner)
			l.join(d.owner, d.with)
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
	op := Op[K, V]{Key: t.key, Owner: t.owner, Old: l.have(t.entry).value}
	switch {
	case t.refs == 0:
		op.Verb = Delete
	case t.is(installed):
		op.Verb, op.New = Replace, t.value
	default:
		op.Verb, op.New = Create, t.value
	}
	return op
}

// cut cuts what is planned between owners into batches. With a limit, owners of which
// an op has failed before are apart from all others, by namespace: a repeated failure does not fail other owners' ops.
func (p *Planned[K, V]) cut(planned []queued[K, V], limit int) {
	l := p.ledger
	if limit > 0 {
		failed := l.failedOwners(planned)
		if len(planned) > limit || len(failed) > 0 {
			p.group(planned, failed)
		}
		for len(failed) > 0 && len(planned) > 0 {
			group := l.part(&planned[0], failed)
			n := slices.IndexFunc(planned, func(t queued[K, V]) bool { return l.part(&t, failed) != group })
			if n < 0 {
				n = len(planned)
			}
			p.cutPart(planned[:n], limit)
			planned = planned[n:]
		}
	}
	p.cutPart(planned, limit)
}

// A batch may have an eighth of what comes before it, but no more than three times the limit. A data plane may look at all
// that it has for each batch, as nf_tables_validate does where elements lead to chains: of batches of one size, that would
// take time in proportion to the square of all. But what it keeps for a batch grows, too: a notice of 4 KB for each
// element, where a program of any network namespace listens to those of nf_tables.
const (
	growth    = 8
	mostTimes = 3
)

// cutPart cuts what is in order already.
func (p *Planned[K, V]) cutPart(planned []queued[K, V], limit int) {
	for done := 0; done < len(planned); {
		most := limit
		if limit > 0 {
			most = min(max(limit, done/growth), mostTimes*limit)
		}
		n := p.ledger.fit(planned[done:], most)
		p.batches, done, p.largest = append(p.batches, planned[done:done+n]), done+n, max(p.largest, n)
	}
}

// mostParts is in how many parts owners that have failed are planned: more namespaces share the last one.
const mostParts = 8

// failedOwners returns the owners of which an op that is planned has failed before, by those that they are joined
// with, and the part of each, counted from 1; nil for none.
func (l *Ledger[K, V]) failedOwners(planned []queued[K, V]) (parts map[model.PortID]int) {
	if len(l.waiting) == 0 {
		return nil
	}
	namespaces := map[string]int{}
	for i := range planned {
		t := &planned[i]
		if t.owner == nil || !l.waiting[t.key].failed() {
			continue
		}
		by := l.leader(t.owner)
		if namespaces[by.Service.Namespace] == 0 {
			namespaces[by.Service.Namespace] = min(len(namespaces)+1, mostParts)
		}
		if parts == nil {
			parts = map[model.PortID]int{}
		}
		parts[by] = namespaces[by.Service.Namespace]
	}
	return parts
}

// part is that of an op; 0 for those of owners of which none has failed, and of none.
func (l *Ledger[K, V]) part(t *queued[K, V], failed map[model.PortID]int) int {
	if t.owner == nil {
		return 0
	}
	return failed[l.leader(t.owner)]
}

// position is the place of an op in a batch: creations and replacements by rising
// rank, then deletions by falling rank.
func (p *Planned[K, V]) position(t *queued[K, V]) int {
	const end = 1 << 30 // greater than two of any rank
	rank := p.ledger.rules.Rank(t.key)
	switch m := p.moment[t.key]; {
	case m == first:
		return 2*rank + 1
	case m != usual:
		return end + int(m)
	case t.refs == 0:
		return end - 2*rank
	}
	return 2 * rank
}

// moment is when the change of an object that admits clients to a guarded address is written.
type moment int

const (
	usual   moment = iota
	first          // clients are shut out
	last           // clients are admitted
	covered        // they were admitted by another object
)

// moments orders changes of source ranges on a frontend whose guard stays in place. An address may
// have another holder now, or other endpoints, and those change in between; so only clients who are
// admitted both before and after are admitted then. Those who are not any more are shut out first,
// new ones are admitted last. A new range inside one that is deleted is created at its usual place, before
// that deletion, and a deleted range inside a new one is deleted last.
func (l *Ledger[K, V]) moments(planned []queued[K, V]) (moments map[K]moment) {
	changes := map[K]*admission{}
	for i := range planned {
		t := &planned[i]
		guard, clients := l.rules.Admits(t.key)
		if !clients.IsValid() || !l.wants(guard) {
			continue
		}
		c := changes[guard]
		if c == nil {
			c = &admission{}
			changes[guard] = c
		}
		switch {
		case t.refs == 0:
			c.leave = append(c.leave, clients)
		case !t.is(installed):
			c.come, c.owner = append(c.come, clients), t.owner
		}
	}
	if len(changes) == 0 {
		return nil
	}
	moments = map[K]moment{}
	for _, c := range changes {
		slices.SortFunc(c.come, netip.Prefix.Compare)
		slices.SortFunc(c.leave, netip.Prefix.Compare)
	}
	for i := range planned {
		t := &planned[i]
		guard, clients := l.rules.Admits(t.key)
		switch c := changes[guard]; {
		case !clients.IsValid() || c == nil:
		case t.refs == 0:
			moments[t.key] = first
			if inside(clients, c.come) {
				moments[t.key] = covered
			}
			if t.owner == nil { // a left-over
				t.owner = c.owner
			}
		case !t.is(installed) && l.entries.find(guard).is(installed) && !inside(clients, c.leave):
			moments[t.key] = last
		}
	}
	return moments
}

// admission is a change of who is admitted to a guarded address: what is created and deleted. Of
// either, no range is inside another one.
type admission struct {
	come, leave []netip.Prefix
	owner       *model.PortID // of what comes
}

// inside reports whether a range is inside one of some, which are sorted.
func inside(p netip.Prefix, some []netip.Prefix) bool {
	i, found := slices.BinarySearchFunc(some, p, netip.Prefix.Compare)
	return found || i > 0 && some[i-1].Overlaps(p) && some[i-1].Bits() <= p.Bits()
}

// wants reports whether an object is wanted.
func (l *Ledger[K, V]) wants(key K) bool {
	e := l.entries.find(key)
	return e != nil && e.refs > 0
}

// guarded reports whether an object admits clients to an address that is wanted, with other ranges.
func (l *Ledger[K, V]) guarded(key K) bool {
	guard, clients := l.rules.Admits(key)
	return clients.IsValid() && l.wants(guard)
}

// group sorts what is planned by owner, joined ones as one, in the order of their first op. Ops without
// an owner come first, by position, since all others depend on the base; but deletions
// without an owner are left-overs, which others may use until they are replaced, and
// come last. Where there are any, clients are admitted after them. Owners that have failed before
// come after the others, by part.
func (p *Planned[K, V]) group(planned []queued[K, V], failed map[model.PortID]int) {
	l := p.ledger
	begins, left := map[model.PortID]int{}, false
	var last *model.PortID
	for i := range planned {
		if planned[i].owner == nil {
			left = left || planned[i].refs == 0
			continue
		}
		if planned[i].owner == last {
			continue
		}
		last = planned[i].owner
		if by := l.leader(planned[i].owner); begins[by] == 0 {
			begins[by] = i + 1
		}
	}
	var known [2]struct { // the ops of an owner are mostly beside each other
		owner *model.PortID
		place int
	}
	place := func(t *queued[K, V]) int {
		switch m := p.moment[t.key]; {
		case left && m > first:
			return (mostParts + 2) * len(planned)
		case t.owner != nil && t.owner == known[0].owner:
			return known[0].place
		case t.owner != nil && t.owner == known[1].owner:
			return known[1].place
		case t.owner != nil:
			by := l.leader(t.owner)
			known[1] = known[0]
			known[0].owner, known[0].place = t.owner, begins[by]+failed[by]*len(planned)
			return known[0].place
		case t.refs == 0 && m != first:
			return (mostParts+1)*len(planned) + 1
		}
		return 0
	}
	slices.SortStableFunc(planned, func(a, b queued[K, V]) int {
		if c := cmp.Compare(place(&a), place(&b)); c != 0 {
			return c
		}
		return cmp.Compare(p.position(&a), p.position(&b))
	})
}

// fit returns how many ops the next batch takes.
func (l *Ledger[K, V]) fit(planned []queued[K, V], limit int) int {
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

// The back-off between attempts at an op that fails: doubling, from firstRetry to
// lastRetry.
const (
	firstRetry = 200 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// lastBusy is the longest pause before what is busy is tried again: it may be free at any time,
// and to try costs little.
const lastBusy = 5 * time.Second

// BusyLimit is how long an op may be busy before it is a failure. An address that is checked for
// duplicates is ready after one or two seconds, and programs hold the xtables lock for less.
const BusyLimit = 10 * time.Second

// Record takes the result of a planned op, and reports whether the op is failing now.
func (l *Ledger[K, V]) Record(op Op[K, V], err error, now time.Time) (failing bool) {
	e := l.finish(op)
	if err != nil {
		if left, is := errors.AsType[LeftError[V]](err); is {
			l.setInstalled(e, installation[V]{left.Value, left.There})
		}
		return l.postpone(op, err, now)
	}
	l.setInstalled(e, installation[V]{op.New, op.Verb != Delete})
	l.keep(e)
	return false
}

// Hold takes back an op for which the data plane as a whole was busy: it is planned again at a
// time, and has not failed, however long that lasts.
func (l *Ledger[K, V]) Hold(op Op[K, V], until time.Time) {
	l.finish(op)
	d := l.waiting[op.Key]
	d.owner, d.with, d.until, d.err, d.untried, d.delayed = op.Owner, l.joinedWith(op.Owner), until, nil, false, false
	l.deferKey(op.Key, d)
}

// Return takes back an op that was not done: its key is planned again.
func (l *Ledger[K, V]) Return(op Op[K, V]) {
	e := l.finish(op)
	l.enqueue(e, op.Owner)
	l.join(op.Owner, l.joinedWith(op.Owner))
}

// finish ends an op that was in flight, and returns its entry.
func (l *Ledger[K, V]) finish(op Op[K, V]) *entry[K, V] {
	if l.review != nil {
		l.review.written[op.Key] = struct{}{}
	}
	e := l.entries.add(op.Key)
	e.set(inFlight, false)
	return e
}

// keep ends the retries of a key that differs no more, and drops its entry if it
// is neither wanted nor installed.
func (l *Ledger[K, V]) keep(e *entry[K, V]) {
	delete(l.waiting, e.key)
	if e.refs == 0 && !e.is(installed|inFlight) && e.queuePos() == 0 {
		l.setFound(e, false)
		l.entries.drop(e)
	}
}

func (l *Ledger[K, V]) postpone(op Op[K, V], err error, now time.Time) (failing bool) {
	d := l.waiting[op.Key]
	d.owner, d.with, d.delayed = op.Owner, l.joinedWith(op.Owner), false
	busy, isBusy := errors.AsType[BusyError](err)
	if isBusy && d.busy.IsZero() {
		d.busy = now
	}
	switch {
	case isBusy && now.Sub(d.busy) < BusyLimit:
		d.until, d.err, d.untried = now.Add(busy.After), nil, false
	case isBusy:
		d.wait = sleep.Longer(d.wait, firstRetry, lastRetry)
		wait := max(busy.After, min(d.wait, lastBusy))
		d.until, d.err, d.untried = now.Add(wait), fmt.Errorf("busy for %s and longer: %w", BusyLimit, err), false
	case errors.Is(err, ErrDeferred):
		d.until, d.untried = now, true
		if d.err == nil { // else it has failed before, and may again
			d.err = err
		}
	default:
		d.wait = sleep.Longer(d.wait, firstRetry, lastRetry)
		d.until, d.err, d.untried, d.busy = now.Add(d.wait), err, false, time.Time{}
	}
	l.deferKey(op.Key, d)
	return d.failed()
}

func (l *Ledger[K, V]) deferKey(key K, d deferral) {
	l.waiting[key] = d
	l.wakeBy(d.until)
}

func (l *Ledger[K, V]) wakeBy(at time.Time) { l.next = sleep.Earlier(l.next, at) }

// Next returns when a deferred key is due, so that Plan should be called without
// a change; the zero time for never.
func (l *Ledger[K, V]) Next() time.Time {
	if len(l.waiting) == 0 {
		return time.Time{}
	}
	return l.next
}

// Failure is an op that failed and will be retried.
type Failure[K comparable] struct {
	Key   K
	Owner *model.PortID
	Err   error
	// Left means that the object is not wanted any more: deleting it fails.
	Left bool
}

// Failures lists what is failing, in no particular order.
func (l *Ledger[K, V]) Failures() []Failure[K] {
	var fs []Failure[K]
	for key, d := range l.waiting {
		if d.err != nil {
			fs = append(fs, Failure[K]{key, d.owner, d.err, !l.wants(key)})
		}
	}
	return fs
}
