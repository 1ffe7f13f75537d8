package direct

import (
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// Placing is where relays listen for a front. It is pure.
type Placing interface {
	// Places returns the addresses and ports, or why there are none.
	Places(host *model.Host, f *model.Frontend) (at []netip.AddrPort, why string)
	// Owned reports whether the addresses of fronts have to be put on an adapter.
	Owned() bool
	// Note is what is to be said of every port; empty for nothing.
	Note() string
}

// Adapter places relays on the addresses themselves, and node ports on those of
// the node.
type Adapter struct{}

// Places implements Placing.
func (Adapter) Places(host *model.Host, f *model.Frontend) (at []netip.AddrPort, why string) {
	if f.Kind != model.KindNodePort {
		return []netip.AddrPort{f.At}, ""
	}
	for _, a := range host.IPs {
		if model.FamilyOf(a) == model.FamilyOf(f.At.Addr()) && host.NodePorts.Contains(a) {
			at = append(at, netip.AddrPortFrom(a, f.At.Port()))
		}
	}
	if l := loopbackOf(f.At.Addr()); host.NodePorts.Contains(l) {
		at = append(at, netip.AddrPortFrom(l, f.At.Port()))
	}
	return at, ""
}

// Owned implements Placing.
func (Adapter) Owned() bool { return true }

// Note implements Placing.
func (Adapter) Note() string { return "" }

func loopbackOf(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// Loopback places relays on loopback addresses: 127.x.y.z stands for a.x.y.z,
// so that different Services nearly always have different addresses and people
// recognise them. It needs no privileges.
type Loopback struct{}

// Places implements Placing.
func (Loopback) Places(_ *model.Host, f *model.Frontend) (at []netip.AddrPort, why string) {
	switch {
	case f.At.Addr().Is6():
		return nil, "there is one loopback address of IPv6, and many Services"
	case f.Kind == model.KindNodePort:
		return []netip.AddrPort{netip.AddrPortFrom(loopbackOf(f.At.Addr()), f.At.Port())}, ""
	}
	b := f.At.Addr().As4()
	b[0] = 127
	return []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4(b), f.At.Port())}, ""
}

// Owned implements Placing.
func (Loopback) Owned() bool { return false }

// Note implements Placing.
func (Loopback) Note() string {
	return "served on a loopback address, to processes of this machine only"
}
