// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/sleep"
	"github.com/tandem-proxy/tandem/core/track"
)

// turns decide which of the changes that have arrived the next sync programs: as many as a sync has room
// for, and mostly that is all. The rest waits by namespace, and the next turns share their
// room among the namespaces (deficit round robin). So a namespace waits for its own changes: one with
// few has them in the next turn, however many another has.
//
//	inbox ──▶ lanes, one for each namespace ──round robin──▶ tracker ──▶ backlog ──▶ sync
//	  └─────────── about the whole node ───────────────────────▲
//
// Room is counted in entries of a data plane (resolve.Entries), by the objects alone. How many fit
// is learnt from the time that syncs take, as most of it is spent behind the tracker; it is
// bounded: a turn delays others little, or no longer than a sync takes anyway. One Service may have many times that:
// its ports wait in the backlog.
//
// All that a change entails is in its turn: an address that moves from one Service to another is
// written in one transaction. A change of the host is one turn, too. A lane keeps only an object's
// latest version, at its original position, and so is bounded by the objects of its namespace.
type turns struct {
	limit int                           // entries in a turn, unless it has one task alone
	most  int                           // upper bound of limit when a sync's fixed cost is negligible
	fixed time.Duration                 // that a sync takes with hardly anything to do
	used  int                           // entries in this turn so far
	seen  map[model.ServiceName]touched // those that this turn resolves

	lanes  map[string]*lane
	ring   []*lane   // those, in the order of their turns
	held   []waiting // until all that arrived before is done
	number uint64    // of the last task that came by

	backlog backlog
	whole   bool // the sync of this turn is to leave nothing
}

// touched is a Service that a turn resolves: as it will be, and what it counts so far.
type touched struct {
	object             *model.Service
	endpoints, entries int
}

// lane has the tasks of a namespace, in order of arrival.
type lane struct {
	queue  []waiting
	places map[model.Key]int // in queue, plus popped
	popped int               // how many have left
	credit int               // entries that it may have
	since  time.Time         // of its first task, or its last turn
}

// waiting is a task that waits for its turn.
type waiting struct {
	task
	number uint64
	since  time.Time
}

const (
	// turnBudget is what a turn may take, as one object may (law 11).
	turnBudget = 50 * time.Millisecond
	// mostFixed bounds what a turn may take instead where each sync takes longer than that: as
	// much again, so that large changes of one namespace do not take many times as long.
	mostFixed = 4 * turnBudget
	// turnEntries is how many entries a turn has at most: they take some 3 ms, of resolving, compiling and writing. Where
	// a sync takes longer than quickSync by itself, there may be more in proportion.
	turnEntries = 500
	quickSync   = 5 * time.Millisecond
	// shares is how many namespaces a turn has room for at least.
	shares = 16
	// routeEntries is what a route or grant counts, whose Services are resolved again.
	routeEntries = resolve.MaxEntries / shares
)

func newTurns() turns {
	return turns{limit: turnEntries, most: turnEntries, seen: map[model.ServiceName]touched{}, lanes: map[string]*lane{}}
}

// idle reports whether nothing waits.
func (t *turns) idle() bool {
	return len(t.ring) == 0 && len(t.held) == 0 && len(t.backlog.lots) == 0
}

// oldest is since when a namespace has waited for a turn; zero when none does.
func (t *turns) oldest() (since time.Time) {
	since = t.backlog.since
	for _, l := range t.ring {
		since = sleep.Earlier(since, l.since)
	}
	return since
}

// next queues newly arrived tasks (the oldest arrived at since) and returns those for this turn, in order of arrival.
func (t *turns) next(arrived []task, since time.Time, tr *track.Tracker) (now []waiting) {
	for _, a := range arrived {
		t.number++
		switch w := (waiting{a, t.number, since}); {
		case a.last:
			t.held = append(t.held, w)
		case a.about.Namespace == "":
			now = append(now, w)
		default:
			t.put(w)
		}
	}
	now = t.take(now, tr)
	first := t.number + 1
	for _, l := range t.ring {
		first = min(first, l.queue[0].number)
	}
	free := 0 // all that arrived before is in this turn at the latest, and in its sync
	for len(t.backlog.lots) == 0 && t.used <= t.limit && free < len(t.held) && t.held[free].number < first {
		free, t.whole = free+1, true
	}
	now, t.held = append(now, t.held[:free]...), slices.Delete(t.held, 0, free)
	slices.SortFunc(now, func(a, b waiting) int { return cmp.Compare(a.number, b.number) })
	return now
}

// put has a task wait in its lane.
func (t *turns) put(w waiting) {
	l := t.lanes[w.about.Namespace]
	if l == nil {
		l = &lane{places: map[model.Key]int{}, since: w.since}
		t.lanes[w.about.Namespace] = l
		t.ring = append(t.ring, l)
	}
	if place, there := l.places[w.about]; there {
		earlier := &l.queue[place-l.popped]
		w.of = w.of.plus(earlier.of)
		earlier.task = w.task
		return
	}
	l.places[w.about] = l.popped + len(l.queue)
	l.queue = append(l.queue, w)
}

// take moves what the turn has room for from the lanes to now, and at least one task of all. When a round among several
// lanes has emptied one, the turn ends with it: those with few changes do not wait for the sync of many.
func (t *turns) take(now []waiting, tr *track.Tracker) []waiting {
	round, emptied := len(t.ring), false
	for late := 0; late < len(t.ring) && t.used < t.limit; round-- { // the last ones of the ring are too large for now
		if round == 0 {
			if emptied {
				return now
			}
			round = len(t.ring)
		}
		l := t.ring[0]
		before := len(now)
		now = t.visit(l, now, tr)
		if len(now) > before {
			l.since = time.Now()
		}
		if len(l.queue) == 0 {
			delete(t.lanes, now[len(now)-1].about.Namespace)
			t.ring, emptied = t.ring[1:], true
			continue
		}
		switch n, _, _ := t.weigh(&l.queue[0].task, tr); {
		case t.tooLarge(n):
			late++
		case l.credit >= min(n, t.limit): // the turn is full
			return now
		default:
			late = 0
		}
		t.ring = append(t.ring[1:], l)
	}
	return now
}

// tooLarge reports whether a task has to wait until the backlog is empty, which another one like it has filled.
func (t *turns) tooLarge(n int) bool { return n > t.limit && len(t.backlog.lots) > 0 }

// visit lets a lane take its share of a turn.
func (t *turns) visit(l *lane, now []waiting, tr *track.Tracker) []waiting {
	for topped := false; len(l.queue) > 0; {
		w := l.queue[0]
		n, of, after := t.weigh(&w.task, tr)
		price := min(n, t.limit)
		_, again := t.seen[of] // its Service is resolved and compiled anyway: several changes cost little more than one
		if again = again && t.used > t.limit; again {
			price = 1
		}
		if price > l.credit && !topped {
			l.credit, topped = l.credit+max(1, t.limit/shares), true
		}
		if price > l.credit || t.used > 0 && t.used+n > t.limit && !again || t.tooLarge(n) {
			break
		}
		l.credit -= price
		t.used += n
		t.seen[of] = after
		now = append(now, w)
		l.queue[0] = waiting{}
		l.queue, l.popped = l.queue[1:], l.popped+1
		delete(l.places, w.about)
	}
	return now
}

// weigh returns how many entries a task touches that the turn does not have yet, and what the Service that
// they are of counts with them. What it had counts as what it gets: both are written.
func (t *turns) weigh(w *task, tr *track.Tracker) (n int, of model.ServiceName, after touched) {
	of = model.ServiceName{Namespace: w.about.Namespace, Name: w.about.Name}
	slice, _ := w.in.(*model.Slice)
	switch {
	case slice != nil:
		of.Name = slice.Service
	case w.about.Kind == aSlice:
		of = model.ServiceName{}
		if old := tr.Slice(model.SliceName{Namespace: w.about.Namespace, Name: w.about.Name}); old != nil {
			of = old.Owner()
		}
	case w.about.Kind != aService && w.about.Kind != aTouch:
		return min(routeEntries, t.limit), model.ServiceName{}, touched{}
	}
	known := tr.Service(of)
	before, counted := t.seen[of]
	if after = before; !counted {
		after.object = known.Object
		for _, s := range tr.Backing(of) { // also one that is replaced: its entries go
			after.endpoints += len(s.Endpoints)
		}
	}
	if slice != nil {
		after.endpoints += len(slice.Endpoints)
	}
	if w.about.Kind == aService {
		after.object, _ = w.in.(*model.Service)
	}
	most := max(after.endpoints, resolve.Entries(known.Object, after.endpoints), resolve.Entries(after.object, after.endpoints))
	after.entries = max(before.entries, min(most, resolve.MaxEntries))
	return 1 + after.entries - before.entries, of, after
}

// cut takes the changes that a turn has come to, and returns those that its sync programs: all, or what the backlog
// leaves for now.
func (t *turns) cut(deltas []model.Delta, all bool) (now []model.Delta) {
	room := t.limit
	if all || t.whole {
		deltas, room, t.whole = append(t.backlog.all(), deltas...), math.MaxInt, false
	}
	now, t.used = t.backlog.next(deltas, room)
	return now
}

// end ends a turn with the sync that it led to, and learns from what that took. What the data
// plane has deferred takes as much again.
func (t *turns) end(took time.Duration, work dataplane.Work) {
	if work.Deferred > 0 {
		took *= time.Duration(1 + work.Deferred/max(1, work.Ops))
	}
	used := t.used
	t.used = 0
	clear(t.seen)
	most := min(t.most*int(max(1, t.fixed/quickSync)), max(t.most, resolve.MaxEntries))
	budget := max(turnBudget, t.fixed)
	t.limit = min(t.limit, most)
	switch spent := took - t.fixed; {
	case used == 0:
	case used <= t.limit/shares:
		if took = min(took, mostFixed); t.fixed > 0 && took > t.fixed { // a busy machine is no slow data plane
			took = t.fixed + (took-t.fixed)/8
		}
		t.fixed = took
	case spent > budget:
		t.limit = max(1, min(int(float64(max(t.limit, used))*float64(budget)/float64(spent)), most))
	case used >= t.limit/2:
		t.limit = min(2*t.limit, most)
	}
}

// backlog has the changes of turns that are larger than a sync has room for. Syncs take it in parts, shared by namespace
// (start-time fair queueing), so that changes of others come in between: while there are such, each second sync has a part.
//
// A port stays whole, and what moves between ports stays together, to be written in one transaction: those
// that have a frontend in common, before or after, are one lot.
type backlog struct {
	lots   []*lot
	ports  map[model.PortID]*lot
	fronts map[model.Destination]*lot
	served map[string]int // by namespace: where its next lot begins
	clock  int            // where the last lot that was taken began
	since  time.Time      // of the last sync; zero when nothing waits
	rests  bool           // it was not in the last sync, as others had changes: it is in the next one
}

// lot are changes that belong together.
type lot struct {
	deltas  []model.Delta
	entries int
	begin   int  // in the order of service
	fresh   bool // of a turn that a sync has room for
	gone    bool // to a sync, or into another lot
}

// next adds the changes of a turn, and returns those to program now, with how many entries they have: all
// where there is room for them, and a part of what waits.
func (b *backlog) next(deltas []model.Delta, room int) (now []model.Delta, entries int) {
	for _, d := range deltas {
		entries += entriesOf(d)
	}
	fit := entries <= room
	if len(b.lots) == 0 && (fit || len(deltas) == 1) { // nearly always; what is whole and alone waits for nothing
		return deltas, entries
	}
	for _, d := range deltas {
		b.put(d, fit)
	}
	slices.SortStableFunc(b.lots, func(x, y *lot) int { return cmp.Compare(x.begin, y.begin) })
	all, late := b.lots, 0 // late are the entries of what has waited
	b.rests = fit && len(deltas) > 0 && !b.rests
	b.lots, b.since, room, entries = nil, time.Now(), room-entries, 0
	for _, l := range all {
		switch {
		case l.gone:
			continue
		case l.fresh:
		case b.rests, late > 0 && late+l.entries > room:
			b.lots = append(b.lots, l)
			continue
		default:
			late, b.clock = late+l.entries, l.begin
		}
		now, entries, l.gone = append(now, l.deltas...), entries+l.entries, true
	}
	if len(b.lots) == 0 {
		*b = backlog{}
		return now, entries
	}
	for _, d := range now {
		delete(b.ports, d.ID())
		for at := range frontsOf(d) {
			delete(b.fronts, at)
		}
	}
	return now, entries
}

// all returns all that waits, and forgets it.
func (b *backlog) all() (deltas []model.Delta) {
	for _, l := range b.lots {
		deltas = append(deltas, l.deltas...)
	}
	*b = backlog{}
	return deltas
}

// services are those of which something waits.
func (b *backlog) services() map[model.ServiceName]bool {
	if len(b.lots) == 0 {
		return nil
	}
	names := map[model.ServiceName]bool{}
	for _, l := range b.lots {
		for _, d := range l.deltas {
			names[d.ID().Service] = true
		}
	}
	return names
}

// put adds a change, which is fresh or may wait. With an earlier one of its port that waits it becomes one.
func (b *backlog) put(d model.Delta, fresh bool) {
	id, n := d.ID(), entriesOf(d)
	if b.fronts == nil {
		room := 0
		for range frontsOf(d) {
			room++
		}
		b.ports, b.fronts, b.served = map[model.PortID]*lot{}, make(map[model.Destination]*lot, room), map[string]int{}
	}
	l := b.ports[id]
	if l == nil || l.gone {
		begin := max(b.clock, b.served[id.Service.Namespace])
		b.served[id.Service.Namespace] = begin + n
		l = &lot{begin: begin}
		b.lots = append(b.lots, l)
	} else {
		i := slices.IndexFunc(l.deltas, func(o model.Delta) bool { return o.ID() == id })
		l.entries -= entriesOf(l.deltas[i])
		d.Old = l.deltas[i].Old
		l.deltas = slices.Delete(l.deltas, i, i+1)
		if d.Old == nil && d.New == nil { // it has come and gone meanwhile
			delete(b.ports, id)
			return
		}
		n = entriesOf(d)
	}
	l.deltas, l.entries, l.fresh = append(l.deltas, d), l.entries+n, l.fresh || fresh
	b.ports[id] = l
	for at := range frontsOf(d) {
		switch other := b.fronts[at]; {
		case other == l:
			continue
		case other != nil && !other.gone:
			l = b.join(l, other)
		}
		b.fronts[at] = l
	}
}

// join makes one lot of two.
func (b *backlog) join(x, y *lot) *lot {
	if len(x.deltas) < len(y.deltas) {
		x, y = y, x
	}
	for _, d := range y.deltas {
		b.ports[d.ID()] = x
		for at := range frontsOf(d) {
			b.fronts[at] = x
		}
	}
	x.deltas, x.entries = append(x.deltas, y.deltas...), x.entries+y.entries
	x.begin, x.fresh = min(x.begin, y.begin), x.fresh || y.fresh
	y.deltas, y.gone = nil, true
	return x
}

// frontsOf are the frontends of a change, before and after, those that stay twice.
func frontsOf(d model.Delta) iter.Seq[model.Destination] {
	return func(yield func(model.Destination) bool) {
		for _, p := range []*model.Port{d.Old, d.New} {
			if p == nil {
				continue
			}
			for i := range p.Frontends {
				if !yield(model.Destination{Proto: p.ID.Proto, At: p.Frontends[i].At}) {
					return
				}
			}
		}
	}
}

// entriesOf counts a change: the entries before it or after it, whichever are more.
func entriesOf(d model.Delta) (n int) {
	for _, p := range []*model.Port{d.Old, d.New} {
		if p != nil {
			n = max(n, resolve.EntriesOf(p))
		}
	}
	return n
}
