// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// Placement chooses the addresses on which relays listen for a frontend. It is pure.
type Placement interface {
	// Addresses returns them with their ports, or why there are none.
	Addresses(host *model.Host, proto model.Proto, f *model.Frontend) (at []netip.AddrPort, why string)
	// NeedsAddresses reports whether frontend addresses have to be assigned to an
	// adapter.
	NeedsAddresses() bool
	// Reached reports whether clients of an origin reach these addresses.
	Reached(model.Origin) bool
	// Note is a gap that every port has; empty for none.
	Note() string
}

// Adapter has relays listen on the frontend addresses themselves, and for node
// ports on the addresses of the node.
type Adapter struct{}

var _ Placement = Adapter{}

func (Adapter) Addresses(host *model.Host, proto model.Proto, f *model.Frontend) (at []netip.AddrPort, why string) {
	if f.Kind != model.KindNodePort {
		return []netip.AddrPort{f.At}, ""
	}
	for _, a := range host.IPs {
		if model.FamilyOf(a) == model.FamilyOf(f.At.Addr()) && host.NodePorts.Contains(a) {
			at = append(at, netip.AddrPortFrom(a, f.At.Port()))
		}
	}
	if l := model.FamilyOf(f.At.Addr()).Loopback(); host.NodePorts.Answers(l, proto) {
		at = append(at, netip.AddrPortFrom(l, f.At.Port()))
	}
	return at, ""
}

func (Adapter) Reached(model.Origin) bool { return true }

func (Adapter) NeedsAddresses() bool { return true }

func (Adapter) Note() string { return "" }

// Loopback makes relays listen on loopback addresses: 127.x.y.z for a.x.y.z, so that
// nearly all Services have different, recognisable ones. It needs no privileges.
type Loopback struct{}

var _ Placement = Loopback{}

func (Loopback) Addresses(_ *model.Host, _ model.Proto, f *model.Frontend) (at []netip.AddrPort, why string) {
	switch {
	case f.At.Addr().Is6():
		return nil, "IPv6 has only one loopback address; not served"
	case f.Kind == model.KindNodePort:
		return []netip.AddrPort{netip.AddrPortFrom(model.FamilyOf(f.At.Addr()).Loopback(), f.At.Port())}, ""
	}
	b := f.At.Addr().As4()
	b[0] = 127
	return []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4(b), f.At.Port())}, ""
}

// Reached is true for all: one develops with the answers of all origins in sight.
func (Loopback) Reached(model.Origin) bool { return true }

func (Loopback) NeedsAddresses() bool { return false }

func (Loopback) Note() string {
	return "served on a loopback address, to processes of this node only"
}
