// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// Compiler turns ports into objects (dataplane.Compiler). It is safe for
// concurrent use.
type Compiler struct {
	options Options
	bits    markBits
}

// NewCompiler returns a compiler.
func NewCompiler(o Options) *Compiler { return &Compiler{options: o, bits: bitsFor(o.Mark)} }

// Equal implements dataplane.Compiler.
func (c *Compiler) Equal(a, b Value) bool { return a == b }

// DeleteDelay implements dataplane.Compiler.
func (c *Compiler) DeleteDelay(Key) time.Duration { return 0 }

// Rank implements dataplane.Compiler: no packet is marked before there is
// a virtual server for it, so chains and the jumps to them come last of all, and a
// frontend is never open to all before its source ranges hold.
func (c *Compiler) Rank(k Key) int {
	switch k.Kind {
	case KindLink, KindRule, KindRoute, KindSet:
		return 0
	case KindServer:
		return 1
	case KindDest:
		return 2
	case KindAddress:
		return 9
	case KindChain:
		return 10
	case KindJump:
		return 11
	}
	switch k.Set {
	case SourceRanges:
		return 3
	case Restricted:
		return 4
	case LoopBack:
		return 5
	case Pods, Host:
		return 6
	case VirtualIPs:
		return 8
	}
	return 7
}

// Port implements dataplane.Compiler.
func (c *Compiler) Port(host *model.Host, port *model.Port, emit func(Key, Value)) []model.Gap {
	if !slices.Contains(c.options.families(), port.ID.Family) {
		return []model.Gap{{Detail: port.ID.Family.String() + " is not served: this host has no iptables for it"}}
	}
	p := portCompiler{options: c.options, bits: c.bits, host: host, port: port, emit: emit}
	for i := range port.Frontends {
		p.expand(&port.Frontends[i])
	}
	p.assignByMark()
	for i := range p.frontends {
		p.frontend(&p.frontends[i])
	}
	p.servers()
	p.hairpins()
	if port.HealthPort != 0 {
		k := p.key(KindEntry, dstPort(port.HealthPort))
		k.Set, k.Proto = HealthCheckPort, 0
		emit(k, Value{})
	}
	return p.gaps
}

// expand lists the addresses of a frontend.
func (p *portCompiler) expand(f *model.Frontend) {
	if f.Kind != model.KindNodePort {
		p.frontends = append(p.frontends, frontendAddr{f, f.At})
		return
	}
	if p.host.NodePorts.Loopback {
		p.gap(f, "node ports do not answer on loopback addresses in this mode")
	}
	for _, a := range p.nodeAddresses() {
		p.frontends = append(p.frontends, frontendAddr{f, netip.AddrPortFrom(a, f.At.Port())})
	}
}

// nodeAddresses are the host's own addresses on which node ports answer.
func (p *portCompiler) nodeAddresses() (all []netip.Addr) {
	for _, a := range p.host.IPs {
		if model.FamilyOf(a) == p.port.ID.Family && !a.IsLoopback() && p.host.NodePorts.Contains(a) && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// frontend emits what tells packets to one address what to do.
func (p *portCompiler) frontend(f *frontendAddr) {
	common := p.commonMark(f)
	if f.Restricted {
		p.restrict(f)
	}
	p.exceptions(f, common)
	entry := p.key(KindEntry, f.at)
	entry.Set = p.markSet(f.Kind)
	if entry.Set.kind() == bitmapPort {
		entry.Dst = dstPort(f.at.Port())
		entry.Proto = 0
		if f.at != p.firstOf(f.Frontend) {
			return
		}
	}
	p.emit(entry, Value{Mark: common})
	k := Key{Kind: KindRoute, Family: entry.Family, Dst: dstAddr(f.at.Addr())}
	switch f.Kind {
	case model.KindClusterIP:
		k.Kind = KindAddress
		p.emit(k, Value{})
		k.Kind, k.Set = KindEntry, VirtualIPs
		p.emit(k, Value{})
	case model.KindExternalIP, model.KindLoadBalancer:
		p.emit(k, Value{})
	}
}

func (p *portCompiler) firstOf(f *model.Frontend) netip.AddrPort {
	i := slices.IndexFunc(p.frontends, func(q frontendAddr) bool { return q.Frontend == f })
	return p.frontends[i].at
}

func (p *portCompiler) markSet(k model.Kind) SetID {
	switch k {
	case model.KindClusterIP:
		return ClusterIPs
	case model.KindExternalIP:
		return ExternalIPs
	case model.KindLoadBalancer:
		return LoadBalancer
	}
	switch p.port.ID.Proto {
	case model.TCP:
		return NodePortTCP
	case model.UDP:
		return NodePortUDP
	}
	return NodePortSCTP
}

func (p *portCompiler) restrict(f *frontendAddr) {
	k := p.key(KindEntry, f.at)
	k.Set = SourceRanges
	for _, r := range f.Allow {
		emitPrefix(k, r, p.emit)
	}
	k.Set = Restricted
	p.emit(k, Value{})
}

// hairpins emits the endpoints whose connections to themselves must be masqueraded.
func (p *portCompiler) hairpins() {
	seen := map[netip.AddrPort]bool{}
	for _, pool := range p.port.Pools() {
		for _, e := range pool.Endpoints {
			if !e.Hairpins() || seen[e.Addr] || slices.Contains(p.host.IPs, e.Addr.Addr()) {
				continue
			}
			seen[e.Addr] = true
			k := p.key(KindEntry, e.Addr)
			k.Set, k.Peer = LoopBack, peerClient(e.Addr.Addr())
			p.emit(k, Value{})
		}
	}
}
