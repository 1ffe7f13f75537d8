// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// chosen are the endpoints of the two pools, and why.
type chosen struct {
	cluster, local       []endpoint
	whyCluster, whyLocal model.Reason
	passed               []endpoint
	idle                 []int // backends of a route with a weight and without an endpoint
}

func choose(host *model.Host, svc *model.Service, all []endpoint) chosen {
	c := chosen{whyCluster: model.WhyClusterEndpoints, whyLocal: model.WhyLocalEndpoints}
	if c.cluster = filter(all, ready); len(c.cluster) > 0 {
		c.cluster, c.whyCluster = applyHints(host, svc.Choice.Spill, c.cluster)
		if c.cluster, c.passed = passOver(c.cluster); len(c.passed) > 0 {
			c.whyCluster = model.WhyUnanswered
		}
	} else {
		c.cluster, c.whyCluster = filter(all, terminating), model.WhyTerminatingEndpoints
	}
	c.local = filter(all, func(e *endpoint) bool { return e.local && ready(e) })
	if len(c.local) == 0 {
		c.local, c.whyLocal = filter(all, func(e *endpoint) bool { return e.local && terminating(e) }), model.WhyTerminatingEndpoints
	}
	return c
}

// applyHints applies topology hints to ready endpoints (KEP-2433, KEP-3015,
// KEP-4444): those meant for this node, else those meant for its zone, else
// all. Hints count only when every ready endpoint has them, because a half
// hinted set means that the controller is still at work, and only when they
// leave at least one endpoint.
func applyHints(host *model.Host, s model.Spill, all []endpoint) ([]endpoint, model.Reason) {
	nodes := func(h *model.Hints) []string { return h.Nodes }
	zones := func(h *model.Hints) []string { return h.Zones }
	if meant, ok := hintedFor(host.Name, all, nodes); ok {
		return meant, model.WhyNodeHints
	}
	if meant, ok := hintedFor(host.Zone, all, zones); ok {
		if shared, spills := spill(s, host.Zone, all, meant); spills {
			return shared, model.WhyZoneSpill
		}
		return meant, model.WhyZoneHints
	}
	return all, model.WhyClusterEndpoints
}

// hintedFor returns the endpoints that hint at a place; ok is false when the
// hints cannot be followed.
func hintedFor(place string, all []endpoint, hints func(*model.Hints) []string) (meant []endpoint, ok bool) {
	if place == "" {
		return nil, false
	}
	for _, e := range all {
		if e.hints == nil || len(hints(e.hints)) == 0 {
			return nil, false
		}
		if slices.Contains(hints(e.hints), place) {
			meant = append(meant, e)
		}
	}
	return meant, len(meant) > 0
}
