// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/track"
)

// Status is what is known of the engine's health. It is immutable.
type Status struct {
	Adopted      bool      // the data plane has been read back
	ReadingAt    time.Time // begin of the read that is to adopt it; zero when there is none
	SourceSynced bool      // the source has delivered everything it knows
	Awaited      string    // the kinds of inputs that the first sync waits for, since what is installed depends on them; empty for none
	Synced       bool      // at least one sync has succeeded
	SyncedAt     time.Time // end of the last sync that succeeded
	Err          error     // of the last sync, of reading the data plane before it, or of an object of the host; what failed is retried
	QueuedAt     time.Time // arrival of the oldest event that is not programmed yet, or the last turn of its namespace; zero when there is none
	LatestAt     time.Time // arrival of the latest event
	Deferred     int       // objects that the next syncs program, since the data plane is slow
	Syncs        uint64
	Writes       uint64 // objects created, replaced or deleted
	Drift        uint64 // objects that were found changed from outside; their repair may still fail
	Audits       Audits
	Seen         Changes // changes of the inputs that arrived
	Done         Changes // those of them that a sync has applied

	Services [model.States]int // how many there are in each state
	Leaving  bool              // this machine's Node is being deleted, or marked for it
	Degraded int               // kinds of objects that are programmed and have no effect
	Unfit    string            // a problem for which this node must get no traffic; empty for none
}

// Snapshot is everything the engine knows at one moment. It is immutable, and
// made on request: a change never pays for it.
type Snapshot struct {
	At       time.Time
	Settled  bool // nothing has changed that the ports of Services do not have yet
	Status   Status
	Host     *model.Host
	Node     *model.Node          // as last delivered; nil before
	CIDRs    []*model.ServiceCIDR // by name
	Services []*track.View        // by name, unless they were picked
	Routes   []*model.Route       // of the Gateway API, by precedence
	Grants   []*model.Grant       // by name
	Problems []model.Problem      // of the sources
	Backend  dataplane.Health
	Suspects model.Suspects // endpoints that have stopped answering
	Drifts   []Drift        // the latest, oldest first
	Orphans  []*model.Slice // of the API server, whose Service is not among the Services
	Others   []*model.Node  // that have an address which a Service asks for, with these addresses alone
}

// Sync is the record of one sync.
type Sync struct {
	Host    *model.Host
	Applied []model.Delta // the changes that are in effect now, some of them since an earlier failure
	Work    dataplane.Work
	Err     error
	Waiting time.Duration // from the arrival of the oldest event to the start; 0 without one
	Took    time.Duration
	Stages  [history.Stages]time.Duration // parts of Waiting and Took

	Ports        [2]int          // how many ports changed, by family
	Full         bool            // everything was recompiled: the first sync, and those after the host changed
	Repaired     int             // objects that others had changed, repaired
	Restored     []model.Delta   // the ports of those: connections that began meanwhile may have failed
	Gaps         []model.PortID  // ports whose gaps may have changed though they have not: all after a full sync but the first
	Triggered    []track.Trigger // the changes in the cluster that are in effect now
	StateChanges []StateChange   // of Services
}

// idle reports whether there was nothing to do.
func (s *Sync) idle() bool {
	changes := len(s.Applied) + len(s.Triggered) + len(s.StateChanges) + len(s.Restored) + len(s.Gaps) + s.Repaired + s.Ports[0] + s.Ports[1]
	return changes == 0 && s.Work.Idle() && s.Err == nil
}

// Changes counts changes of the inputs.
type Changes struct{ Services, Slices uint64 }

func (c Changes) plus(o Changes) Changes {
	return Changes{c.Services + o.Services, c.Slices + o.Slices}
}

// Audits counts how often the data plane was read back.
type Audits struct{ Done, Failed uint64 }

// arrivals counts events of the source. It is safe for concurrent use and never
// waits.
type arrivals struct {
	services, slices atomic.Uint64
	latest           atomic.Int64 // nanoseconds since the epoch; 0 for never
}

// add counts changes, and returns when they arrived.
func (a *arrivals) add(c Changes) (at int64) {
	a.services.Add(c.Services)
	a.slices.Add(c.Slices)
	at = time.Now().UnixNano()
	a.latest.Store(at)
	return at
}

func (a *arrivals) read() (latest time.Time, seen Changes) {
	if n := a.latest.Load(); n != 0 {
		latest = time.Unix(0, n)
	}
	return latest, Changes{a.services.Load(), a.slices.Load()}
}

// Drift is an object of the data plane that another program has changed.
type Drift struct {
	dataplane.Difference
	Found    time.Time // when an audit found it
	Repaired time.Time // zero while it is not
	By       dataplane.Candidates
}

// Since returns since when the frontends and endpoints of a Service are programmed, as
// far as that was after the first sync: what is not there is older, or was forgotten.
type Since map[SinceKey]time.Time

// SinceKey is an address of a port: a frontend's or an endpoint's.
type SinceKey struct {
	Port model.PortID
	At   netip.AddrPort
}

// maxSince bounds what is remembered: 20,000 take 3 MB. What comes later is not
// remembered until others go.
const maxSince = 20_000

// noteSince remembers what of changes in effect was not there before.
func (e *Engine) noteSince(applied []model.Delta, at time.Time) {
	for _, d := range applied {
		before, now := addressesOf(d.Old), addressesOf(d.New)
		for _, a := range before {
			if !among(a, now) {
				delete(e.programmed, SinceKey{d.ID(), a})
			}
		}
		for _, a := range now {
			if len(e.programmed) < maxSince && !among(a, before) {
				e.programmed[SinceKey{d.ID(), a}] = at
			}
		}
	}
}

// addressesOf are those of a port, which may be nil. They are sorted.
func addressesOf(p *model.Port) (all []netip.AddrPort) {
	if p == nil {
		return nil
	}
	pools := p.Pools()
	n := len(p.Frontends)
	for _, pool := range pools {
		n += len(pool.Endpoints)
	}
	all = make([]netip.AddrPort, 0, n)
	for i := range p.Frontends {
		all = append(all, p.Frontends[i].At)
	}
	for _, pool := range pools {
		for i := range pool.Endpoints {
			all = append(all, pool.Endpoints[i].Addr)
		}
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all)
}

func among(a netip.AddrPort, all []netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(all, a, netip.AddrPort.Compare)
	return found
}

// Since returns what is known of one Service.
func (e *Engine) Since(ctx context.Context, of model.ServiceName) (Since, error) {
	return ask(ctx, e.inbox, func() Since {
		known := Since{}
		for _, p := range e.tracker.Service(of).Ports {
			for _, a := range addressesOf(p) {
				if at, ok := e.programmed[SinceKey{p.ID, a}]; ok {
					known[SinceKey{p.ID, a}] = at
				}
			}
		}
		return known
	})
}
