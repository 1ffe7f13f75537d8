// SPDX-License-Identifier: Apache-2.0

package hnsemu

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/windows/hns"
)

// createNetwork makes a network.
//
// rule: networks
func (e *Emulator) createNetwork(settings string) (Response, hns.Code) {
	var n hns.Network
	kept, ok := asDocument(settings)
	if !ok || json.Unmarshal([]byte(settings), &n) != nil {
		return Response{}, e.answer("bad-json/network")
	}
	var code hns.Code
	if n.ID, code = e.identity(n.ID, "given-id/endpoint-in-use"); code != 0 {
		return Response{}, code
	}
	for _, o := range e.networks {
		if code := e.refusal(o.Name == n.Name && n.Name != "", "networks/same-name"); code != 0 {
			return Response{}, code
		}
	}
	n.Ipams = nil // kept, with what hns leaves out of them
	e.networks[n.ID], e.kept[n.ID] = n, kept
	return Response{Handle: e.open(Network, n.ID), ID: n.ID}, 0
}

// identity returns the id of a new object: the requested one, if any. If that is in use and HNS
// accepts it nevertheless, the object gets another one.
//
// rule: given-id
func (e *Emulator) identity(asked, inUse string) (string, hns.Code) {
	id := strings.ToLower(asked)
	if id == "" {
		return e.id(), 0
	}
	for k := Network; k <= SdnRoute; k++ {
		if e.has(k, id) {
			return e.id(), e.answer(inUse)
		}
	}
	return id, 0
}

func (e *Emulator) deleteNetwork(id string) hns.Code {
	if _, ok := e.networks[id]; !ok {
		return e.answer("not-found/delete-network")
	}
	e.dropNetwork(id)
	return 0
}

// dropNetwork removes a network with the endpoints in it.
//
// rule: networks
func (e *Emulator) dropNetwork(id string) {
	delete(e.networks, id)
	delete(e.kept, id)
	for i, p := range e.endpoints {
		if p.HostComputeNetwork == id {
			e.dropEndpoint(i)
			delete(e.foreign, i)
		}
	}
}

// dropEndpoint removes an endpoint, even one in use.
//
// rule: lost-endpoint
func (e *Emulator) dropEndpoint(id string) {
	delete(e.endpoints, id)
	delete(e.kept, id)
	for i, lb := range e.balancers {
		if e.behaviour.Degrades && uses(lb, id) {
			lb.State = hns.StateDegraded
			e.balancers[i] = lb
		}
	}
}

// policyRequest is a modification of a network's or an endpoint's policies.
type policyRequest struct {
	ResourceType string
	RequestType  string
	Settings     struct{ Policies []hns.Policy }
}

// modifyPolicies changes the policies of a network or an endpoint, all that the emulator can
// modify of these.
func (e *Emulator) modifyPolicies(h handle, settings string) hns.Code {
	var r policyRequest
	if json.Unmarshal([]byte(settings), &r) != nil {
		return invalidJSON
	}
	if r.ResourceType != "Policy" {
		return notImplemented
	}
	n, isNetwork := e.networks[h.id]
	p, isEndpoint := e.endpoints[h.id]
	var ok bool
	switch {
	case h.kind == Network && isNetwork:
		n.Policies, ok = r.apply(n.Policies)
		e.networks[h.id] = n
	case h.kind == Endpoint && isEndpoint:
		p.Policies, ok = r.apply(p.Policies)
		e.endpoints[h.id] = p
	default:
		return notFound
	}
	if !ok {
		return notImplemented
	}
	return 0
}

// apply returns the policies after a request.
//
// rule: policies
func (r policyRequest) apply(have []hns.Policy) (policies []hns.Policy, ok bool) {
	switch r.RequestType {
	case "Add":
		return append(slices.Clone(have), r.Settings.Policies...), true
	case "Update":
		return r.Settings.Policies, true
	case "Remove":
		return slices.DeleteFunc(slices.Clone(have), func(p hns.Policy) bool {
			return slices.ContainsFunc(r.Settings.Policies, func(o hns.Policy) bool {
				return p.Type == o.Type && string(p.Settings) == string(o.Settings)
			})
		}), true
	}
	return have, false
}

// subnets returns the subnets of a network.
func (e *Emulator) subnets(network string) (all []netip.Prefix) {
	var settings struct {
		Ipams []struct {
			Subnets []struct{ IpAddressPrefix string }
		}
		Subnets []struct{ AddressPrefix string } // schema 1
	}
	if json.Unmarshal([]byte(text(e.kept[network])), &settings) != nil {
		return nil
	}
	add := func(text string) {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p.Masked())
		}
	}
	for _, s := range settings.Subnets {
		add(s.AddressPrefix)
	}
	for _, i := range settings.Ipams {
		for _, s := range i.Subnets {
			add(s.IpAddressPrefix)
		}
	}
	return all
}

// podSubnet is the first subnet of a network: that of this node's pods.
func (e *Emulator) podSubnet(network string) netip.Prefix {
	if all := e.subnets(network); len(all) > 0 {
		return all[0]
	}
	return netip.MustParsePrefix("10.244.1.0/24")
}

// allot returns the lowest free address of this node's pods. The first is the
// gateway's.
//
// rule: allotted
func (e *Emulator) allot(network string) string {
	a := e.podSubnet(network).Addr().Next().Next()
	for e.taken(a.String(), network, 0) {
		a = a.Next()
	}
	return a.String()
}

// rule: twins
func (e *Emulator) taken(addr, network string, flags uint32) bool {
	for _, o := range e.endpoints {
		if o.HostComputeNetwork == network && o.Flags == flags &&
			slices.ContainsFunc(o.IpConfigurations, func(c hns.IpConfig) bool { return c.IpAddress == addr }) {
			return true
		}
	}
	return false
}
