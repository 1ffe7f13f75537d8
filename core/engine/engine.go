// SPDX-License-Identifier: Apache-2.0

// Package engine is the reconcile loop of a data plane. One goroutine owns all state: the
// tracker, the backend in use and what is known of their health.
//
//	source ──Set, Delete────▶ inbox ──▶ ┌──────────────────────────────┐
//	timer: retries, audits ────────────▶│ apply, flush, update, sync   │──▶ Hooks (flows, metrics, health)
//	requests (Snapshot, Switch) ───────▶└──────────────────────────────┘
//
// A change is applied at once. What arrives while a sync runs waits in the inbox
// and is the next batch, so a busy source costs few syncs and a quiet one no
// delay. Nothing is programmed before the source has delivered everything it knows
// (Synced) and the data plane has been read back.
//
// The files:
//
//	engine.go    Engine and its state
//	run.go       the loop
//	turns.go     which changes the next sync programs
//	inputs.go    the queue; what a source and endpoint failover may call; inputs that come late
//	sync.go      one sync, its result, and what history keeps of it
//	audit.go     reading the data plane back; external changes, and audits on request
//	switch.go    another backend while Services are in use
//	problems.go  reports each problem that lasts once; the states of Services
//	status.go    the published snapshot; when each frontend and endpoint was programmed
package engine

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"iter"
	"log/slog"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/track"
)

// Options are what an Engine needs.
type Options struct {
	// Host merges the Node object, nil while it is not known, and the ServiceCIDRs,
	// by name, with the configuration. The problems are those of the result.
	Host func(*model.Node, []*model.ServiceCIDR) (*model.Host, []model.Problem)
	// NodeName is the Node that is this machine; others are ignored.
	NodeName string
	Mode     dataplane.Mode    // that Backend belongs to
	Backend  dataplane.Backend // the engine's from now on

	// Open opens the data plane that comes instead of Backend (dataplane.Unopened) before anything
	// is read. It is called again until it succeeds; nil if Backend is open.
	Open func(context.Context) (dataplane.Backend, error)

	AuditEvery time.Duration // how often the data plane is read back without suspicion
	MinGap     time.Duration // the least time between two syncs; 0 is none
	Log        *slog.Logger
	Hooks      Hooks

	Writers Writers // nil where the system does not report them

	// Listeners returns those of some addresses and ports on which processes of this node listen; nil if
	// unknown. It is called on the engine's goroutine, and takes a millisecond.
	Listeners track.Ask
}

// Writers states which other programs write to the data plane. Its methods do not block.
type Writers interface {
	// Since returns those that have written since a time.
	Since(time.Time) dataplane.Candidates
	// Mute means that the engine itself writes from now on, and then no more.
	Mute(on bool) error
}

// Hooks are called on the engine's goroutine: they must not block.
type Hooks struct {
	// Writing precedes every sync, with the changes that it is about to write.
	Writing func([]model.Delta)
	// Synced follows every sync that had something to do.
	Synced func(Sync)
	// Audited follows every audit.
	Audited func()
	// Drifted follows an audit that found objects changed from outside, with what is
	// remembered of them.
	Drifted func(objects int, found []Drift)
	// Suspects follows changes by a source of EndpointSlices that have suspects.
	Suspects func([]netip.Addr)
	// Problem reports something newly rejected, skipped or unsupported, if it has lasted: see Hold.
	Problem func(model.Problem)
}

// DataPlane is the backend in use, and its mode.
type DataPlane struct {
	Mode dataplane.Mode
	dataplane.Backend
}

// Engine is created by New and works while Run does. Its other methods are safe
// for concurrent use.
type Engine struct {
	options  Options
	inbox    *inbox
	status   atomic.Pointer[Status]
	arrivals arrivals
	current  atomic.Pointer[DataPlane] // replaced by Run's goroutine, and by adopt's which opens it
	first    chan struct{}             // closed when a sync has succeeded
	history  history.Recorder

	// Owned by Run:
	started      time.Time
	auditEvery   time.Duration
	minGap       time.Duration
	tracker      *track.Tracker
	node         *model.Node // as last delivered; nil before
	cidrs        map[string]*model.ServiceCIDR
	unread       model.Unread                        // kinds that the source could not read
	rangesRead   bool                                // ServiceCIDRs have been read
	ranges       *model.ServiceCIDR                  // those that are installed, until then; nil for none
	left         *dataplane.Left                     // what an earlier run has left; nil before it is asked for
	deliveredAt  time.Time                           // when the source was synced first
	problems     map[string][]model.Problem          // by source
	faulty       map[model.ServiceName]model.Problem // the first problem of the first source, by name, that has one with a Service
	sourceSynced bool                                // and what it could not read is not waited for
	incomplete   bool                                // the source could not understand all there is
	adopted      bool
	adoptAt      time.Time                    // not before
	adoptErr     string                       // that was logged last
	adoptLogAt   time.Time                    // when it is logged again
	withheld     map[model.PortID]*model.Port // ports that the data plane does not know: see withhold
	unapplied    map[model.PortID]model.Delta // changes that failed so far
	reported     map[model.PortID][]model.Gap // gaps that were reported
	held         held                         // problems that are reported if they last
	lines        map[string]*lines            // of the log, by namespace
	failing      map[model.ServiceName]error  // Services that failed when last something was written
	repaired     []model.PortID               // by a switch, not reported yet
	lateTriggers []track.Trigger              // of changes that failed so far
	states       serviceStates                // of the Services
	hostFails    bool                         // an object of the host failed in the last sync
	turns        turns
	waiting      map[model.ServiceName]bool // Services of which the last sync left something for the next
	done         Changes                    // changes of the inputs that were applied
	full         bool                       // everything is to be recompiled
	endpoints    int                        // programmed until the first sync that succeeded
	drift        int                        // objects found changed since the last sync that succeeded
	drifts       []Drift                    // the latest, oldest first
	programmed   Since                      // of frontends and endpoints that came after the first sync
	auditBefore  time.Time                  // start of the last audit that succeeded
	waiters      []auditWaiter
	pending      bool      // something was applied since the last sync began
	since        time.Time // arrival of the oldest event that is pending
	syncedAt     time.Time

	listening   atomic.Bool // other programs' writes are announced to Noticed
	checkedAt   time.Time   // when others' writes were last looked for
	checkAt     time.Time   // when to ask again whether others wrote to the data plane
	auditAt     time.Time   // when to audit without suspicion
	notBefore   time.Time   // no audit on suspicion before
	auditing    *auditTask  // the one whose result is waited for; nil for none
	reader      *auditTask  // the last one, whose goroutine may have been abandoned; nil before
	interrupted int         // consecutive audits interrupted by Tandem's own writes
}

// auditTask is an audit that runs concurrently with changes.
type auditTask struct {
	start time.Time
	due   bool          // not only since a caller asked
	done  chan struct{} // closed when it has returned
}

// New returns an engine that does nothing until Run.
func New(o Options) *Engine {
	e := &Engine{
		options: o, auditEvery: o.AuditEvery, minGap: o.MinGap, tracker: track.New(), inbox: newInbox(), turns: newTurns(), first: make(chan struct{}),
		problems: map[string][]model.Problem{}, cidrs: map[string]*model.ServiceCIDR{},
		withheld: map[model.PortID]*model.Port{}, unapplied: map[model.PortID]model.Delta{}, reported: map[model.PortID][]model.Gap{}, programmed: Since{}, lines: map[string]*lines{}, held: held{places: map[model.Problem]*list.Element{}}, full: true,
	}
	e.current.Store(&DataPlane{o.Mode, o.Backend})
	e.tracker.CollectTriggers(time.Now())
	if o.Listeners != nil {
		e.tracker.KeepListeners(o.Listeners)
	}
	e.status.Store(&Status{})
	return e
}

// Current returns the data plane in use. The engine calls its Backend at the same
// time: callers may use only what dataplane allows from any goroutine, such as
// Counters.
func (e *Engine) Current() DataPlane { return *e.current.Load() }

func (e *Engine) backend() dataplane.Backend { return e.current.Load().Backend }

// Close closes the data plane in use; what is programmed stays. It comes after
// Run.
func (e *Engine) Close() error { return e.backend().Close() }

// Status returns the current status. It never blocks.
func (e *Engine) Status() Status {
	s := *e.status.Load()
	s.QueuedAt = e.inbox.oldest(s.QueuedAt)
	s.LatestAt, s.Seen = e.arrivals.read()
	return s
}

// Programmed is closed once everything that the source delivered was programmed
// for the first time: when Status says Synced.
func (e *Engine) Programmed() <-chan struct{} { return e.first }

// History returns the last changes and syncs.
func (e *Engine) History() *history.Recorder { return &e.history }

// Ping returns nil once the engine's goroutine has answered. A watchdog that gets
// no answer in time knows that it hangs.
func (e *Engine) Ping(ctx context.Context) error {
	_, err := ask(ctx, e.inbox, func() struct{} { return struct{}{} })
	return err
}

// Snapshot asks the engine for one, with all Services. It waits for a running sync, and fails only
// when ctx or the engine ends first.
func (e *Engine) Snapshot(ctx context.Context) (*Snapshot, error) {
	s, err := e.SnapshotOf(ctx, (*track.Tracker).Unsorted)
	if err != nil {
		return nil, err
	}
	// Here, and not on the engine's goroutine, where changes would wait for it.
	track.SortServices(s.Services)
	return s, nil
}

// SnapshotOf is Snapshot with those Services alone that are picked, on the engine's
// goroutine and in the order that they are picked in: changes do not wait for a list of all
// where a few are enough.
func (e *Engine) SnapshotOf(ctx context.Context, pick func(*track.Tracker) []*track.View) (*Snapshot, error) {
	s, err := ask(ctx, e.inbox, func() *Snapshot {
		now := time.Now()
		s := &Snapshot{
			At:       now,
			Settled:  e.turns.idle() && e.tracker.Settled(now),
			Status:   *e.status.Load(),
			Host:     e.tracker.Host(),
			Node:     e.node,
			CIDRs:    e.serviceCIDRs(),
			Services: pick(e.tracker),
			Routes:   e.tracker.Routes(),
			Grants:   e.tracker.Grants(),
			Backend:  e.backend().Health(),
			Suspects: e.tracker.Suspects(),
			Drifts:   slices.Clone(e.drifts),
			Orphans:  e.tracker.Orphans(),
			Others:   e.tracker.OtherNodes(),
		}
		s.Backend.Gaps = e.backend().AllGaps()
		for _, ps := range e.problems {
			s.Problems = append(s.Problems, ps...)
		}
		return s
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(s.Problems, func(a, b model.Problem) int { return cmp.Compare(a.String(), b.String()) })
	return s, nil
}

// Each ranges over the Services. It gives way now and then: where processors are few, a change
// would wait for a list of all until the runtime interrupts it, which is after 10 ms.
func (s *Snapshot) Each() iter.Seq2[int, *track.View] {
	const stretch = 16 // Services, which take some tens of microseconds
	return func(yield func(int, *track.View) bool) {
		for i := range s.Services {
			if i%stretch == 0 {
				runtime.Gosched()
			}
			if !yield(i, s.Services[i]) {
				return
			}
		}
	}
}

// change notes that there is something to sync, since a moment unless there was
// something before.
func (e *Engine) change(since time.Time) {
	if !e.pending {
		e.pending, e.since = true, since
	}
}

// publish replaces the status by a changed copy.
func (e *Engine) publish(change func(*Status)) {
	s := *e.status.Load()
	change(&s)
	e.status.Store(&s)
}

// auditWaiter waits for an audit that begins after a moment.
type auditWaiter struct {
	ctx   context.Context // of the caller
	asked time.Time
	done  chan audited
}

// audited is what an audit has come to.
type audited struct {
	at  time.Time // its start
	err error
}

// ErrNotReady means that nothing has been programmed yet that could be switched or audited.
var ErrNotReady = errors.New("nothing has been programmed yet: retry when the proxy is healthy")

// ErrWithheld means that what an earlier run has left serves some Services, whose EndpointSlices
// cannot be read. Another data plane would not have it.
var ErrWithheld = errors.New("cannot switch: EndpointSlices unreadable, rules of an earlier run still in use; retry once they are read")

// serviceCIDRs are those that are known, by name.
func (e *Engine) serviceCIDRs() []*model.ServiceCIDR {
	all := slices.Collect(maps.Values(e.cidrs))
	if e.ranges != nil {
		all = append(all, e.ranges)
	}
	slices.SortFunc(all, func(a, b *model.ServiceCIDR) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
