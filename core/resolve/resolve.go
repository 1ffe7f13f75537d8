// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// Service resolves a Service with its slices, which must be sorted by name, and the
// routes that have it as a parent, in the order of their precedence. It
// gives one Port for each port and each IP family in which the Service has a
// cluster IP. Pools are in address order; see Reslot. The Service must be within
// the limits (Excess); of endpoints beyond them some are left out.
func Service(host *model.Host, svc *model.Service, from []*model.Slice, routes ...Route) Result {
	var r Result
	r.index = r.indexSlices(host, svc, from, routes)
	if svc.Name == APIService {
		if _, more := apiServers(from); more {
			r.Problem(svc, model.WhyTooLarge, "more than %d endpoints; only these are protected from other Services as API servers", MaxAPIServers)
		}
	}
	for _, family := range model.Families() {
		if !serves(svc, family) {
			continue
		}
		first, on := len(r.Ports), vips(svc, family)
		for _, port := range svc.Ports {
			r.port(host, svc, port, family, on)
		}
		r.setHealth(svc, r.Ports[first:])
	}
	return r
}

func (r *Result) port(host *model.Host, svc *model.Service, port model.ServicePort, family model.Family, on []vip) {
	id := model.PortID{Service: svc.Name, Name: port.Name, Proto: port.Proto, Family: family}
	if !r.first(id) {
		r.Problem(svc, model.WhyDuplicateFrontend, "a second port named %q (%s)", port.Name, port.Proto)
		return
	}
	addresses := slices.DeleteFunc(addressesOf(svc, port, family, on), func(a Address) bool {
		return !r.usable(host, svc, a)
	})
	r.reportClosed(svc, addresses)
	all := r.endpoints(host, svc, port, family, addresses)
	route := r.index.routes[routedPort{port.Name, port.Proto}]
	pools := r.choosePools(host, svc, all, route)
	r.countLocal(svc, all)
	p := &model.Port{ID: id, SessionAffinity: svc.SessionAffinity, Scheduler: r.schedule(svc, pools), PreserveDestination: svc.PreserveDestination, Frontends: frontends(host, svc, addresses, pools)}
	if route != nil {
		p.Route = &route.Name
		r.reportIdle(svc, route, id, pools)
	}
	if port.Proto != model.TCP {
		p.Draining = draining(all, pools)
	}
	r.Ports = append(r.Ports, p)
}

// usable reports whether a Service can have an address, and states why not.
func (r *Result) usable(host *model.Host, svc *model.Service, a Address) bool {
	no := reject(host, svc, a)
	switch {
	case no != rejection{}:
		r.Note(func() model.Problem { return no.problem(svc, a) })
	case !r.used.first(a):
		r.Problem(svc, model.WhyDuplicateFrontend, "%s %s (%s)", a.Kind, a.At, a.Proto)
	default:
		return true
	}
	return false
}

// healthPort returns the port on which load balancers ask whether this node has
// endpoints of a Service, or 0. Only policy Local makes that a question.
func healthPort(svc *model.Service) uint16 {
	if svc.Type == model.LoadBalancer && svc.External == model.Local {
		return svc.HealthCheckNodePort
	}
	return 0
}

// countLocal notes which of a port's endpoints a load balancer may count on: the
// ready ones of this node. Those that terminate still serve, but the balancer
// must send nothing new to them (KEP-1669).
func (r *Result) countLocal(svc *model.Service, all []endpoint) {
	if healthPort(svc) == 0 {
		return
	}
	for i := range all {
		if e := &all[i]; e.local && ready(e) {
			if r.local == nil {
				r.local = map[netip.Addr]struct{}{}
			}
			r.local[e.addr.Addr()] = struct{}{}
		}
	}
}

// setHealth sets the answer to load balancers' health checks on all ports of a family. A pod that
// serves several ports counts as one endpoint.
func (r *Result) setHealth(svc *model.Service, ports []*model.Port) {
	for _, p := range ports {
		p.HealthPort, p.LocalReady = healthPort(svc), len(r.local)
	}
	clear(r.local)
}

// reportClosed reports addresses that allow no client, for want of a source range of their
// family.
func (r *Result) reportClosed(svc *model.Service, addresses []Address) {
	for _, a := range addresses {
		if restricted(svc, a) && !slices.ContainsFunc(svc.SourceRanges, func(p netip.Prefix) bool {
			return model.FamilyOf(p.Addr()) == model.FamilyOf(a.At.Addr())
		}) {
			r.Problem(svc, model.WhyClosed, "%s %s", a.Kind, a.At.Addr())
		}
	}
}
