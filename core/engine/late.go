// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"maps"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
)

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
		e.options.Log.Info("ranges of cluster IPs unknown; keeping those that are installed", "ranges", found)
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

// begin has syncs begin once the source has delivered everything that they wait for.
func (e *Engine) begin(since time.Time) {
	if e.sourceSynced || e.deliveredAt.IsZero() {
		return
	}
	if late := e.awaited(); late != "" {
		if e.adopted && e.status.Load().Awaited != late {
			e.options.Log.Warn("inputs unknown; keeping what is installed", "waiting", late, "limit", lateLimit)
			e.publish(func(s *Status) { s.Awaited = late })
		}
		return
	}
	if e.late() != "" && e.status.Load().Awaited != "" {
		e.options.Log.Warn("inputs still unknown; programming without them", "unknown", e.late(), "after", lateLimit)
	}
	// Earlier events have waited for the source, not for the data plane.
	e.sourceSynced, e.since, e.left = true, since, nil
	e.publish(func(s *Status) { s.Awaited, s.SourceSynced, s.QueuedAt = "", true, since })
	e.recordInitialList(since)
	for _, ps := range e.problems {
		e.reportNew(ps, nil)
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
// without any of an IP family may have endpoints in those: what an earlier run has left of it stays,
// until there is a slice, the Service goes, or everything is read.
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
	return widest(p) == 0 && !slices.ContainsFunc(e.tracker.Service(p.ID.Service).Slices, func(s *model.Slice) bool { return s.Family == p.ID.Family })
}

// firstOf is the first port by name.
func firstOf(ports map[model.PortID]*model.Port) model.PortID {
	return slices.MinFunc(slices.Collect(maps.Keys(ports)), model.PortID.Compare)
}
