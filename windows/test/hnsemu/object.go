// SPDX-License-Identifier: Apache-2.0

package hnsemu

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
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
	case Namespace, SdnRoute:
		return e.createPlain(r.Kind, r.Text)
	}
	return Response{}, notImplemented
}

func (e *Emulator) createEndpoint(r Request) (Response, hns.Code) {
	h, ok := e.handles[r.Handle]
	if !ok || h.kind != Network {
		return Response{}, e.stale()
	}
	if _, ok := e.networks[h.id]; !ok {
		return Response{}, e.answer("not-found/open-network")
	}
	var p hns.Endpoint
	kept, ok := asDocument(r.Text)
	if !ok || json.Unmarshal([]byte(r.Text), &p) != nil {
		return Response{}, e.answer("bad-json/endpoint")
	}
	if len(p.IpConfigurations) == 0 {
		p.IpConfigurations = []hns.IpConfig{{IpAddress: e.allot(h.id), PrefixLength: 24}}
	}
	code := e.refusal(e.publishes(p), "published-port/second")
	for _, c := range p.IpConfigurations {
		code = cmp.Or(e.addressed(c.IpAddress, h.id, p.Flags), code)
	}
	if code != 0 {
		return Response{}, code
	}
	if p.ID, code = e.identity(p.ID, "given-id/endpoint-in-use"); code != 0 {
		return Response{}, code
	}
	p.HostComputeNetwork = h.id
	e.endpoints[p.ID], e.kept[p.ID] = p, kept
	return Response{Handle: e.open(Endpoint, p.ID), ID: p.ID}, 0
}

// addressed returns the code with which HNS rejects an endpoint's address; 0 for none.
//
// rule: bad-address beside-a-pod twins
func (e *Emulator) addressed(addr, network string, flags uint32) hns.Code {
	a, err := netip.ParseAddr(addr)
	if err != nil {
		return e.answer("bad-address/text")
	}
	subnets, local := e.subnets(network), flags&hns.FlagRemote == 0
	ofFamily := func(p netip.Prefix) bool { return p.Addr().Is4() == a.Is4() }
	outside := slices.ContainsFunc(subnets, ofFamily) && !model.Contains(subnets, a)
	same := "twins/local"
	if !local {
		same = "twins/remote"
	}
	return cmp.Or(
		e.refusal(outside && local, "bad-address/outside"),
		e.refusal(outside && !local, "bad-address/remote-outside"),
		e.refusal(local && slices.ContainsFunc(subnets, func(p netip.Prefix) bool { return a == p.Addr().Next() }), "bad-address/gateway"),
		e.refusal(!e.behaviour.Twins && e.taken(addr, network, flags), same),
		e.refusal(!local && e.taken(addr, network, 0), "beside-a-pod/remote"),
	)
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
		return Response{}, e.answer("bad-json/balancer")
	}
	var code hns.Code
	if lb.ID, code = e.identity(lb.ID, "given-id/balancer-in-use"); code != 0 {
		return Response{}, code
	}
	if code := cmp.Or(e.valid(lb), e.stack(lb)); code != 0 {
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

// valid returns the code with which HNS rejects a load balancer; 0 for none.
//
// rule: needs-endpoints needs-mapping endpoints-exist
func (e *Emulator) valid(lb hns.LoadBalancer) hns.Code {
	return cmp.Or(
		e.refusal(len(lb.HostComputeEndpoints) == 0, "needs-endpoints/none"),
		e.refusal(len(lb.PortMappings) == 0, "needs-mapping/none"),
		e.refusal(e.missesEndpoints(lb), "endpoints-exist/absent"),
		e.conflicts(lb),
	)
}

// conflicts returns the code with which HNS rejects a load balancer if another one has one of
// its frontends.
//
// rule: one-frontend
func (e *Emulator) conflicts(lb hns.LoadBalancer) hns.Code {
	for _, o := range e.balancers {
		switch {
		case o.ID == lb.ID || !collide(o, lb):
		case e.behaviour.Exists != 0:
			return e.behaviour.Exists
		case len(lb.FrontendVIPs) == 0:
			return e.answer("one-frontend/node-port")
		default:
			return e.answer("one-frontend/same")
		}
	}
	return 0
}

// portsEach is how many dynamic ports a load balancer without DSR takes.
const portsEach = 64

// stack returns the code with which HNS rejects a load balancer for which the node's TCP stack has no
// ports. With DSR it needs none.
//
// rule: port-pool held-port port-stays
func (e *Emulator) stack(lb hns.LoadBalancer) hns.Code {
	b := e.behaviour
	held := e.held != nil && slices.ContainsFunc(tcpPorts(lb), e.held)
	if lb.Flags&hns.FlagDSR != 0 {
		return e.refusal(held, "held-port/dsr")
	}
	needed := portsEach
	for _, o := range e.balancers {
		if o.Flags&hns.FlagDSR == 0 {
			needed += portsEach
		}
	}
	left := slices.ContainsFunc(tcpPorts(lb), func(port uint16) bool { return e.left[port] })
	stays := "port-stays/vip"
	if len(lb.FrontendVIPs) == 0 {
		stays = "port-stays/node-port"
	}
	if b.Ports != 0 && needed > b.Ports || b.PortStays && left {
		return portExists
	}
	return cmp.Or(e.refusal(held, "held-port/listener"), e.refusal(left, stays))
}

// tcpPorts are the TCP ports that clients of a load balancer connect to.
func tcpPorts(lb hns.LoadBalancer) (ports []uint16) {
	for _, m := range lb.PortMappings {
		if m.Protocol == uint32(model.TCP) {
			ports = append(ports, m.ExternalPort)
		}
	}
	return ports
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

// frontends returns the frontends of a load balancer as "VIP/protocol/port".
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
	switch h.kind {
	case Network, Endpoint:
		return e.modifyPolicies(h, settings)
	case Namespace:
		return e.modifyNamespace(h, settings)
	case SdnRoute: // hcsshim replaces routes
		return notImplemented
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
	if code := e.refusal(!slices.Equal(frontends(have), frontends(to)), "modify-frontends/vip"); code != 0 {
		return code
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
			return e.answer("not-found/delete-balancer")
		case e.behaviour.DeleteFailsOnce && !e.refused[id]:
			e.refused[id] = true
			return 0x1f // ERROR_GEN_FAILURE
		// rule: lost-endpoint
		case e.behaviour.Degrades && e.missesEndpoints(lb):
			return e.answer("endpoints-exist/absent")
		}
		delete(e.balancers, id)
		e.vanished(lb)
		if lb.Flags&hns.FlagDSR == 0 {
			for _, port := range tcpPorts(lb) {
				e.left[port] = true
			}
		}
		return 0
	case Namespace, SdnRoute:
		if !e.has(k, id) {
			return notFound
		}
		delete(e.plain, handle{k, id})
		return 0
	}
	return notImplemented
}

// rule: in-use not-found
func (e *Emulator) deleteEndpoint(id string) hns.Code {
	if _, ok := e.endpoints[id]; !ok {
		return e.answer("not-found/delete-endpoint")
	}
	for _, lb := range e.balancers {
		if code := e.refusal(uses(lb, id) && !e.behaviour.DeleteInUse, "in-use/endpoint"); code != 0 {
			return code
		}
	}
	if !e.behaviour.DeleteLies {
		e.dropEndpoint(id)
	}
	return 0
}
