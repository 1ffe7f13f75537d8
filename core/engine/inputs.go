// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/sleep"
	"github.com/tandem-proxy/tandem/core/track"
)

// Set adds or replaces an object. Of other machines' Nodes only the addresses
// matter: external IPs must not take them.
func (e *Engine) Set(o model.Object) { e.input(o, false) }

// Delete removes an object. This machine's own Node stays: the last known one is kept, and its
// addresses and podCIDRs are until a new one has some.
func (e *Engine) Delete(o model.Object) { e.input(o, true) }

// input queues a change of the inputs: an object that is set, or gone.
func (e *Engine) input(o model.Object, gone bool) {
	t := task{about: o.Key()}
	switch o := o.(type) {
	case *model.Service:
		t.of = Changes{Services: 1}
	case *model.Slice:
		t.of = Changes{Slices: 1}
	case *model.Node:
		e.inputNode(o, gone)
		return
	case *model.ServiceCIDR:
		e.inputServiceCIDR(o, gone)
		return
	}
	pass := e.tracker.Set
	if gone {
		pass = e.tracker.Delete
	} else {
		t.in = o
	}
	at := e.arrivals.add(t.of)
	t.do = func(since time.Time) {
		e.recordInput(o, gone, at)
		pass(o)
		e.change(since)
	}
	e.inbox.put(t)
}

func (e *Engine) inputNode(n *model.Node, gone bool) {
	switch {
	case n.Name != e.options.NodeName:
		ips := n.IPs
		if gone {
			ips = nil
		}
		e.inbox.put(task{about: n.Key(), do: func(since time.Time) {
			if e.tracker.SetOtherNode(n.Name, ips) {
				e.change(since)
			}
		}})
	case !gone:
		e.inbox.put(task{about: model.Key{Kind: theNode}, do: func(since time.Time) {
			e.node = completeNode(n, e.node)
			e.setHost(history.Node, n.Name, since)
			e.publish(func(s *Status) { s.Leaving = n.Leaving })
		}})
	}
}

func (e *Engine) inputServiceCIDR(c *model.ServiceCIDR, gone bool) {
	e.inbox.put(task{about: c.Key(), do: func(since time.Time) {
		if gone {
			delete(e.cidrs, c.Name)
		} else {
			e.cidrs[c.Name] = c
		}
		e.setHost(history.ServiceCIDR, c.Name, since)
	}})
}

// SetTiming changes the time between audits and that between syncs, and asks Host
// again: the configuration has changed.
func (e *Engine) SetTiming(auditEvery, minGap time.Duration) {
	e.inbox.post(func(since time.Time) {
		e.auditAt = e.auditAt.Add(auditEvery - e.auditEvery)
		e.auditEvery, e.minGap = auditEvery, minGap
		e.setHost(history.Configuration, "", since)
	})
}

// HostChanged makes the engine call Host again, since its inputs besides the Node have changed.
func (e *Engine) HostChanged() {
	e.inbox.put(task{about: model.Key{Kind: theMachine}, do: func(since time.Time) { e.setHost(history.Machine, "", since) }})
}

// Problems replaces the problems of a source. What is new is reported once it has lasted for
// Hold since the source has delivered everything.
func (e *Engine) Problems(source string, ps []model.Problem) {
	e.inbox.put(task{about: model.Key{Kind: problemsOf, Name: source}, do: func(since time.Time) { e.setProblems(source, ps, since) }})
}

func (e *Engine) setProblems(source string, ps []model.Problem, since time.Time) {
	old := e.problems[source]
	e.keepProblems(source, ps, since)
	unfit := e.unfit()
	e.publish(func(s *Status) { s.Unfit = unfit })
	if e.sourceSynced {
		e.hold(without(ps, old), without(old, ps))
	}
}

// Synced marks that the source has delivered everything it has; from now on
// events are applied as they arrive. Complete states whether all inputs could be
// decoded. While they could not, objects of an earlier run that nothing
// needs are kept, since they may belong to inputs that were not decoded. Synced may be
// called again when that changes.
func (e *Engine) Synced(complete bool) {
	e.inbox.put(task{last: true, do: func(since time.Time) {
		if e.deliveredAt.IsZero() {
			e.deliveredAt = time.Now()
		}
		e.begin(since)
		e.incomplete = !complete
		e.backend().KeepUnknown(e.incomplete)
		e.change(since)
	}})
}

// completeNode fills in addresses and podCIDRs that a Node had before: one that is
// created again gets its addresses and podCIDRs later, and is the same machine.
func completeNode(n, before *model.Node) *model.Node {
	if before == nil || len(n.IPs) > 0 && len(n.PodCIDRs) > 0 {
		return n
	}
	whole := *n
	if len(n.IPs) == 0 {
		whole.IPs = before.IPs
	}
	if len(n.PodCIDRs) == 0 {
		whole.PodCIDRs = before.PodCIDRs
	}
	return &whole
}

// setHost asks what the host is now, and updates tracker and backend. Of and name
// state what has changed.
func (e *Engine) setHost(of history.Kind, name string, since time.Time) {
	h, problems := e.options.Host(e.node, e.serviceCIDRs())
	e.setProblems("host", problems, since) // at once: those of the host before are obsolete
	old := e.tracker.Host()
	if old != nil && old.SameDataPlane(h) && old.SamePolicy(h) && old.Zone == h.Zone {
		return
	}
	e.recordHost(of, name, since)
	e.full = e.full || old == nil || !old.SamePorts(h)
	e.tracker.SetHost(h)
	e.backend().SetHost(h)
	e.change(since)
}

// unfit is a problem for which this node must get no traffic, in words; empty for
// none.
func (e *Engine) unfit() string {
	for _, source := range slices.Sorted(maps.Keys(e.problems)) {
		for _, p := range e.problems[source] {
			if p.Unfit {
				return p.String()
			}
		}
	}
	return ""
}

// inbox is a queue from many senders to the engine, so that a source never waits
// for the kernel. Of several tasks about one object only the latest is kept once
// the queue is long, and of questions those whose callers still wait: it is bounded by the
// number of objects and of such callers.
type inbox struct {
	wake  chan struct{} // has an element when there may be something in queue
	ended chan struct{} // closed when tasks are no longer taken

	mu        sync.Mutex
	queue     []task
	compactAt int       // length of queue that is worth compacting; 0 is compactLength
	since     time.Time // arrival of the first in queue
}

func newInbox() *inbox {
	return &inbox{wake: make(chan struct{}, 1), ended: make(chan struct{})}
}

// compactLength is the least length of a queue that is worth compacting.
const compactLength = 4096

// task is one unit of work on the engine's goroutine.
type task struct {
	about model.Key       // of tasks about the same the latest counts; those about nothing are all done
	of    Changes         // the changes of inputs that it includes
	asks  context.Context // of a question's caller; nil for what is done in any case
	in    any             // the object that it sets, where its size matters
	last  bool            // it comes after all that arrived before: it says something about that
	do    work
}

// work is given the arrival of the oldest task that it arrived with.
type work func(since time.Time)

// The kinds of what tasks are about: those of the inputs, of which these have an effect on turns, and others.
const (
	aService = "Service"
	aSlice   = "EndpointSlice"

	theNode     = "this machine's Node"
	theMachine  = "machine"
	problemsOf  = "problems" // of a source
	theSuspects = "suspects"
	aTouch      = "touch" // a Service is resolved again
)

// post queues work that has to be done whatever comes later.
func (b *inbox) post(f work) { b.put(task{do: f}) }

func (b *inbox) put(t task) {
	b.mu.Lock()
	if len(b.queue) == 0 {
		b.since = time.Now()
	}
	b.queue = append(b.queue, t)
	if len(b.queue) >= max(b.compactAt, compactLength) {
		b.queue = compact(b.queue)
		b.compactAt = 2 * len(b.queue)
	}
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// compact leaves out the tasks that later ones supersede, and questions whose callers have gone.
// It reuses the queue.
func compact(queue []task) []task {
	index := map[model.Key]int{}
	free := len(queue) // from here on they are kept
	for i := len(queue) - 1; i >= 0; i-- {
		t := queue[i]
		if t.asks != nil && t.asks.Err() != nil {
			continue
		}
		if t.last { // what came before it is done before it, and is none of what came after
			clear(index)
		}
		if at, later := index[t.about]; later && t.about != (model.Key{}) {
			queue[at].of = queue[at].of.plus(t.of)
			continue
		}
		free--
		queue[free] = t
		index[t.about] = free
	}
	clear(queue[:free])
	return queue[free:]
}

func (b *inbox) take() (queue []task, since time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	queue, b.queue, b.compactAt = b.queue, nil, 0
	return queue, b.since
}

// oldest returns the earlier of t and the arrival of the first task in the queue.
func (b *inbox) oldest(t time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 {
		return t
	}
	return sleep.Earlier(t, b.since)
}

// ErrEnded means that the engine does not run any more.
var ErrEnded = errors.New("the proxy has stopped")

// ask runs f on the engine's goroutine and waits for its answer. After an error
// f may still run, unless that is ErrEnded. It is skipped once ctx has ended, so
// that callers whose ctx has ended cost a busy engine nothing.
func ask[T any](ctx context.Context, b *inbox, f func() T) (answer T, err error) {
	answers := make(chan T, 1)
	b.put(task{asks: ctx, do: func(time.Time) {
		if ctx.Err() == nil {
			answers <- f()
		}
	}})
	select {
	case answer = <-answers:
		return answer, nil
	case <-b.ended:
		select {
		case answer = <-answers: // from its last turn
			return answer, nil
		default:
			return answer, ErrEnded
		}
	case <-ctx.Done():
		return answer, ctx.Err()
	}
}

// At a start some kinds of inputs may come late, or not at all, while Services and their
// endpoints are there. Unknown is not absent: what an earlier run has programmed with them
// stays in use.
//
//   - ServiceCIDRs are taken from the installed objects until they are read, for however long
//     that takes: nothing waits for them.
//   - What a Node or a route decides cannot be taken from objects: nearly all of them depend on
//     the Node. Where an earlier run has left a data plane that serves by itself, nothing is
//     written until they are read, up to lateLimit. By then endpoints that have gone
//     meanwhile harm more than what is done without the kind.
//   - A Service without endpoints of an IP family may have some in an EndpointSlice that could
//     not be read: see withhold.

// lateLimit is how long the first sync waits for a kind that does not come.
const lateLimit = 5 * time.Minute

// Unread states which kinds of inputs the source could not read yet. It comes before
// Synced, and again when that changes.
func (e *Engine) Unread(u model.Unread) {
	e.inbox.put(task{last: true, do: func(since time.Time) {
		was := e.unread
		e.unread = u
		e.rangesRead = e.rangesRead || !u.ServiceCIDRs
		switch {
		case e.rangesRead && e.ranges != nil:
			e.ranges = nil
			e.setHost(history.ServiceCIDR, "", since)
		case !e.rangesRead && !was.ServiceCIDRs:
			e.recoverRanges(since)
		}
		if u.Endpoints != was.Endpoints {
			e.change(since)
		}
		e.begin(since)
	}})
}

// recoverRanges takes the ranges of cluster IPs from what is installed, while the source cannot
// say which there are.
func (e *Engine) recoverRanges(since time.Time) {
	if !e.adopted || e.rangesRead || !e.unread.ServiceCIDRs {
		return
	}
	if found := e.leftovers().ServiceCIDRs; len(found) > 0 {
		e.options.Log.Info("ranges of cluster IPs not synced; keeping the programmed ones", "ranges", found)
		e.ranges = &model.ServiceCIDR{Name: "(installed)", CIDRs: found}
		e.setHost(history.ServiceCIDR, e.ranges.Name, since)
	}
}

// leftovers is what an earlier run has left. It is asked for before the first sync.
func (e *Engine) leftovers() dataplane.Left {
	if e.left == nil {
		left := e.backend().Left()
		e.left = &left
	}
	return *e.left
}

// begin enables syncing once all required inputs have arrived.
func (e *Engine) begin(since time.Time) {
	if e.sourceSynced || e.deliveredAt.IsZero() {
		return
	}
	if late := e.awaited(); late != "" {
		if e.adopted && e.status.Load().Awaited != late {
			e.options.Log.Warn("inputs not synced; keeping rules of the previous run", "waiting", late, "limit", lateLimit)
			e.publish(func(s *Status) { s.Awaited = late })
		}
		return
	}
	if e.late() != "" && e.status.Load().Awaited != "" {
		e.options.Log.Warn("inputs still not synced; programming without them", "unknown", e.late(), "after", lateLimit)
	}
	// Earlier events have waited for the source, not for the data plane.
	e.sourceSynced, e.since, e.left = true, since, nil
	e.publish(func(s *Status) { s.Awaited, s.SourceSynced, s.QueuedAt = "", true, since })
	e.recordInitialList(since)
	for _, ps := range e.problems {
		e.hold(ps, nil)
	}
	e.change(since)
}

// awaited names the kinds that the first sync waits for; empty for none.
func (e *Engine) awaited() string {
	switch {
	case e.late() == "", e.current.Load().Mode.Ephemeral, time.Since(e.deliveredAt) >= lateLimit:
		return ""
	case e.adopted && e.leftovers().Objects == 0:
		return ""
	}
	return e.late()
}

// late names the unknown kinds whose effect cannot be taken from objects; empty for none.
func (e *Engine) late() string {
	return model.Unread{Node: e.unread.Node, Routes: e.unread.Routes}.String()
}

// withhold returns the changes to make now. While some EndpointSlices could not be read, a Service
// without any of an IP family may have endpoints in them: its objects from an earlier run stay
// until there is a slice, the Service is deleted, or everything is read.
func (e *Engine) withhold(deltas []model.Delta) []model.Delta {
	if !e.unread.Endpoints && len(e.withheld) == 0 {
		return deltas
	}
	now := make([]model.Delta, 0, len(deltas))
	for _, d := range deltas {
		if port := e.withheld[d.ID()]; port != nil { // d.Old, which the data plane does not know
			delete(e.withheld, port.ID)
			if d.Old = nil; d.New == nil {
				now = append(now, model.Delta{New: port}, model.Delta{Old: port}) // what is left goes with it
				continue
			}
		}
		if e.unread.Endpoints && d.Old == nil && e.unserved(d.New) && e.backend().Keeps(d.New) {
			e.withheld[d.New.ID] = d.New
			continue
		}
		now = append(now, d)
	}
	if !e.unread.Endpoints {
		for _, port := range e.withheld {
			now = append(now, model.Delta{New: port})
		}
		clear(e.withheld)
	}
	return now
}

// unserved reports whether there is no EndpointSlice that could have an endpoint for a port.
func (e *Engine) unserved(p *model.Port) bool {
	return p.Widest() == 0 && !slices.ContainsFunc(e.tracker.Service(p.ID.Service).Slices, func(s *model.Slice) bool { return s.Family == p.ID.Family })
}

// SetSuspects replaces the addresses of endpoints that have stopped answering.
func (e *Engine) SetSuspects(s model.Suspects) {
	e.inbox.put(task{about: model.Key{Kind: theSuspects}, do: func(since time.Time) {
		e.tracker.SetSuspects(s)
		e.change(since)
	}})
}

// RemoteOf returns the ready endpoints on other nodes that a TCP frontend may lead to, or
// those of the Service where the frontend is the zero value.
func (e *Engine) RemoteOf(ctx context.Context, frontend netip.AddrPort, of model.ServiceName) ([]track.Endpoint, error) {
	return ask(ctx, e.inbox, func() []track.Endpoint { return e.tracker.RemoteOf(frontend, of) })
}

// RemoteAt returns the ready TCP endpoints on other nodes that have an address, those of all Services.
func (e *Engine) RemoteAt(ctx context.Context, a netip.Addr) ([]track.Endpoint, error) {
	return ask(ctx, e.inbox, func() []track.Endpoint { return e.tracker.RemoteAt(a) })
}

// Concerned is what answers about packets to some addresses depend on.
type Concerned struct {
	Host     *model.Host
	Services [][]*track.View // that affect packets to each address, in their order
}

// Concerned returns it.
func (e *Engine) Concerned(ctx context.Context, to []model.Listener) (Concerned, error) {
	return ask(ctx, e.inbox, func() Concerned {
		c := Concerned{Host: e.tracker.Host(), Services: make([][]*track.View, len(to))}
		for i, l := range to {
			c.Services[i] = e.tracker.Concerned(l.Proto, l.At)
		}
		return c
	})
}
