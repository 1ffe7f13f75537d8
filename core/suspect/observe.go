// SPDX-License-Identifier: Apache-2.0

package suspect

import (
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// Flow is a TCP connection that is being opened through this node, or was.
type Flow struct {
	ID       uint32 // with Client and Zone: never given to another flow while this one is known
	Zone     uint16 // of conntrack, for what the client sends
	Client   netip.AddrPort
	Frontend netip.AddrPort // where the client connects to; or
	Port     *model.PortID  // whose frontend that is, where Frontend is the zero value
	Endpoint netip.AddrPort // where it was sent
}

// State is what an observer knows of a flow.
type State uint8

const (
	Unknown  State = iota // not looked at yet
	Waiting               // without an answer
	Answered              // the endpoint has answered, be it by a refusal
	Gone                  // deleted, or replaced by another one
)

// World is what the Judge may ask about endpoints of Services that are served here. What
// cannot be determined now is asked again in a later cycle.
type World interface {
	// Of returns ready endpoints on other nodes that a flow could have been sent to, perhaps not all
	// of them; none if it is none of a Service's; false where that cannot be determined now.
	Of(Flow) ([]Endpoint, bool)
	// At returns the ready endpoints on other nodes that have an address, those of all
	// Services, each with each of its TCP ports; false where that cannot be determined now.
	At(netip.Addr) ([]Endpoint, bool)
}

// Endpoint is a ready endpoint on another node, by the EndpointSlices of a namespace.
type Endpoint struct {
	At        netip.AddrPort
	Node      string // empty where unknown
	Namespace string
}
