// SPDX-License-Identifier: Apache-2.0

package hnsemu

import (
	"fmt"
	"maps"
	"slices"
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
	PortStays       bool     // the TCP port of a load balancer without DSR stays taken when that is deleted (kubernetes#137530); rule: port-stays
	Ports           int      // how many dynamic ports the node has, of which each load balancer without DSR takes 64; 0 for enough; rule: port-pool
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

// Normalise is an Echo of an HNS that drops the source VIP of load balancers with DSR, and
// adds a bit to the distribution type.
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
	answers   map[string]hns.Code // by experiment (answers.go)
	hook      func(*Call) hns.Code
	cost      func(Call) time.Duration
	down      bool
	wait      bool

	networks  map[string]hns.Network
	endpoints map[string]hns.Endpoint
	balancers map[string]hns.LoadBalancer
	kept      map[string]document // by id of a network or endpoint
	plain     map[handle]document // namespaces and SDN routes
	foreign   map[string]string   // ids of others' objects, and their contents
	macs      string              // of accelerated networking, as they were given
	refused   map[string]bool     // load balancers whose deletion was refused once
	left      map[uint16]bool     // TCP ports of load balancers without DSR that were deleted
	held      func(uint16) bool   // TCP ports that the node itself has; may be nil

	handles map[uint64]handle
	next    uint64 // the number of the last handle or id

	now     time.Duration // since the start, as calls make it pass
	log     []Call
	absent  map[string]time.Duration // frontends that were deleted, and when
	outages []Outage
}

type handle struct {
	kind Kind
	id   string
}

// New returns an HNS that holds nothing. It answers as a kept report of that version says,
// else as package contract expects.
func New(v hns.Version) *Emulator {
	e := &Emulator{
		version: v, answers: expectations(v),
		networks: map[string]hns.Network{}, endpoints: map[string]hns.Endpoint{}, balancers: map[string]hns.LoadBalancer{},
		kept: map[string]document{}, plain: map[handle]document{}, foreign: map[string]string{}, refused: map[string]bool{}, left: map[uint16]bool{}, handles: map[uint64]handle{}, absent: map[string]time.Duration{},
	}
	kept, err := Kept()
	if err != nil {
		panic(err) // they are part of the program, and TestReports reads them
	}
	for _, file := range slices.Sorted(maps.Keys(kept)) {
		if of, err := kept[file].Version(); err == nil && of == v {
			e.Learn(kept[file])
		}
	}
	return e
}

// Behave sets the faults.
func (e *Emulator) Behave(b Behaviour) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.behaviour = b
}

// Hold sets which TCP ports the node itself has, for a process that listens on all addresses or since
// they are excluded. Nil is none.
//
// rule: held-port
func (e *Emulator) Hold(held func(port uint16) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.held = held
}

// Hook sets a function that runs before each call: it may reject the call with a
// code, change the emulator through its methods, or block. Nil is none.
func (e *Emulator) Hook(f func(*Call) hns.Code) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hook = f
}

// Cost sets how long each call takes, by the emulator's clock. Without it a call takes a millisecond.
func (e *Emulator) Cost(f func(Call) time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cost = f
}

// Wait makes calls sleep for their cost, too: for tests in virtual time.
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

// id returns a new GUID.
func (e *Emulator) id() string {
	e.next++
	return fmt.Sprintf("00000000-0000-4000-8000-%012x", e.next)
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

// Outage is a time without a load balancer between two load balancers of a frontend.
type Outage struct {
	Frontend string // "VIP/protocol/port"
	For      time.Duration
}

// stale returns the code for an unknown handle.
//
// rule: handles
func (e *Emulator) stale() hns.Code {
	if e.behaviour.StaleHandle != 0 {
		return e.behaviour.StaleHandle
	}
	return invalidHandle
}

func (e *Emulator) open(k Kind, id string) uint64 {
	e.next++
	e.handles[e.next] = handle{k, id}
	return e.next
}

// has reports whether an object exists. The number of objects is not limited.
//
// rule: no-limits
func (e *Emulator) has(k Kind, id string) bool {
	_, ok := e.properties(handle{k, id})
	return ok
}

func (e *Emulator) properties(h handle) (string, bool) {
	switch h.kind {
	case Network:
		n, ok := e.networks[h.id]
		return e.kept[h.id].with(text(n)), ok
	case Endpoint:
		p, ok := e.endpoints[h.id]
		return e.kept[h.id].with(text(p)), ok
	case LoadBalancer:
		lb, ok := e.balancers[h.id]
		return text(lb), ok
	case Namespace, SdnRoute:
		d, ok := e.plain[h]
		return text(d), ok
	}
	return "", false
}
