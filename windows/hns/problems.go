// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"encoding/json"
	"net/netip"
	"slices"
)

// What of a table has no effect, or soon costs pods theirs.

// findings counts what has no effect. With dsr pods need loopback DSR.
func (t *table) findings(dsr bool) (n findings) {
	seen := map[string]bool{}
	for _, have := range t.balancers {
		if have.lb.degraded() && !seen[have.lb.ID] {
			n.balancers++
		}
		seen[have.lb.ID] = true
	}
	for _, e := range t.endpoints {
		switch {
		case e.degraded() && e.remote():
			n.remote++
		case e.degraded():
			n.local++
		}
	}
	n.unmapped = t.unmapped
	if dsr {
		n.loopback = t.withoutLoopback()
	}
	return n
}

// withoutLoopback counts the pods of this node that DSR keeps from reaching
// themselves through a Service (Azure/AKS#2608, calico#5522). The CNI plug-ins
// win-bridge and win-overlay allow it, with loopbackDSR, by a policy OutBoundNAT
// whose destination is the pod itself.
func (t *table) withoutLoopback() (n int) {
	for _, e := range t.endpoints {
		if !e.remote() && e.Name != t.rootName && !slices.Contains(sourceNames[:], e.Name) && !hasLoopback(e) {
			n++
		}
	}
	return n
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

// withoutDSR counts the load balancers that answers go back through, regardless of their owner.
func (t *table) withoutDSR() (n int) {
	seen := map[string]bool{}
	for _, have := range t.balancers {
		if !seen[have.lb.ID] && have.lb.Flags&FlagDSR == 0 {
			n++
		}
		seen[have.lb.ID] = true
	}
	return n
}
