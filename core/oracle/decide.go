// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"math"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// Decide returns what must happen to a packet, given everything that is to be
// programmed. It walks all ports.
func Decide(host *model.Host, ports []*model.Port, p Packet) Outcome {
	port, front := find(host, ports, p)
	if front == nil {
		return unclaimed(host, ports, p)
	}
	out := Outcome{Port: port.ID, Kind: front.Kind}
	if front.Restricted && !inside(front.Allow, p.Src) {
		out.Fate, out.Why = Drop, model.WhyOutsideRanges
		return out
	}
	act := front.On[Origin(host, p)]
	out.Why = act.Why
	switch act.Verdict {
	case model.Reject:
		out.Fate = Reject
	case model.Drop:
		out.Fate = Drop
	case model.Balance:
		out.Fate = Forward
		for i, e := range act.Pool.Endpoints {
			hairpin := e.Hairpins() && e.Addr.Addr() == p.Src
			leaves := !slices.Contains(host.IPs, e.Addr.Addr())
			out.Endpoints = append(out.Endpoints, Target{Addr: e.Addr, SNAT: leaves && (act.SNAT || hairpin), Share: act.Pool.Share(i)})
		}
		slices.SortFunc(out.Endpoints, func(a, b Target) int { return a.Addr.Compare(b.Addr) })
	}
	return out
}

// Origin returns where a packet is from. Pods come first: the host's own address
// inside the pods' range counts as a pod.
func Origin(host *model.Host, p Packet) model.Origin {
	switch {
	case host.Pods.Match(p.Src, p.Iface):
		return model.FromPod
	case p.Iface == "":
		return model.FromHost
	}
	return model.FromOutside
}

// find returns the frontend a packet is for. Addresses of Services come before
// node ports, which answer on this host's own addresses only.
func find(host *model.Host, ports []*model.Port, p Packet) (*model.Port, *model.Frontend) {
	if port, f := at(ports, p.Proto, p.Dst); f != nil {
		return port, f
	}
	if !slices.Contains(host.IPs, p.Dst.Addr()) && !p.Dst.Addr().IsLoopback() || !host.NodePorts.Contains(p.Dst.Addr()) {
		return nil, nil
	}
	return at(ports, p.Proto, netip.AddrPortFrom(model.FamilyOf(p.Dst.Addr()).Unspecified(), p.Dst.Port()))
}

func at(ports []*model.Port, proto model.Proto, at netip.AddrPort) (*model.Port, *model.Frontend) {
	for _, port := range ports {
		if port.ID.Proto != proto {
			continue
		}
		for i := range port.Frontends {
			if port.Frontends[i].At == at {
				return port, &port.Frontends[i]
			}
		}
	}
	return nil, nil
}

// unclaimed is the outcome where there is no frontend. A cluster IP refuses all its other
// ports, since nothing else can be meant by it. What could be a cluster IP and is
// none is dropped: the client may know of its Service sooner than this
// node, and will retry. All other packets pass.
func unclaimed(host *model.Host, ports []*model.Port, p Packet) Outcome {
	for _, port := range ports {
		for _, f := range port.Frontends {
			if f.Kind == model.KindClusterIP && f.At.Addr() == p.Dst.Addr() {
				return Outcome{Fate: Reject, Port: port.ID, Kind: f.Kind, Why: model.WhyNoSuchPort}
			}
		}
	}
	if inside(host.ServiceCIDRs, p.Dst.Addr()) {
		return Outcome{Fate: Drop, Why: model.WhyUnallocated}
	}
	return Outcome{Fate: Pass, Why: model.WhyNotOurs}
}

func inside(ps []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ps, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Same reports whether two outcomes are the same to the packet.
func (o Outcome) Same(b Outcome) bool {
	return o.Fate == b.Fate && slices.EqualFunc(o.Endpoints, b.Endpoints, func(x, y Target) bool {
		return x.Addr == y.Addr && x.SNAT == y.SNAT && SameShare(x.Share, y.Share)
	})
}

// SameShare reports whether two shares of connections differ by 1 % at most, as far
// as both are known.
func SameShare(x, y float64) bool {
	const tolerance = 0.01
	return x == 0 || y == 0 || math.Abs(x-y) <= tolerance
}
