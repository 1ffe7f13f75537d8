// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// most is how many endpoints a load balancer of HNS takes (kubernetes.io,
// "Networking on Windows").
const most = 1024

// balancer makes the load balancer of a frontend, nil when HNS can reach none of
// the endpoints.
func (p *portCompiler) balancer(f *model.Frontend, act model.Action) *Balancer {
	keep := p.keeps(f)
	usable := p.usable(f, act.Pool.Endpoints)
	switch {
	case keep:
		usable = p.local(f, usable, "to other nodes HNS cannot keep the destination")
	case f.Kind == model.KindNodePort && p.preserves():
		usable = p.local(f, usable, "health checks of a preserve-destination Service must not reach other nodes")
	}
	if len(usable) == 0 {
		return nil
	}
	b := &Balancer{
		Port:                usable[0].Addr.Port(),
		External:            f.Kind != model.KindClusterIP,
		SessionAffinity:     p.port.SessionAffinity > 0,
		PreserveDestination: keep,
	}
	b.DSR = p.options.DSR && (!act.SNAT || keep)
	if f.Kind == model.KindClusterIP {
		b.DSR = p.options.DSR && p.options.ClientDSR
	} else if !act.SNAT && !b.DSR {
		p.gap(f, "endpoints do not see their clients' addresses: this HNS has no DSR")
	}
	b.Endpoints = make([]Target, len(usable))
	for i, e := range usable {
		b.Endpoints[i] = Target{e.Addr.Addr(), e.Local}
	}
	slices.SortFunc(b.Endpoints, func(a, b Target) int { return a.Addr.Compare(b.Addr) })
	return b
}

// keeps reports whether endpoints see the frontend's address as the destination.
func (p *portCompiler) keeps(f *model.Frontend) bool {
	if f.Kind != model.KindLoadBalancer || !p.port.PreserveDestination {
		return false
	}
	if !p.options.DSR {
		p.gap(f, "endpoints see their own address as the destination: this HNS has no DSR")
	}
	return p.options.DSR
}

// preserves reports whether the Service asks for its destination to be preserved,
// and HNS can do that.
func (p *portCompiler) preserves() bool { return p.port.PreserveDestination && p.options.DSR }

// local returns the endpoints of this node, and states why the others are left out.
func (p *portCompiler) local(f *model.Frontend, all []model.Endpoint, why string) []model.Endpoint {
	before := len(all)
	local := slices.DeleteFunc(all, func(e model.Endpoint) bool { return !e.Local })
	if n := before - len(local); n > 0 {
		p.gap(f, "%d of %d endpoints are left out: %s", n, before, why)
	}
	return local
}

// usable returns the endpoints that one load balancer can have: with an endpoint
// in HNS, all on one port, and not too many.
func (p *portCompiler) usable(f *model.Frontend, all []model.Endpoint) []model.Endpoint {
	usable := make([]model.Endpoint, 0, len(all))
	for _, e := range all {
		// What shares the host's network has no endpoint on this node.
		if !slices.Contains(p.host.IPs, e.Addr.Addr()) {
			usable = append(usable, e)
		}
	}
	if n := len(all) - len(usable); n > 0 {
		p.gap(f, "%d of %d endpoints are left out: HNS has no endpoint for the node's own address", n, len(all))
	}
	if port, mixed := commonest(usable); mixed {
		before := len(usable)
		usable = slices.DeleteFunc(usable, func(e model.Endpoint) bool { return e.Addr.Port() != port })
		p.gap(f, "%d of %d endpoints are left out: they are not on port %d, and HNS has one port for all", before-len(usable), before, port)
	}
	if len(usable) > most {
		p.gap(f, "%d of %d endpoints are left out: HNS takes %d", len(usable)-most, len(usable), most)
		usable = usable[:most] // the slots are stable, so these stay the same
	}
	return usable
}

// commonest returns the port that most endpoints have, the lowest of several,
// and whether there are others.
func commonest(all []model.Endpoint) (port uint16, mixed bool) {
	if !slices.ContainsFunc(all, func(e model.Endpoint) bool { return e.Addr.Port() != all[0].Addr.Port() }) {
		return 0, false
	}
	count := map[uint16]int{}
	for _, e := range all {
		count[e.Addr.Port()]++
	}
	for n, c := range count {
		if best := count[port]; c > best || c == best && n < port {
			port = n
		}
	}
	return port, true
}
