// SPDX-License-Identifier: Apache-2.0

package suspect

import (
	"net/netip"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// Flow is a TCP connection that is being opened through this node, or was.
type Flow struct {
	ID       uint64 // together with Client: never given to another flow while this one is known
	Client   netip.Addr
	Frontend netip.AddrPort // where the client connects to; or
	Port     model.PortID   // whose frontend that is, where Frontend is the zero value
	Endpoint netip.AddrPort // where it was sent

	// Waited is for how long at least there was no answer. Observers that do not know
	// leave it 0: the Judge has a clock.
	Waited time.Duration
}

// World is what the Judge may ask about endpoints, of Services that are served here. What
// cannot be determined now is asked again in a later cycle.
type World interface {
	// Of returns the ready endpoints on other nodes that a flow could have been sent to;
	// nil if it is none of a Service's; false where that cannot be determined now.
	Of(Flow) ([]Endpoint, bool)
	// On returns the ready endpoints on a node, each with each of its ports, or those of no
	// known node with an address; false where that cannot be determined now.
	On(nodeOrAddr string) ([]Endpoint, bool)
	// Remote is how many addresses have ready endpoints on other nodes, as last known.
	Remote() int
	// AnySeen reports whether the answer to any flow has come through this node.
	AnySeen() bool
}

// Endpoint is a ready endpoint on another node.
type Endpoint struct {
	At   netip.AddrPort
	Node string // empty where unknown: then it is judged alone
}
