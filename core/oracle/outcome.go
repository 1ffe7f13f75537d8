// SPDX-License-Identifier: Apache-2.0

// Package oracle states what must happen to a packet. It is the reference that
// every backend's simulator and every real kernel is compared with in tests:
// slow, small and obvious, where the data planes are fast.
package oracle

import (
	"fmt"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// Packet is the first packet of a connection.
type Packet struct {
	Src   netip.Addr
	Iface string // the interface it arrives by; empty when the host itself sends it
	Proto model.Proto
	Dst   netip.AddrPort
	Sport uint16 // 0 is any
}

// Uplink is the Iface of packets from other machines, where only that matters.
const Uplink = "eth0"

// Outcome is what may happen to a Packet.
type Outcome struct {
	Fate      Fate
	Endpoints []Target // for Forward: all endpoints it may reach, in address order

	// For people; not part of the comparison between data planes.
	Port model.PortID
	Kind model.Kind
	Why  model.Reason
}

// Target is an endpoint that a packet may reach.
type Target struct {
	Addr netip.AddrPort
	SNAT bool // it sees an address of the host instead of the client's

	// Share is how much of all such packets it gets; 0 where that is not known.
	Share float64
}

// Fate is the kind of an Outcome.
type Fate uint8

// The fates.
const (
	Pass    Fate = iota // not for a Service: unchanged
	Forward             // to one of Endpoints
	Reject              // refused
	Drop                // no answer
)

// String returns the fate as scenarios spell it.
func (f Fate) String() string { return [...]string{"pass", "forward", "reject", "drop"}[f] }

// ParseFate reads what String has written.
func ParseFate(text string) (Fate, error) {
	for _, f := range []Fate{Pass, Forward, Reject, Drop} {
		if f.String() == text {
			return f, nil
		}
	}
	return Pass, fmt.Errorf("unknown outcome %.20q", text)
}
