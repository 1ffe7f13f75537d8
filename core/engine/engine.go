// Package engine is the loop that keeps a data plane right. One goroutine owns
// all state: the tracker, the backend and what is known of their health.
//
//	source ──SetService...──▶ inbox ──▶ ┌──────────────────────────────┐
//	timer: retries, look-outs, audits ─▶│ apply, flush, update, sync   │──▶ Hooks (flows, metrics, health)
//	requests (Snapshot) ───────────────▶└──────────────────────────────┘
//
// A change is applied at once. What arrives while a sync runs waits in the inbox
// and is the next batch, so a busy source costs few syncs and a quiet one no
// delay. Nothing is programmed before the source has told everything it knows
// (Synced) and the data plane has been read back.
package engine

import (
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/track"
)

// Options are what an Engine needs.
type Options struct {
	// Host merges the Node object, nil while it is not known, and the ServiceCIDRs,
	// by name, with the configuration.
	Host func(*model.Node, []*model.ServiceCIDR) *model.Host
	// NodeName is the Node that is this machine; others are ignored.
	NodeName string
	Backend  dataplane.Backend

	AuditEvery time.Duration // how often the data plane is read back without suspicion
	MinGap     time.Duration // the least time between two syncs; 0 is none
	Log        *slog.Logger
	Hooks      Hooks
}

// Hooks are told what the engine did, on its goroutine: they must not block.
type Hooks struct {
	// Synced follows every sync that had something to do.
	Synced func(Sync)
	// Drifted follows an audit that found objects not as they were left.
	Drifted func(objects int)
	// Problem tells of something newly refused, skipped or impossible.
	Problem func(model.Problem)
}

// Sync is the record of one sync.
type Sync struct {
	Host    *model.Host
	Settled []model.Delta // the changes that are in effect now, some of them since an earlier failure
	Work    dataplane.Work
	Err     error
	Waiting time.Duration // from the arrival of the oldest event to the start; 0 without one
	Took    time.Duration

	Ports     [2]int          // how many ports changed, by family
	Full      bool            // everything was compiled anew: the first sync, and those after the host changed
	Repaired  int             // objects that others had changed, and that are as they shall be again
	Restored  []model.Delta   // the ports of those: connections that began meanwhile may have gone astray
	Triggered []track.Trigger // the changes in the cluster that are in effect now
	Standings []Standing      // the Services whose state is another than before
}

// Engine is created by New and works while Run does. Its other methods are safe
// for use by many goroutines.
type Engine struct {
	Options
	inbox  inbox
	status atomic.Pointer[Status]
	inflow inflow
	ended  chan struct{} // closed when Run returns
	first  chan struct{} // closed when a sync has succeeded

	// Owned by Run:
	tracker  *track.Tracker
	node     *model.Node // as last told; nil before
	cidrs    map[string]*model.ServiceCIDR
	problems map[string][]model.Problem // by source
	told     bool                       // the source has told everything
	doubt    bool                       // but could not understand all of it
	adopted  bool
	adoptAt  time.Time                    // not before
	owed     map[model.PortID]model.Delta // changes that failed so far
	said     map[model.PortID][]model.Gap // gaps that were told
	refused  map[model.ServiceName]error  // Services that failed when last something got through
	late     []track.Trigger              // triggers of changes that failed so far
	standing standings                    // of the Services
	done     Changes                      // changes of the inputs that were applied
	full     bool                         // everything is to be compiled anew
	drift    int                          // objects found changed by others since the last sync that succeeded
	pending  bool                         // something was applied since the last sync began
	since    time.Time                    // arrival of the oldest event that is pending
	lookAt   time.Time
	auditAt  time.Time
	notAfter time.Time // no audit on suspicion before
	syncedAt time.Time

	auditing    *audit // the one whose result is waited for; nil for none
	reader      *audit // the last one, whose goroutine may have been given up; nil before
	interrupted int    // audits in a row that changes left no moment to read
}

// Status is what is known of the engine's health. It is immutable.
type Status struct {
	Adopted  bool      // the data plane has been read back
	Told     bool      // the source has told everything
	Synced   bool      // at least one sync has succeeded
	SyncedAt time.Time // end of the last sync that succeeded
	Err      error     // of the last sync; what failed is tried again
	QueuedAt time.Time // arrival of the oldest event that nothing was programmed for yet; zero when there is none
	LatestAt time.Time // arrival of the latest event
	Syncs    uint64
	Writes   uint64 // objects created, replaced or deleted
	Drift    uint64 // objects found not as they were left, and repaired
	Audits   Audits
	Seen     Changes // changes of the inputs that arrived
	Done     Changes // those of them that a sync has applied

	Services [model.States]int // how many there are in each state
	Leaving  bool              // this machine's Node is being deleted, or marked for it
	Unfit    string            // a problem for which no traffic shall come here; empty for none
}

// New returns an engine that does nothing until Run.
func New(o Options) *Engine {
	e := &Engine{
		Options: o, tracker: track.New(), problems: map[string][]model.Problem{},
		cidrs: map[string]*model.ServiceCIDR{},
		owed:  map[model.PortID]model.Delta{}, said: map[model.PortID][]model.Gap{}, full: true,
	}
	e.tracker.CollectTriggers(time.Now())
	e.inbox.wake, e.ended, e.first = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	e.status.Store(&Status{})
	return e
}

// Status returns the current status. It never blocks.
func (e *Engine) Status() Status {
	s := *e.status.Load()
	s.QueuedAt = e.inbox.oldest(s.QueuedAt)
	s.LatestAt, s.Seen = e.inflow.read()
	return s
}

// Programmed is closed once everything that the source told was programmed for the
// first time: when Status says Synced.
func (e *Engine) Programmed() <-chan struct{} { return e.first }

// SetService adds or replaces a Service.
func (e *Engine) SetService(s *model.Service) {
	e.event(aService, s.Name, func(t *track.Tracker) { t.SetService(s) })
}

// DeleteService removes a Service.
func (e *Engine) DeleteService(n model.ServiceName) {
	e.event(aService, n, func(t *track.Tracker) { t.DeleteService(n) })
}

// SetSlice adds or replaces an EndpointSlice.
func (e *Engine) SetSlice(s *model.Slice) {
	e.event(aSlice, model.ServiceName(s.Name), func(t *track.Tracker) { t.SetSlice(s) })
}

// DeleteSlice removes an EndpointSlice.
func (e *Engine) DeleteSlice(n model.SliceName) {
	e.event(aSlice, model.ServiceName(n), func(t *track.Tracker) { t.DeleteSlice(n) })
}

// SetNode sets or replaces a Node object. Only this machine's own counts. A
// Node that goes away is no news: the last known one stands, and so do its
// addresses and podCIDRs until one that is made again has some.
func (e *Engine) SetNode(n *model.Node) {
	if n.Name == e.NodeName {
		e.inbox.put(task{about: subject{kind: theNode}, do: func(e *Engine, since time.Time) {
			e.node = remember(n, e.node)
			e.setHost(since)
			e.publish(func(s *Status) { s.Leaving = n.Leaving })
		}})
	}
}

// Retune changes the pace, and asks Host again for what the last known Node
// means: the configuration has changed. What follows from that is one change
// like any other.
func (e *Engine) Retune(auditEvery, minGap time.Duration) {
	e.inbox.post(func(e *Engine, since time.Time) {
		e.auditAt = e.auditAt.Add(auditEvery - e.AuditEvery)
		e.AuditEvery, e.MinGap = auditEvery, minGap
		e.setHost(since)
	})
}

// HostChanged asks Host again: what it knows beside the Node has changed.
func (e *Engine) HostChanged() {
	e.inbox.put(task{about: subject{kind: theMachine}, do: func(e *Engine, since time.Time) { e.setHost(since) }})
}

// Problems replaces what a source has to complain about. What is new is logged
// and counted, once the source has told everything: before that it may be over
// in a moment.
func (e *Engine) Problems(source string, ps []model.Problem) {
	e.inbox.put(task{about: subject{kind: problemsOf, name: source}, do: func(e *Engine, _ time.Time) {
		old := e.problems[source]
		e.problems[source] = ps
		unfit := e.unfit()
		e.publish(func(s *Status) { s.Unfit = unfit })
		if e.told {
			e.complain(ps, old)
		}
	}})
}

// unfit is a problem for which no traffic shall come here, in words; empty for none.
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

// Synced tells that the source has told everything it knows; from now on events
// are applied as they come. Whole says whether it could understand everything
// there is. While it could not, what an earlier run has programmed and nothing
// asks for is kept, since it may be what was not understood. Synced may be
// called again when that changes.
func (e *Engine) Synced(whole bool) {
	e.inbox.post(func(e *Engine, since time.Time) {
		if !e.told {
			// What came before has waited for the source, not for the data plane.
			e.told, e.since = true, since
			for _, ps := range e.problems {
				e.complain(ps, nil)
			}
		}
		e.doubt = !whole
		e.Backend.KeepUnknown(e.doubt)
		e.change(since)
	})
}

// event queues a change of the inputs.
func (e *Engine) event(of kind, name model.ServiceName, f func(*track.Tracker)) {
	t := task{about: subject{of, name.Namespace, name.Name}, of: Changes{Services: 1}}
	if of == aSlice {
		t.of = Changes{Slices: 1}
	}
	t.do = func(e *Engine, since time.Time) {
		f(e.tracker)
		e.change(since)
	}
	e.inflow.add(t.of)
	e.inbox.put(t)
}
