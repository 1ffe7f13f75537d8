// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// Probes returns packets to every frontend and to neighbouring addresses and ports,
// from every kind of sender: pods, the host, outside, the endpoints themselves
// (hairpin) and the edges of source ranges; and to the edges of the ranges of cluster
// IPs. They are unique and in a fixed order.
func Probes(host *model.Host, ports []*model.Port) []oracle.Packet {
	n := 0
	for _, port := range ports {
		n += probesPerFrontend * len(port.Frontends)
	}
	ps := &probes{host: host, seen: make(map[oracle.Packet]bool, n), all: make([]oracle.Packet, 0, n)}
	for _, port := range ports {
		for i := range port.Frontends {
			ps.front(port, &port.Frontends[i])
		}
	}
	for _, r := range host.ServiceCIDRs {
		ps.borders(r)
	}
	return ps.all
}

// probesPerFrontend is how many there are of most.
const probesPerFrontend = 48

// borders are the first and last addresses of a range of cluster IPs and their
// neighbours.
func (ps *probes) borders(r netip.Prefix) {
	first, last := r.Addr(), model.Last(r)
	for _, a := range []netip.Addr{first.Prev(), first, last, last.Next()} {
		for _, s := range ps.senders(model.FamilyOf(r.Addr())) {
			for _, proto := range []model.Proto{model.TCP, model.UDP, model.SCTP} {
				ps.add(s, proto, netip.AddrPortFrom(a, 80))
			}
		}
	}
}

type probes struct {
	host *model.Host
	seen map[oracle.Packet]bool
	all  []oracle.Packet
}

// sender is where a packet comes from.
type sender struct {
	src   netip.Addr
	iface string
}

func (ps *probes) front(port *model.Port, f *model.Frontend) {
	senders := append(ps.senders(port.ID.Family), edges(f)...)
	senders = append(senders, hairpins(ps.host, port)...)
	for _, at := range ps.targets(port.ID.Family, f) {
		for _, s := range senders {
			ps.add(s, port.ID.Proto, at)
		}
	}
	// For near misses one sender of each kind is enough.
	for _, at := range ps.targets(port.ID.Family, f) {
		for _, s := range ps.senders(port.ID.Family) {
			ps.add(s, port.ID.Proto, netip.AddrPortFrom(at.Addr(), at.Port()+1))
			ps.add(s, port.ID.Proto, netip.AddrPortFrom(at.Addr().Next(), at.Port()))
			for _, proto := range []model.Proto{model.TCP, model.UDP, model.SCTP} {
				ps.add(s, proto, at)
			}
		}
	}
}

// add skips impossible packets: between families, to port 0, and to or from loopback
// addresses other than within the host.
func (ps *probes) add(s sender, proto model.Proto, to netip.AddrPort) {
	if s.iface == "" && to.Addr().IsLoopback() {
		s.src = to.Addr() // the kernel's choice
	}
	p := oracle.Packet{Src: s.src, Iface: s.iface, Proto: proto, Dst: to}
	if to.Port() == 0 || !to.IsValid() || !s.src.IsValid() || s.src.Is4() != to.Addr().Is4() || ps.seen[p] {
		return
	}
	if s.src.IsLoopback() != to.Addr().IsLoopback() || s.src.IsMulticast() {
		return
	}
	ps.seen[p] = true
	ps.all = append(ps.all, p)
}

// targets are the addresses a frontend answers on, and for node ports those it
// must not answer on.
func (ps *probes) targets(family model.Family, f *model.Frontend) (all []netip.AddrPort) {
	if f.Kind != model.KindNodePort {
		return []netip.AddrPort{f.At}
	}
	foreign, loopback := "192.0.2.77", "127.0.0.1"
	if family == model.IPv6 {
		foreign, loopback = "2001:db8::77", "::1"
	}
	addrs := []netip.Addr{netip.MustParseAddr(foreign), netip.MustParseAddr(loopback)}
	for _, a := range ps.host.IPs {
		if model.FamilyOf(a) == family {
			addrs = append(addrs, a)
		}
	}
	for _, a := range addrs {
		all = append(all, netip.AddrPortFrom(a, f.At.Port()))
	}
	return all
}

func (ps *probes) senders(family model.Family) []sender {
	pod, _ := address("pod", family == model.IPv4)
	remote, _ := address("remote-pod", family == model.IPv4)
	outside, _ := address("outside", family == model.IPv4)
	iface := "pod0"
	switch m := ps.host.Pods; {
	case m.Interface != "":
		iface = m.Interface
	case m.Prefix != "":
		iface = m.Prefix + "0"
	}
	all := []sender{{pod, iface}, {pod, "other0"}, {remote, Uplink}, {outside, Uplink}, {outside, iface}}
	if own, ok := ps.host.Primary(family); ok {
		all = append(all, sender{own, ""})
	}
	for _, c := range ps.host.Pods.CIDRs {
		if model.FamilyOf(c.Addr()) == family {
			// The host's own address inside the pods' range, as a bridge has it.
			all = append(all, sender{c.Addr().Next(), ""}, sender{model.Last(c), iface}, sender{model.Last(c).Next(), Uplink})
		}
	}
	return all
}

// hairpins are the endpoints as clients of their own Service.
func hairpins(host *model.Host, port *model.Port) (all []sender) {
	for _, pool := range port.Pools() {
		for _, e := range pool.Endpoints {
			switch {
			case !e.MayHairpin():
				all = append(all, sender{e.Addr.Addr(), Uplink})
			case isHost(host, e.Addr.Addr()):
				all = append(all, sender{e.Addr.Addr(), ""})
			case host.Pods.Prefix != "":
				all = append(all, sender{e.Addr.Addr(), host.Pods.Prefix + "1"})
			default:
				all = append(all, sender{e.Addr.Addr(), "pod1"})
			}
		}
	}
	return all
}

func isHost(host *model.Host, a netip.Addr) bool {
	for _, ip := range host.IPs {
		if ip == a {
			return true
		}
	}
	return false
}

// edges are the first and last clients of each source range and their
// neighbours, and the frontend's own address, which the host uses as its source
// where it is bound locally.
func edges(f *model.Frontend) (all []sender) {
	if !f.Restricted {
		return nil
	}
	all = append(all, sender{f.At.Addr(), ""})
	for _, p := range f.Allow {
		first, end := p.Masked().Addr(), model.Last(p)
		for _, a := range []netip.Addr{first, end, first.Prev(), end.Next()} {
			all = append(all, sender{a, Uplink})
		}
	}
	return all
}
