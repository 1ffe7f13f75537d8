// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
)

// SetService adds or replaces a Service.
func (e *Engine) SetService(s *model.Service) {
	e.event(aService, s.Name, s, func(at int64) {
		e.recordService(s.Name, s, at)
		e.tracker.SetService(s)
	})
}

// DeleteService removes a Service.
func (e *Engine) DeleteService(n model.ServiceName) {
	e.event(aService, n, nil, func(at int64) {
		e.recordService(n, nil, at)
		e.tracker.DeleteService(n)
	})
}

// SetSlice adds or replaces an EndpointSlice.
func (e *Engine) SetSlice(s *model.Slice) {
	e.event(aSlice, model.ServiceName(s.Name), s, func(at int64) {
		e.recordSlice(s.Name, s, at)
		e.tracker.SetSlice(s)
	})
}

// DeleteSlice removes an EndpointSlice.
func (e *Engine) DeleteSlice(n model.SliceName) {
	e.event(aSlice, model.ServiceName(n), nil, func(at int64) {
		e.recordSlice(n, nil, at)
		e.tracker.DeleteSlice(n)
	})
}

// SetRoute adds or replaces a route of the Gateway API.
func (e *Engine) SetRoute(r *model.Route) {
	e.routeEvent(r.Name, r, func() { e.tracker.SetRoute(r) })
}

// DeleteRoute removes a route.
func (e *Engine) DeleteRoute(n model.RouteName) {
	e.routeEvent(n, nil, func() { e.tracker.DeleteRoute(n) })
}

// routeEvent queues a change of a route; r is nil where it was deleted.
func (e *Engine) routeEvent(n model.RouteName, r *model.Route, f func()) {
	at := time.Now().UnixNano()
	e.inbox.put(task{about: subject{aRoute, n.Namespace, n.Kind() + "/" + n.Name}, do: func(since time.Time) {
		e.recordRoute(n, r, at)
		f()
		e.change(since)
	}})
}

// SetGrant adds or replaces a ReferenceGrant of the Gateway API.
func (e *Engine) SetGrant(g *model.Grant) {
	e.grantEvent(g.Name, g, func() { e.tracker.SetGrant(g) })
}

// DeleteGrant removes a ReferenceGrant.
func (e *Engine) DeleteGrant(n model.GrantName) {
	e.grantEvent(n, nil, func() { e.tracker.DeleteGrant(n) })
}

// grantEvent queues a change of a grant; g is nil where it was deleted.
func (e *Engine) grantEvent(n model.GrantName, g *model.Grant, f func()) {
	at := time.Now().UnixNano()
	e.inbox.put(task{about: subject{aGrant, n.Namespace, n.Name}, do: func(since time.Time) {
		e.recordGrant(n, g, at)
		f()
		e.change(since)
	}})
}

// event queues a change of the inputs: an object that is set, or nil for one that is gone. F is given the moment
// of its arrival.
func (e *Engine) event(of kind, name model.ServiceName, in any, f func(at int64)) {
	t := task{about: subject{of, name.Namespace, name.Name}, of: Changes{Services: 1}, in: in}
	if of == aSlice {
		t.of = Changes{Slices: 1}
	}
	at := e.arrivals.add(t.of)
	t.do = func(since time.Time) {
		f(at)
		e.change(since)
	}
	e.inbox.put(t)
}

// SetNode sets or replaces a Node object. Of others than this machine's own the addresses count, which
// external IPs are not to take from them.
func (e *Engine) SetNode(n *model.Node) {
	if n.Name != e.options.NodeName {
		e.setOtherNode(n.Name, n.IPs)
	} else {
		e.inbox.put(task{about: subject{kind: theNode}, do: func(since time.Time) {
			e.node = completeNode(n, e.node)
			e.setHost(history.Node, n.Name, since)
			e.publish(func(s *Status) { s.Leaving = n.Leaving })
		}})
	}
}

// DeleteNode removes a Node object. This machine's own changes nothing: the last known one is kept, and its
// addresses and podCIDRs are until a new one has some.
func (e *Engine) DeleteNode(name string) {
	if name != e.options.NodeName {
		e.setOtherNode(name, nil)
	}
}

func (e *Engine) setOtherNode(name string, ips []netip.Addr) {
	e.inbox.put(task{about: subject{kind: otherNode, name: name}, do: func(since time.Time) {
		if e.tracker.SetOtherNode(name, ips) {
			e.change(since)
		}
	}})
}

// SetServiceCIDR adds or replaces a ServiceCIDR.
func (e *Engine) SetServiceCIDR(c *model.ServiceCIDR) {
	e.inbox.put(task{about: subject{kind: aServiceCIDR, name: c.Name}, do: func(since time.Time) {
		e.cidrs[c.Name] = c
		e.setHost(history.ServiceCIDR, c.Name, since)
	}})
}

// DeleteServiceCIDR removes a ServiceCIDR.
func (e *Engine) DeleteServiceCIDR(name string) {
	e.inbox.put(task{about: subject{kind: aServiceCIDR, name: name}, do: func(since time.Time) {
		delete(e.cidrs, name)
		e.setHost(history.ServiceCIDR, name, since)
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
	e.inbox.put(task{about: subject{kind: theMachine}, do: func(since time.Time) { e.setHost(history.Machine, "", since) }})
}

// Problems replaces the problems of a source. What is new is logged and counted,
// once the source has delivered everything: before that it may be over in a moment.
func (e *Engine) Problems(source string, ps []model.Problem) {
	e.inbox.put(task{about: subject{kind: problemsOf, name: source}, do: func(since time.Time) { e.setProblems(source, ps, since) }})
}

func (e *Engine) setProblems(source string, ps []model.Problem, since time.Time) {
	old := e.problems[source]
	e.keepProblems(source, ps, since)
	unfit := e.unfit()
	e.publish(func(s *Status) { s.Unfit = unfit })
	if e.sourceSynced {
		e.reportNew(ps, old)
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
	if old != nil && old.SameButZone(h) && old.SamePolicy(h) && old.Zone == h.Zone {
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
