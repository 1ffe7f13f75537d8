package ledger

import (
	"cmp"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// Plan drains the queue of differences into batches of ops, and with them every
// deferred key whose time has come. Each batch is in the order in which it must
// be carried out: creations and replacements by rising rank, then deletions by
// falling rank. The ops of one owner are in one batch; batches have at most
// limit ops (0: no limit) unless one owner alone has more.
//
// Every op must be Settled or Returned before the next Plan.
func (l *Ledger[K, V]) Plan(now time.Time, limit int) [][]Op[K, V] {
	l.requeueDue(now)
	ops := make([]Op[K, V], 0, len(l.dirty))
	for i := range l.dirty {
		t := l.dirty[i]
		e := l.entries[t.key]
		e.setQueuePos(0)
		if !differs(e) {
			l.keep(t.key, e)
			continue
		}
		l.entries[t.key] = e
		if e.refs == 0 && l.keepUnknown && e.is(found) {
			l.kept = append(l.kept, t.key)
			continue
		}
		if e.refs == 0 && l.delayDelete(t, now) {
			continue
		}
		e.set(inFlight, true)
		l.entries[t.key] = e
		ops = append(ops, l.op(t, e))
	}
	// A queue that once held everything must not stay that large for ever.
	if cap(l.dirty) > 4096 {
		l.dirty = nil
	}
	l.dirty = l.dirty[:0]
	return l.batches(ops, limit)
}

// requeueDue queues the deferred keys that are due.
func (l *Ledger[K, V]) requeueDue(now time.Time) {
	if l.next.IsZero() || now.Before(l.next) {
		return
	}
	l.next = time.Time{}
	due := map[model.PortID]bool{}
	for _, d := range l.waiting {
		if d.owner != nil && d.err != nil && !now.Before(d.until) {
			due[*d.owner] = true
		}
	}
	for key, d := range l.waiting {
		// What failed of one owner is tried together: it may need each other.
		together := d.owner != nil && d.err != nil && due[*d.owner]
		if now.Before(d.until) && !together {
			l.wakeBy(d.until)
			continue
		}
		if e := l.entries[key]; e.queuePos() == 0 {
			l.enqueue(&e, key, d.owner)
			l.entries[key] = e
		}
	}
}

// delayDelete puts an unneeded object off until its time to linger is over, and
// reports whether it did.
func (l *Ledger[K, V]) delayDelete(t queued[K], now time.Time) bool {
	if d, waits := l.waiting[t.key]; waits {
		return d.err == nil && now.Before(d.until)
	}
	linger := l.rules.DeleteDelay(t.key)
	if linger == 0 {
		return false
	}
	l.deferKey(t.key, deferral{until: now.Add(linger), owner: t.owner})
	return true
}

func (l *Ledger[K, V]) op(t queued[K], e entry[V]) Op[K, V] {
	op := Op[K, V]{Key: t.key, Owner: t.owner, Old: l.have(t.key, e).value}
	if e.refs > 1 {
		op.Owner = nil // shared: it must not fail with one of those who need it
	}
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

// batches cuts ops between owners and puts each batch into its order.
func (l *Ledger[K, V]) batches(ops []Op[K, V], limit int) [][]Op[K, V] {
	if len(ops) == 0 {
		return nil
	}
	if limit > 0 && len(ops) > limit {
		l.group(ops)
	}
	var batches [][]Op[K, V]
	for len(ops) > 0 {
		n := cut(ops, limit)
		batch := ops[:n:n]
		slices.SortStableFunc(batch, l.order)
		batches, ops = append(batches, batch), ops[n:]
	}
	return batches
}

// group brings the ops of each owner together, owners in the order of their
// compareClaims op. Ops without an owner come first, by rank: the base is needed by all.
func (l *Ledger[K, V]) group(ops []Op[K, V]) {
	first := map[model.PortID]int{{}: -1}
	for i, op := range ops {
		if _, ok := first[op.Port()]; !ok {
			first[op.Port()] = i
		}
	}
	slices.SortStableFunc(ops, func(a, b Op[K, V]) int {
		if c := cmp.Compare(first[a.Port()], first[b.Port()]); c != 0 {
			return c
		}
		return l.order(a, b)
	})
}

// cut returns how many ops the next batch takes.
func cut[K comparable, V any](ops []Op[K, V], limit int) int {
	if limit <= 0 || len(ops) <= limit {
		return len(ops)
	}
	n := limit
	for n > 0 && ops[n].Owner != nil && ops[n-1].Port() == ops[n].Port() {
		n--
	}
	if n > 0 {
		return n
	}
	for n = limit; n < len(ops) && ops[n].Port() == ops[n-1].Port(); n++ { // one owner larger than the limit
	}
	return n
}

func (l *Ledger[K, V]) order(a, b Op[K, V]) int {
	del := func(o Op[K, V]) int {
		if o.Verb == Delete {
			return 1
		}
		return 0
	}
	if c := cmp.Compare(del(a), del(b)); c != 0 {
		return c
	}
	if a.Verb == Delete {
		return cmp.Compare(l.rules.Rank(b.Key), l.rules.Rank(a.Key))
	}
	return cmp.Compare(l.rules.Rank(a.Key), l.rules.Rank(b.Key))
}
