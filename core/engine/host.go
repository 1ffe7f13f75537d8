package engine

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// SetServiceCIDR adds or replaces a ServiceCIDR.
func (e *Engine) SetServiceCIDR(c *model.ServiceCIDR) {
	e.inbox.put(task{about: subject{kind: aServiceCIDR, name: c.Name}, do: func(e *Engine, since time.Time) {
		e.cidrs[c.Name] = c
		e.setHost(since)
	}})
}

// DeleteServiceCIDR removes a ServiceCIDR.
func (e *Engine) DeleteServiceCIDR(name string) {
	e.inbox.put(task{about: subject{kind: aServiceCIDR, name: name}, do: func(e *Engine, since time.Time) {
		delete(e.cidrs, name)
		e.setHost(since)
	}})
}

func (e *Engine) serviceCIDRs() []*model.ServiceCIDR {
	return slices.SortedFunc(maps.Values(e.cidrs), func(a, b *model.ServiceCIDR) int { return cmp.Compare(a.Name, b.Name) })
}

// remember returns a Node with what it lacks and had before: one that is made again
// gets its addresses and podCIDRs later, and is the same machine meanwhile.
func remember(n, before *model.Node) *model.Node {
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

// setHost asks what the host is now, and has everything follow from that.
func (e *Engine) setHost(since time.Time) {
	h, old := e.Host(e.node, e.serviceCIDRs()), e.tracker.Host()
	if old != nil && old.SameButZone(h) && old.SamePolicy(h) && old.Zone == h.Zone {
		return
	}
	e.full = e.full || old == nil || !old.SamePorts(h)
	e.tracker.SetHost(h)
	e.Backend.SetHost(h)
	e.change(since)
}
