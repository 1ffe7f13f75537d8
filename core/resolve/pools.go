// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// pools are the two sets of endpoints that policy chooses from. One without
// endpoints is nil. When both have the same members they are one.
type pools struct {
	cluster, local       *model.Pool
	whyCluster, whyLocal model.Reason
	passed               []endpoint // left out of cluster as they do not answer
	idle                 []int      // as in chosen
}

// choosePools makes the pools (KEP-1669, KEP-2086).
//
// The cluster's pool has the ready endpoints, narrowed by topology hints; when
// none is ready anywhere, those that still serve while they terminate. The
// local pool is chosen in the same way among this node's endpoints alone, and
// independently: a node whose last endpoint terminates continues to serve policy
// Local though other nodes have ready ones. Hints never narrow the local pool.
// Endpoints that have stopped answering are ejected last, and only in the
// cluster's pool (unanswered.go).
//
// Behind a route this is done for the endpoints of each of its backends.
func (r *Result) choosePools(host *model.Host, svc *model.Service, all []endpoint, route *Route) pools {
	var c chosen
	if route != nil {
		c = route.choose(host, svc, all)
	} else {
		c = choose(host, svc, all)
	}
	p := pools{
		cluster: r.pool(svc, c.cluster), local: r.pool(svc, c.local),
		whyCluster: c.whyCluster, whyLocal: c.whyLocal, passed: c.passed, idle: c.idle,
	}
	if p.local.Equal(p.cluster) {
		p.local = p.cluster
	}
	return p
}

func (r *Result) pool(svc *model.Service, from []endpoint) *model.Pool {
	if len(from) == 0 {
		return nil
	}
	p := &model.Pool{Endpoints: make([]model.Endpoint, len(from))}
	for i, e := range from {
		p.Endpoints[i] = model.Endpoint{Addr: e.addr, Local: e.local, NodeUnknown: e.nodeUnknown}
	}
	if most := r.index.mostSlots; len(from) <= most {
		weigh(p, from, most)
	} else if slices.ContainsFunc(from, func(e endpoint) bool { return e.share != from[0].share }) {
		r.Problem(svc, model.WhyTooLarge, "%d endpoints, weights are for %d at most: shared evenly", len(from), most)
	}
	return p
}

// draining returns the endpoints that serve but are in no pool: terminating
// ones while others are ready, and those that hints leave to other nodes. Those
// that have stopped answering keep nothing.
func draining(all []endpoint, p pools) (addrs []netip.AddrPort) {
	if p.cluster != nil && len(p.cluster.Endpoints) == len(all) {
		return nil // it has them all, as it has none twice
	}
	chosen := make(map[netip.AddrPort]bool, len(all))
	for _, pool := range []*model.Pool{p.cluster, p.local} {
		if pool == nil {
			continue
		}
		for _, e := range pool.Endpoints {
			chosen[e.Addr] = true
		}
	}
	for _, e := range p.passed {
		chosen[e.addr] = true
	}
	for _, e := range all {
		if e.state.Has(model.Serving) && !chosen[e.addr] {
			addrs = append(addrs, e.addr)
			chosen[e.addr] = true // several backends may have it
		}
	}
	return addrs
}
