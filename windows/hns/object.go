// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
)

// Key names an object.
type Key struct {
	Kind  Kind
	Proto model.Proto // of a balancer, or of surplus ones
	Port  uint16      // same: what clients connect to
	// Addr is the address of an endpoint or of a balancer's frontend; the
	// unspecified one of the family for node ports and for KindNode.
	Addr netip.Addr
}

// Kind is the kind of an object.
type Kind uint8

// The kinds, in the order of their creation.
const (
	// KindNode is this node's own address. HNS holds no such object: it is what
	// the driver must know before it makes the others.
	KindNode Kind = iota
	// KindSource is the endpoint of an overlay's source VIP.
	KindSource
	// KindRemote is a remote endpoint: a pod, or host, of another node.
	KindRemote
	// KindVIP is a remote endpoint that makes a cluster IP reachable on an
	// overlay network: it leads to this node.
	KindVIP
	// KindBalancer is a load balancer of one frontend.
	KindBalancer
	// KindDuplicate is a remote endpoint with the address of a pod of this node,
	// no matter who made it. It is never wanted: while it exists the pod has no network
	// (Windows-Containers#631).
	KindDuplicate
	// KindSurplus are load balancers of ours that a frontend has beside its own, and those
	// with several frontends or with none: then the port is 0. They are never wanted: which of
	// two HNS takes is unknown.
	KindSurplus
)

// nodeAddress is where a node's own address of a family is kept.
func nodeAddress(f model.Family) Key { return Key{Kind: KindNode, Addr: f.Unspecified()} }

// sourceKey is where the source VIP's endpoint is kept. Overlays have no IPv6.
func sourceKey() Key { return Key{Kind: KindSource, Addr: model.IPv4.Unspecified()} }

// String returns the object's name for people.
func (k Key) String() string {
	switch k.Kind {
	case KindNode:
		return "node address " + model.FamilyOf(k.Addr).String()
	case KindSource:
		return "source VIP endpoint"
	case KindDuplicate:
		return "duplicate endpoint " + k.Addr.String()
	case KindRemote:
		return "remote endpoint " + k.Addr.String()
	case KindVIP:
		return "VIP endpoint " + k.Addr.String()
	case KindSurplus:
		return "surplus load balancer " + k.frontend()
	}
	return "load balancer " + k.frontend()
}

func (k Key) frontend() string {
	if k.Port == 0 {
		return k.Addr.String() + " without a frontend"
	}
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(k.Addr, k.Port), k.Proto)
}

// surplus names the surplus load balancers of a balancer's frontend.
func (k Key) surplus() Key {
	k.Kind = KindSurplus
	return k
}

// compare orders keys: endpoints before balancers, by address.
func (k Key) compare(o Key) int {
	if k.Kind != o.Kind {
		return int(k.Kind) - int(o.Kind)
	}
	if c := k.Addr.Compare(o.Addr); c != 0 {
		return c
	}
	if k.Port != o.Port {
		return int(k.Port) - int(o.Port)
	}
	return int(k.Proto) - int(o.Proto)
}

// Value is the content of an object. Remote endpoints have none: their node
// follows from their address and the network.
type Value struct {
	// Node is this node's own address in the family; the zero value while it is
	// not known. Balancers may need it as a source, VIP endpoints as a target.
	Node     netip.Addr
	Balancer *Balancer // of KindBalancer; immutable

	// Drift states how an installed object differs in what only the driver knows,
	// such as ids. It is empty in everything that is compiled.
	Drift string
}

// Balancer is a load balancer without its frontend.
type Balancer struct {
	Endpoints           []Target // in address order, none twice, never empty
	Port                uint16   // where all of them listen
	DSR                 bool     // answers go directly to the client, whose address is kept
	External            bool     // for clients beyond this node too
	SessionAffinity     bool     // all connections of a client go to one endpoint
	PreserveDestination bool     // endpoints see the frontend's address as the destination
}

// Target is an endpoint of a Balancer.
type Target struct {
	Addr  netip.Addr
	Local bool // a pod of this node: its CNI plug-in makes the endpoint
}

// self is this node as a target, with the unspecified address: the endpoint that
// represents it is known by its name (Settings.Root).
func self(f model.Family) Target { return Target{f.Unspecified(), true} }

// String returns the target for people.
func (t Target) String() string {
	if t.Addr.IsUnspecified() {
		return "the node's own endpoint"
	}
	return t.Addr.String()
}

func (v Value) equal(o Value) bool {
	if v.Node != o.Node || v.Drift != o.Drift || (v.Balancer == nil) != (o.Balancer == nil) {
		return false
	}
	if v.Balancer == nil {
		return true
	}
	a, b := v.Balancer, o.Balancer
	return a.Port == b.Port && a.DSR == b.DSR && a.External == b.External && a.SessionAffinity == b.SessionAffinity && a.PreserveDestination == b.PreserveDestination &&
		slices.Equal(a.Endpoints, b.Endpoints)
}

// String describes an object in one line, without its name.
func (v Value) String() string {
	var words []string
	if b := v.Balancer; b != nil {
		words = append(words, fmt.Sprintf("to port %d of", b.Port))
		for _, t := range b.Endpoints {
			words = append(words, t.String())
		}
		for _, flag := range [...]struct {
			set  bool
			name string
		}{{b.DSR, "DSR"}, {b.External, "external"}, {b.SessionAffinity, "session affinity"}, {b.PreserveDestination, "preserve destination"}} {
			if flag.set {
				words = append(words, flag.name)
			}
		}
	}
	if v.Node.IsValid() {
		words = append(words, "on "+v.Node.String())
	}
	if v.Drift != "" {
		words = append(words, "("+v.Drift+")")
	}
	return strings.Join(words, " ")
}
