// SPDX-License-Identifier: Apache-2.0

package hnsemu

import (
	"strings"

	"github.com/tandem-proxy/tandem/windows/hns"
)

// AddNetwork adds a network, as a CNI plug-in does, and returns its id.
func (e *Emulator) AddNetwork(name, kind string, policies ...hns.Policy) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := hns.Network{ID: e.id(), Name: name, Type: kind, Policies: policies}
	e.networks[n.ID] = n
	return n.ID
}

// RemoveNetwork removes a network and the endpoints in it.
func (e *Emulator) RemoveNetwork(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dropNetwork(id)
}

// SetPolicies replaces a network's policies.
func (e *Emulator) SetPolicies(id string, policies ...hns.Policy) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := e.networks[id]
	n.Policies = policies
	e.networks[id] = n
}

// AddEndpoint adds another program's endpoint, such as that of a pod, and returns
// its id.
func (e *Emulator) AddEndpoint(p hns.Endpoint) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	p.ID = e.id()
	e.endpoints[p.ID] = p
	e.foreign[p.ID] = text(p)
	return p.ID
}

// Leave adds an endpoint that an earlier proxy has left, which may be deleted.
func (e *Emulator) Leave(p hns.Endpoint) string {
	id := e.AddEndpoint(p)
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.foreign, id)
	return id
}

// AddPod adds the endpoint of a pod of this node.
func (e *Emulator) AddPod(network string, addrs ...string) string {
	p := hns.Endpoint{Name: "pod-" + strings.Join(addrs, "-"), HostComputeNetwork: network, MacAddress: "00-15-5d-00-00-01"}
	for _, a := range addrs {
		p.IpConfigurations = append(p.IpConfigurations, hns.IpConfig{IpAddress: a, PrefixLength: 24})
	}
	return e.AddEndpoint(p)
}

// AddBalancer adds a load balancer, which if foreign must not be changed; else an earlier
// proxy has left it.
func (e *Emulator) AddBalancer(lb hns.LoadBalancer, foreign bool) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	lb.ID = e.id()
	e.balancers[lb.ID] = lb
	if foreign {
		e.foreign[lb.ID] = text(lb)
	}
	return lb.ID
}

// Remove removes objects of any kind, as another program would.
func (e *Emulator) Remove(ids ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, id := range ids {
		e.dropEndpoint(id)
		delete(e.balancers, id)
		delete(e.foreign, id)
	}
}

// Change changes a load balancer, as another program would.
func (e *Emulator) Change(id string, f func(*hns.LoadBalancer)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	lb := e.balancers[id]
	f(&lb)
	e.balancers[id] = lb
}

// Degrade sets the state of a load balancer that has lost its rules in the switch.
//
// rule: degraded
func (e *Emulator) Degrade(id string, state hns.Condition) {
	e.Change(id, func(lb *hns.LoadBalancer) { lb.State = state })
}

// SetEndpointState sets the state of an endpoint, such as that of one that has lost
// its port of the switch.
//
// rule: degraded
func (e *Emulator) SetEndpointState(id string, state hns.Condition) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.endpoints[id]
	p.State = state
	e.endpoints[id] = p
	if _, ok := e.foreign[id]; ok {
		e.foreign[id] = text(p)
	}
}
