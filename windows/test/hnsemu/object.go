// SPDX-License-Identifier: Apache-2.0

package hnsemu

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/windows/hns"
)

func (e *Emulator) create(r Request) (Response, hns.Code) {
	switch r.Kind {
	case Network:
		return e.createNetwork(r.Text)
	case Endpoint:
		return e.createEndpoint(r)
	case LoadBalancer:
		return e.createBalancer(r.Text)
	}
	return Response{}, notImplemented // rule: unimplemented
}

func (e *Emulator) createEndpoint(r Request) (Response, hns.Code) {
	h, ok := e.handles[r.Handle]
	if !ok || h.kind != Network {
		return Response{}, e.stale()
	}
	if _, ok := e.networks[h.id]; !ok {
		return Response{}, networkNotFound
	}
	var p hns.Endpoint
	kept, ok := asDocument(r.Text)
	if !ok || json.Unmarshal([]byte(r.Text), &p) != nil {
		return Response{}, invalidJSON
	}
	if len(p.IpConfigurations) == 0 {
		p.IpConfigurations = []hns.IpConfig{{IpAddress: e.allot(h.id), PrefixLength: 24}}
	}
	for _, c := range p.IpConfigurations {
		// rule: bad-address
		if _, err := netip.ParseAddr(c.IpAddress); err != nil {
			return Response{}, invalidIP
		}
		// rule: beside-a-pod
		// A remote endpoint may exist beside a pod of the same address
		// (kubernetes#130963), but not beside another remote one.
		if !e.behaviour.Twins && e.taken(c.IpAddress, h.id, p.Flags) {
			return Response{}, portExists
		}
	}
	if e.publishes(p) {
		return Response{}, portExists
	}
	var code hns.Code
	if p.ID, code = e.identity(p.ID); code != 0 {
		return Response{}, code
	}
	p.HostComputeNetwork = h.id
	e.endpoints[p.ID], e.kept[p.ID] = p, kept
	return Response{Handle: e.open(Endpoint, p.ID), ID: p.ID}, 0
}

// publishes reports whether an endpoint requests a port of the node that another
// one has.
//
// rule: published-port
func (e *Emulator) publishes(p hns.Endpoint) bool {
	type published struct{ Protocol, ExternalPort uint32 }
	ports := func(p hns.Endpoint) map[published]bool {
		all := map[published]bool{}
		for _, policy := range p.Policies {
			var m published
			if policy.Type == "PortMapping" && json.Unmarshal(policy.Settings, &m) == nil {
				all[m] = true
			}
		}
		return all
	}
	wanted := ports(p)
	for _, o := range e.endpoints {
		for m := range ports(o) {
			if wanted[m] {
				return true
			}
		}
	}
	return false
}

func (e *Emulator) createBalancer(settings string) (Response, hns.Code) {
	var lb hns.LoadBalancer
	if json.Unmarshal([]byte(settings), &lb) != nil {
		return Response{}, invalidJSON
	}
	var code hns.Code
	if lb.ID, code = e.identity(lb.ID); code != 0 {
		return Response{}, code
	}
	if code := e.valid(lb); code != 0 {
		return Response{}, code
	}
	e.keep(lb)
	e.appeared(lb)
	return Response{Handle: e.open(LoadBalancer, lb.ID), ID: lb.ID}, 0
}

// keep stores a load balancer, as HNS keeps it.
func (e *Emulator) keep(lb hns.LoadBalancer) {
	if e.behaviour.Echo != nil {
		e.behaviour.Echo(&lb)
	}
	e.balancers[lb.ID] = lb
}

// valid refuses what HNS refuses.
func (e *Emulator) valid(lb hns.LoadBalancer) hns.Code {
	// rule: needs-endpoints
	if len(lb.HostComputeEndpoints) == 0 {
		return invalidReference
	}
	// rule: needs-mapping
	if len(lb.PortMappings) == 0 {
		return invalidPolicy
	}
	// rule: endpoints-exist
	if e.missesEndpoints(lb) {
		return endpointNotFound
	}
	for _, o := range e.balancers {
		if o.ID != lb.ID && collide(o, lb) {
			if e.behaviour.Exists != 0 {
				return e.behaviour.Exists
			}
			return portExists // kubernetes#139519
		}
	}
	return 0
}

func (e *Emulator) missesEndpoints(lb hns.LoadBalancer) bool {
	return slices.ContainsFunc(lb.HostComputeEndpoints, func(id string) bool {
		_, ok := e.endpoints[strings.ToLower(id)]
		return !ok
	})
}

// uses reports whether a load balancer uses an endpoint.
func uses(lb hns.LoadBalancer, id string) bool {
	return slices.ContainsFunc(lb.HostComputeEndpoints, func(o string) bool { return strings.EqualFold(o, id) })
}

// collide reports whether two load balancers have a frontend in common.
//
// rule: one-frontend
func collide(a, b hns.LoadBalancer) bool {
	ports := slices.ContainsFunc(a.PortMappings, func(x hns.PortMapping) bool {
		return slices.ContainsFunc(b.PortMappings, func(y hns.PortMapping) bool {
			return x.Protocol == y.Protocol && x.ExternalPort == y.ExternalPort
		})
	})
	if len(a.FrontendVIPs) == 0 || len(b.FrontendVIPs) == 0 {
		return ports && len(a.FrontendVIPs) == len(b.FrontendVIPs) && a.Flags&hns.FlagIPv6 == b.Flags&hns.FlagIPv6
	}
	return ports && slices.ContainsFunc(a.FrontendVIPs, func(vip string) bool { return slices.Contains(b.FrontendVIPs, vip) })
}

// frontends returns what a load balancer answers on, as text.
func frontends(lb hns.LoadBalancer) (all []string) {
	vips := lb.FrontendVIPs
	if len(vips) == 0 {
		vips = []string{fmt.Sprintf("node(%d)", lb.Flags&hns.FlagIPv6)}
	}
	for _, vip := range vips {
		for _, m := range lb.PortMappings {
			all = append(all, fmt.Sprintf("%s/%d/%d", vip, m.Protocol, m.ExternalPort))
		}
	}
	return all
}

func (e *Emulator) modify(h handle, settings string) hns.Code {
	if h.kind != LoadBalancer {
		return e.modifyPolicies(h, settings)
	}
	have, ok := e.balancers[h.id]
	var to hns.LoadBalancer
	switch {
	case !ok:
		return notFound
	case e.version.Major < 15 || e.version.Major == 15 && e.version.Minor < 4:
		return notImplemented
	case json.Unmarshal([]byte(settings), &to) != nil:
		return invalidJSON
	// rule: modify
	case e.version == WS2025RT: // it reports success and does nothing (kubernetes#131466)
		return 0
	}
	to.ID = h.id
	if code := e.valid(to); code != 0 {
		return code
	}
	// rule: modify-frontends
	if !slices.Equal(frontends(have), frontends(to)) {
		return invalidPolicy
	}
	e.keep(to)
	return 0
}

func (e *Emulator) delete(k Kind, id string) hns.Code {
	switch k {
	case Network:
		return e.deleteNetwork(id)
	case Endpoint:
		return e.deleteEndpoint(id)
	case LoadBalancer:
		lb, ok := e.balancers[id]
		switch {
		case !ok:
			return notFound
		case e.behaviour.DeleteFailsOnce && !e.refused[id]:
			e.refused[id] = true
			return 0x1f // a device attached to the system is not functioning
		// rule: lost-endpoint
		case e.behaviour.Degrades && e.missesEndpoints(lb):
			return endpointNotFound
		}
		delete(e.balancers, id)
		e.vanished(lb)
		return 0
	}
	return notImplemented
}

// rule: in-use not-found
func (e *Emulator) deleteEndpoint(id string) hns.Code {
	if _, ok := e.endpoints[id]; !ok {
		return endpointNotFound
	}
	for _, lb := range e.balancers {
		if uses(lb, id) && !e.behaviour.DeleteInUse {
			return hasReferences
		}
	}
	if !e.behaviour.DeleteLies {
		e.dropEndpoint(id)
	}
	return 0
}
