// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"time"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// What the source delivers until it has delivered everything is one change, the
// initial list: a start must not use up the history.

// recordService records a Service that arrived; s is nil where it was deleted. It
// comes before the tracker knows.
func (e *Engine) recordService(n model.ServiceName, s *model.Service, at int64) {
	if !e.sourceSynced {
		return
	}
	c := history.Change{Kind: history.Service, At: at, Namespace: n.Namespace, Name: n.Name, Service: n.Name, Deleted: s == nil}
	c.Known = e.tracker.Service(n).Object != nil
	if s != nil {
		c.Version = s.Version
		if !c.Known {
			c.Age = age(s.Created, at)
		}
	}
	e.history.Arrived(c)
}

// recordSlice records an EndpointSlice like recordService.
func (e *Engine) recordSlice(n model.SliceName, s *model.Slice, at int64) {
	if !e.sourceSynced {
		return
	}
	c := history.Change{Kind: history.EndpointSlice, At: at, Namespace: n.Namespace, Name: n.Name, Deleted: s == nil}
	service, known := e.tracker.SliceService(n)
	c.Service, c.Known = service.Name, known
	if s != nil {
		c.Version, c.Service, c.Age = s.Version, s.Service, age(s.Triggered, at)
	}
	e.history.Arrived(c)
}

// recordRoute records a route like recordService.
func (e *Engine) recordRoute(n model.RouteName, r *model.Route, at int64) {
	if !e.sourceSynced {
		return
	}
	c := history.Change{Kind: history.Route, At: at, Namespace: n.Namespace, Name: n.Name, Deleted: r == nil, Known: e.tracker.HasRoute(n), Detail: n.Kind()}
	if r != nil {
		c.Version = r.Version
		if len(r.Parents) > 0 {
			c.Service = r.Parents[0].Service
		}
	}
	e.history.Arrived(c)
}

// recordGrant records a ReferenceGrant like recordService; it may be for one Service.
func (e *Engine) recordGrant(n model.GrantName, g *model.Grant, at int64) {
	if !e.sourceSynced {
		return
	}
	c := history.Change{Kind: history.Grant, At: at, Namespace: n.Namespace, Name: n.Name, Deleted: g == nil, Known: e.tracker.HasGrant(n)}
	if g != nil && len(g.To) == 1 {
		c.Service = g.To[0]
	}
	e.history.Arrived(c)
}

// age is how long before its arrival something happened in the cluster; 0 when
// unknown. Clocks may differ.
func age(happened time.Time, at int64) time.Duration {
	if happened.IsZero() {
		return 0
	}
	return max(0, time.Duration(at-happened.UnixNano()))
}

func (e *Engine) recordInitialList(since time.Time) {
	_, seen := e.arrivals.read()
	e.history.Arrived(history.Change{
		Kind: history.InitialList, At: since.UnixNano(), Count: e.tracker.Len(),
		Detail: fmt.Sprintf("%d changes of Services, %d of EndpointSlices", seen.Services, seen.Slices),
	})
}

// recordHost records that the host is another one, by a change of an object or of
// the machine.
func (e *Engine) recordHost(of history.Kind, name string, since time.Time) {
	if e.sourceSynced {
		e.history.Arrived(history.Change{Kind: of, At: since.UnixNano(), Name: name})
	}
}

// recordSync records a sync that had changes to apply, or did something.
func (e *Engine) recordSync(start time.Time, r *Sync) {
	if r.idle() && !e.history.Waiting() {
		return
	}
	s := history.Sync{
		At: start.UnixNano(), Stages: r.Stages, Ports: r.Ports[0] + r.Ports[1],
		Created: r.Work.Verbs[ledger.Create], Replaced: r.Work.Verbs[ledger.Replace], Deleted: r.Work.Verbs[ledger.Delete],
		Commits: r.Work.Commits, Failed: r.Work.Failed, Deferred: r.Work.Deferred, Repaired: r.Repaired, Full: r.Full,
	}
	if r.Err != nil {
		s.Err = r.Err.Error()
	}
	e.history.Synced(s)
}
