// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"time"
)

// Route is what Tandem needs of a TCPRoute or UDPRoute of the Gateway API whose
// parents are Services of its own namespace: a producer route of a mesh (GEP-1294).
// It replaces the endpoints of their ports by those of its backends, by weight.
type Route struct {
	Name     RouteName
	Created  time.Time // zero when unknown, as in most manifests
	Where    string    `same:"-"`
	Version  uint64    `same:"-"` // as Service.Version
	Parents  []RouteParent
	Backends []RouteBackend // none: connections are rejected
}

// RouteName names a route. Its protocol implies its kind.
type RouteName struct {
	Proto           Proto
	Namespace, Name string
}

// Kind returns the kind of object, "TCPRoute" or "UDPRoute".
func (n RouteName) Kind() string {
	if n.Proto == UDP {
		return "UDPRoute"
	}
	return "TCPRoute"
}

// String returns "TCPRoute namespace/name".
func (n RouteName) String() string { return n.Kind() + " " + n.Namespace + "/" + n.Name }

// RouteParent is a Service, in the namespace of the route, or some of its ports: those
// that have both the number and the name, as far as these are not zero.
type RouteParent struct {
	Service  string
	Port     uint16
	PortName string
}

// RouteBackend is a port of a Service that gets a share of the connections.
type RouteBackend struct {
	Service ServiceName
	Port    uint16
	Weight  uint32 // share of new connections beside the other backends'; with 0 it gets none
}

// Compare orders routes by precedence: the oldest first, then by name. It is how the
// Gateway API defines which of two routes for the same port wins.
func (r *Route) Compare(o *Route) int {
	return cmp.Or(r.Created.Compare(o.Created), cmp.Compare(r.Name.Namespace, o.Name.Namespace),
		cmp.Compare(r.Name.Name, o.Name.Name), cmp.Compare(r.Name.Proto, o.Name.Proto))
}

// Grant is what Tandem needs of a ReferenceGrant of the Gateway API: it lets routes of
// other namespaces have Services of its own as backends.
type Grant struct {
	Name  GrantName
	Where string `same:"-"`
	From  []GrantFrom
	All   bool     // all Services of the namespace, else
	To    []string // those of these names
}

// GrantFrom names permitted referrers: the routes of one protocol in a namespace.
type GrantFrom struct {
	Proto     Proto
	Namespace string
}
