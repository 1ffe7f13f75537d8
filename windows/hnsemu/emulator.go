// SPDX-License-Identifier: Apache-2.0

package hnsemu

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/windows/hns"
)

// The versions of HNS that nodes have. That of Windows Server 2022 is assumed.
//
// rule: versions version-2004 version-2022
var (
	WS2019   = hns.Version{Major: 9, Minor: 5}
	WS2004   = hns.Version{Major: 11, Minor: 10}
	WS2022   = hns.Version{Major: 13, Minor: 2}
	WS2025RT = hns.Version{Major: 15, Minor: 4} // as it was released
	WS2025   = hns.Version{Major: 15, Minor: 5}
)

// Behaviour are the known faults of HNS, each as seen in the field. The zero
// value has none but those of the version.
type Behaviour struct {
	DeleteFailsOnce bool     // the first deletion of each load balancer is refused (kubernetes#113524); rule: delete-fails
	DeleteLies      bool     // deletions of endpoints succeed and do nothing (Windows-Containers#631); rule: delete-lies
	DeleteInUse     bool     // endpoints that load balancers use can be deleted
	Degrades        bool     // deleting an endpoint in use degrades its load balancers, which cannot be deleted then
	Twins           bool     // two remote endpoints can have one address
	Exists          hns.Code // what a second load balancer of a frontend is refused with; 0x803b0013 if 0
	StaleHandle     hns.Code // what a handle from before a restart of HNS is answered with; 6 if 0

	// Echo changes load balancers before they are kept: HNS does not keep all
	// settings as it is given them. Nil keeps them.
	Echo func(*hns.LoadBalancer)
}

// DropExternal is an Echo of an HNS that does not know VipExternalIP (calico#7305).
//
// rule: drops-external
func DropExternal(lb *hns.LoadBalancer) {
	for i := range lb.PortMappings {
		lb.PortMappings[i].Flags &^= hns.FlagVIPExternalIP
	}
}

// Normalise is an Echo of an HNS that fills in the source VIP of load balancers
// with DSR, and the default distribution.
//
// rule: normalises
func Normalise(lb *hns.LoadBalancer) {
	if lb.Flags&hns.FlagDSR != 0 {
		lb.SourceVIP = ""
	}
	for i := range lb.PortMappings {
		lb.PortMappings[i].DistributionType |= 4
	}
}

// Emulator is an HNS in memory. It is safe for concurrent use.
type Emulator struct {
	mu        sync.Mutex
	version   hns.Version
	behaviour Behaviour
	hook      func(*Call) hns.Code
	cost      func(Call) time.Duration
	down      bool
	wait      bool

	networks  map[string]hns.Network
	endpoints map[string]hns.Endpoint
	balancers map[string]hns.LoadBalancer
	kept      map[string]document // by id of a network or endpoint
	foreign   map[string]string   // ids of what others made, and how it looked
	macs      string              // of accelerated networking, as they were given
	refused   map[string]bool     // load balancers whose deletion was refused once

	handles map[uint64]handle
	next    uint64 // the number of the last handle or id

	now    time.Duration // since the start, as calls make it pass
	log    []Call
	absent map[string]time.Duration // frontends that were deleted, and when
	gaps   []Gap
}

type handle struct {
	kind Kind
	id   string
}

// New returns an HNS that holds nothing.
func New(v hns.Version) *Emulator {
	return &Emulator{
		version:  v,
		networks: map[string]hns.Network{}, endpoints: map[string]hns.Endpoint{}, balancers: map[string]hns.LoadBalancer{},
		kept: map[string]document{}, foreign: map[string]string{}, refused: map[string]bool{}, handles: map[uint64]handle{}, absent: map[string]time.Duration{},
	}
}

// Behave sets the faults.
func (e *Emulator) Behave(b Behaviour) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.behaviour = b
}

// Hook sets a function that is asked before each call: it may refuse it with a
// code, change the emulator by its methods in capitals ending in Locked, or
// block. Nil is none.
func (e *Emulator) Hook(f func(*Call) hns.Code) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hook = f
}

// Cost sets how long each call takes, in the emulator's own time: nobody waits.
// Without it a call takes a millisecond.
func (e *Emulator) Cost(f func(Call) time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cost = f
}

// Wait makes calls take their cost of the caller's clock, too: for tests in virtual
// time.
func (e *Emulator) Wait(wait bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wait = wait
}

// Down stops HNS, or starts it again with all its state. Handles are lost.
//
// rule: restarted
func (e *Emulator) Down(down bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.down = down
	clear(e.handles)
}

// Degrade sets the state of a load balancer that has lost its rules in the switch.
//
// rule: degraded
func (e *Emulator) Degrade(id string, state uint32) {
	e.Change(id, func(lb *hns.LoadBalancer) { lb.State = state })
}

// SetEndpointState sets the state of an endpoint, such as that of one that has lost
// its port of the switch.
//
// rule: degraded
func (e *Emulator) SetEndpointState(id string, state uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.endpoints[id]
	p.State = state
	e.endpoints[id] = p
	if _, ok := e.foreign[id]; ok {
		e.foreign[id] = text(p)
	}
}

// id makes a GUID.
func (e *Emulator) id() string {
	e.next++
	return fmt.Sprintf("00000000-0000-4000-8000-%012x", e.next)
}

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

// AddEndpoint adds somebody else's endpoint, such as that of a pod, and returns
// its id.
func (e *Emulator) AddEndpoint(p hns.Endpoint) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	p.ID = e.id()
	e.endpoints[p.ID] = p
	e.foreign[p.ID] = text(p)
	return p.ID
}

// Leave adds an endpoint that an earlier proxy has left: it may be deleted.
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

// AddBalancer adds a load balancer. A foreign one must never be touched; one that
// is not is what an earlier proxy has left.
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

// Remove removes objects behind everybody's back, whatever they are.
func (e *Emulator) Remove(ids ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, id := range ids {
		e.dropEndpoint(id)
		delete(e.balancers, id)
		delete(e.foreign, id)
	}
}

// Change changes a load balancer behind everybody's back.
func (e *Emulator) Change(id string, f func(*hns.LoadBalancer)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	lb := e.balancers[id]
	f(&lb)
	e.balancers[id] = lb
}

// Balancers returns all load balancers, in the order of their ids.
func (e *Emulator) Balancers() []hns.LoadBalancer {
	e.mu.Lock()
	defer e.mu.Unlock()
	return sorted(e.balancers)
}

// Endpoints returns all endpoints, in the order of their ids.
func (e *Emulator) Endpoints() []hns.Endpoint {
	e.mu.Lock()
	defer e.mu.Unlock()
	return sorted(e.endpoints)
}
