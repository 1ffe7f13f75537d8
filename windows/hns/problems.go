// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"encoding/json"
	"net/netip"
	"slices"
)

// What of a table has no effect, or soon costs pods theirs.

// findingsOf returns what an endpoint adds to the findings.
func (t *table) findingsOf(e Endpoint) (n findings) {
	switch {
	case e.degraded() && e.remote():
		n.remote = 1
	case e.degraded():
		n.local = 1
	}
	if t.dsr && t.withoutLoopback(e) {
		n.loopback = 1
	}
	return n
}

// count adds the findings of an endpoint that comes, or takes away those of one that goes.
func (t *table) count(e Endpoint, by int) {
	n := t.findingsOf(e)
	t.now.remote += by * n.remote
	t.now.local += by * n.local
	t.now.loopback += by * n.loopback
}

// countBalancers counts those of load balancers, regardless of their owner.
func (t *table) countBalancers() {
	t.now.balancers = 0
	seen := map[string]bool{}
	for _, have := range t.balancers {
		if have.lb.degraded() && !seen[have.lb.ID] {
			t.now.balancers++
		}
		seen[have.lb.ID] = true
	}
}

// withoutLoopback reports whether an endpoint is a pod of this node that DSR keeps from
// reaching itself through a Service (Azure/AKS#2608, calico#5522). The CNI plug-ins
// win-bridge and win-overlay allow it, with loopbackDSR, by a policy OutBoundNAT
// whose destination is the pod itself.
func (t *table) withoutLoopback(e Endpoint) bool {
	return !e.remote() && e.Name != t.rootName && !slices.Contains(sourceNames[:], e.Name) && !hasLoopback(e)
}

func hasLoopback(e Endpoint) bool {
	own := addresses(e)
	return slices.ContainsFunc(e.Policies, func(p Policy) bool {
		var s struct{ Destinations []string }
		return p.Type == "OutBoundNAT" && json.Unmarshal(p.Settings, &s) == nil && slices.ContainsFunc(s.Destinations, func(to string) bool {
			a, err := netip.ParseAddr(to)
			return err == nil && slices.Contains(own, a)
		})
	})
}
