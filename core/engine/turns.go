// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/track"
)

// turns decide which of the changes that have arrived the next sync programs: as many as fit
// turnBudget, and mostly that is all. The rest waits by namespace, and the next turns share their
// room among the namespaces (deficit round robin). So a namespace waits for its own changes: one with
// few has them in the next turn, however many another has.
//
//	inbox ──▶ lanes, one for each namespace ──round robin──▶ tracker ──▶ sync
//	  └─────────── about the whole node ───────────────────────▲
//
// Room is counted in entries of a data plane (resolve.Entries), by the objects alone. How many fit
// is learnt from the time that syncs take, as most of it is spent behind the tracker; it is never more
// than a single Service may have.
//
// All that a change entails is in its turn: an address that moves from one Service to another is
// written in one transaction. A change of the host is one turn, too. Of an object the latest version
// waits, in the place of the first: a lane is bounded by the objects of its namespace.
type turns struct {
	limit int                           // entries in a turn, unless it has one task alone
	most  int                           // that limit may be
	fixed time.Duration                 // that a sync takes with hardly anything to do
	used  int                           // entries in this turn so far
	seen  map[model.ServiceName]touched // those that this turn resolves

	lanes  map[string]*lane
	ring   []*lane   // those, in the order of their turns
	held   []waiting // until all that arrived before is done
	number uint64    // of the last task that came by
}

// touched is a Service that a turn resolves: as it will be, and what it counts so far.
type touched struct {
	object             *model.Service
	endpoints, entries int
}

// lane has the tasks of a namespace, in order of arrival.
type lane struct {
	queue  []waiting
	places map[subject]int // in queue, plus popped
	popped int             // how many have left
	credit int             // entries that it may have
	since  time.Time       // of its first task, or its last turn
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
	// shares is how many namespaces a turn has room for at least.
	shares = 16
	// routeEntries is what a route or grant counts, whose Services are resolved again.
	routeEntries = resolve.MaxEntries / shares
)

func newTurns() turns {
	return turns{limit: resolve.MaxEntries, most: resolve.MaxEntries, seen: map[model.ServiceName]touched{}, lanes: map[string]*lane{}}
}

// idle reports whether nothing waits.
func (t *turns) idle() bool { return len(t.ring) == 0 && len(t.held) == 0 }

// oldest is since when a namespace has waited for a turn; zero when none does.
func (t *turns) oldest() (since time.Time) {
	for _, l := range t.ring {
		if since.IsZero() || l.since.Before(since) {
			since = l.since
		}
	}
	return since
}

// next takes what has arrived, the first of it at some time, and returns what to do now, in order of arrival.
func (t *turns) next(arrived []task, since time.Time, tr *track.Tracker) (now []waiting) {
	for _, a := range arrived {
		t.number++
		switch w := (waiting{a, t.number, since}); {
		case a.last:
			t.held = append(t.held, w)
		case a.about.namespace == "":
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
	free := 0
	for free < len(t.held) && t.held[free].number < first {
		free++
	}
	now, t.held = append(now, t.held[:free]...), slices.Delete(t.held, 0, free)
	slices.SortFunc(now, func(a, b waiting) int { return cmp.Compare(a.number, b.number) })
	return now
}

// put has a task wait in its lane.
func (t *turns) put(w waiting) {
	l := t.lanes[w.about.namespace]
	if l == nil {
		l = &lane{places: map[subject]int{}, since: w.since}
		t.lanes[w.about.namespace] = l
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

// take moves what the turn has room for from the lanes to now, and at least one task of all.
func (t *turns) take(now []waiting, tr *track.Tracker) []waiting {
	for len(t.ring) > 0 && t.used < t.limit {
		l := t.ring[0]
		before := len(now)
		now = t.visit(l, now, tr)
		if len(now) > before {
			l.since = time.Now()
		}
		if len(l.queue) == 0 {
			delete(t.lanes, now[len(now)-1].about.namespace)
			t.ring = t.ring[1:]
			continue
		}
		if n, _, _ := t.weigh(&l.queue[0].task, tr); l.credit >= min(n, t.limit) { // the turn is full
			break
		}
		t.ring = append(t.ring[1:], l)
	}
	return now
}

// visit lets a lane take its share of a turn.
func (t *turns) visit(l *lane, now []waiting, tr *track.Tracker) []waiting {
	for topped := false; len(l.queue) > 0; {
		w := l.queue[0]
		n, of, after := t.weigh(&w.task, tr)
		price := min(n, t.limit)
		if price > l.credit && !topped {
			l.credit, topped = l.credit+max(1, t.limit/shares), true
		}
		if price > l.credit || t.used > 0 && t.used+n > t.limit {
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
	of = model.ServiceName{Namespace: w.about.namespace, Name: w.about.name}
	slice, _ := w.in.(*model.Slice)
	switch {
	case slice != nil:
		of.Name = slice.Service
	case w.about.kind == aSlice:
		of, _ = tr.SliceService(model.SliceName(of))
	case w.about.kind != aService && w.about.kind != aTouch:
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
	if w.about.kind == aService {
		after.object, _ = w.in.(*model.Service)
	}
	most := max(after.endpoints, resolve.Entries(known.Object, after.endpoints), resolve.Entries(after.object, after.endpoints))
	after.entries = max(before.entries, min(most, resolve.MaxEntries))
	return 1 + after.entries - before.entries, of, after
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
	budget := max(turnBudget, t.fixed)
	switch spent := took - t.fixed; {
	case used == 0:
	case used <= t.limit/shares:
		t.fixed = min(took, mostFixed)
	case spent > budget:
		t.limit = max(1, min(int(float64(max(t.limit, used))*float64(budget)/float64(spent)), t.most))
	case used >= t.limit/2:
		t.limit = min(2*t.limit, t.most)
	}
}
