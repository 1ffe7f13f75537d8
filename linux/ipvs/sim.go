// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/linux/virtualserver"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Sim runs the first packets of connections through objects as the kernel
// would: the very rules that iptables gets, then routing, then IPVS, and takes
// every branch that a scheduler could.
type Sim struct {
	objects map[Key]Value
	host    *model.Host
	marks   *fwmarks
	servers virtualserver.Table
	ranges  map[SetID][]Key
	rules   *xtables.Sim
}

// NewSim returns a simulator of the objects on a host. It keeps both and changes
// neither. The options are those that the objects were compiled with.
func NewSim(o Options, objects map[Key]Value, host *model.Host) *Sim {
	s := &Sim{
		objects: objects, host: host, marks: fwmarksOf(bitsFor(o.Mark), objects),
		servers: virtualserver.Table{}, ranges: map[SetID][]Key{},
	}
	s.rules = &xtables.Sim{Rules: map[xtables.ChainID][]xtables.Rule{}, Local: s.local, Set: s.set}
	for k, v := range objects {
		switch {
		case k.Kind == KindServer:
			id, _ := s.marks.id(k)
			s.servers.Add(id)
		case k.Kind == KindDest:
			id, _ := s.marks.id(k.serverOf())
			s.servers.Add(id, k.Peer.endpoint())
		case k.Kind == KindEntry && (k.Set.kind() == hashIPPortNet || k.Set.kind() == hashNet):
			s.ranges[k.Set] = append(s.ranges[k.Set], k)
		case k.Kind == KindChain:
			at := xtables.ChainID{Family: k.Family, Table: k.Chain.table(), Chain: k.Chain.name()}
			s.rules.Rules[at] = slices.Collect(v.Rules.All())
		}
	}
	return s
}

// Decide returns what happens to a packet: every endpoint that it may reach.
func (s *Sim) Decide(first oracle.Packet) oracle.Outcome {
	p := xtables.Packet{Src: first.Src, Dst: first.Dst, Proto: first.Proto, In: first.Iface, OrigDst: first.Dst.Addr()}
	if s.hook(&p, mangleIn, mangleOut) == xtables.Drop {
		return oracle.Outcome{Fate: oracle.Drop}
	}
	if p.In != "" {
		filter, here := filterForward, s.delivered(p)
		if here {
			filter = filterIn
		}
		if end := s.hook(&p, filter, noChain); end == xtables.Reject || end == xtables.Drop || !here {
			return unserved(end)
		}
	}
	server, ok := s.servers.Find(p.Proto, p.Dst, p.Mark)
	switch {
	case !ok:
		return unserved(s.hook(&p, noChain, filterOut))
	case len(s.servers[server]) == 0:
		return oracle.Outcome{Fate: oracle.Reject} // IPVS says "unreachable"
	}
	return s.forward(p, server)
}

// unserved is what becomes of a packet that gets to no virtual server.
func unserved(filtered xtables.Target) oracle.Outcome {
	switch filtered {
	case xtables.Reject:
		return oracle.Outcome{Fate: oracle.Reject}
	case xtables.Drop:
		return oracle.Outcome{Fate: oracle.Drop}
	}
	return oracle.Outcome{Fate: oracle.Pass}
}

// hook runs the chain for what arrives, or the one for what the host sends. Nothing
// in our chains is left to chance: they have one end.
func (s *Sim) hook(p *xtables.Packet, in, out ChainID) xtables.Target {
	chain := in
	if p.In == "" {
		chain = out
	}
	if _, ok := s.objects[Key{Kind: KindJump, Family: familyOf(*p), Chain: chain}]; !ok {
		return nil
	}
	end := s.rules.Run(chain.table(), chain.name(), *p)[0]
	*p = end.Packet
	return end.By
}

func familyOf(p xtables.Packet) model.Family { return model.FamilyOf(p.Dst.Addr()) }

// delivered reports whether a packet that arrives is for this host.
func (s *Sim) delivered(p xtables.Packet) bool {
	_, rule := s.objects[Key{Kind: KindRule, Family: familyOf(p)}]
	_, route := s.objects[Key{Kind: KindRoute, Family: familyOf(p), Dst: dstAddr(p.Dst.Addr())}]
	return s.local(p.Dst.Addr()) || rule && route && p.Mark&s.marks.service != 0
}

// local reports whether an address is the host's.
func (s *Sim) local(a netip.Addr) bool {
	_, ours := s.objects[Key{Kind: KindAddress, Family: model.FamilyOf(a), Dst: dstAddr(a)}]
	return ours || a.IsLoopback() || slices.Contains(s.host.IPs, a)
}

func (s *Sim) forward(p xtables.Packet, server virtualserver.ID) oracle.Outcome {
	out := oracle.Outcome{Fate: oracle.Forward}
	for _, to := range s.servers[server] {
		last := p
		last.Dst = to
		// What is for the host itself never gets to postrouting or, when it is
		// from the host too, has the host's address already.
		leaves := !slices.Contains(s.host.IPs, to.Addr())
		snat := s.rules.Run(xtables.NAT, natLast.name(), last)[0].Masqueraded()
		out.Endpoints = append(out.Endpoints, oracle.Target{Addr: to, SNAT: leaves && snat})
	}
	slices.SortFunc(out.Endpoints, func(a, b oracle.Target) int { return a.Addr.Compare(b.Addr) })
	return out
}

// set finds what a set has for a packet. Fields are "dst", "src" and so on, one for
// each address and port of the set's type.
func (s *Sim) set(name, fields string, p *xtables.Packet) (xtables.SetMark, bool) {
	id, family := setNamed(name)
	k := Key{Kind: KindEntry, Family: family, Set: id}
	switch id.kind() {
	case bitmapPort:
		k.Dst = dstPort(p.Dst.Port())
	case hashIP:
		k.Dst = dstAddr(p.Dst.Addr())
		if fields == "src" {
			k.Dst = dstAddr(p.Src)
		}
	case hashNet:
		return xtables.SetMark{}, s.within(k, p.Dst.Addr())
	case hashIPPortNet:
		k.Proto, k.Dst = p.Proto, p.Dst
		return xtables.SetMark{}, s.within(k, p.Src)
	default:
		k.Proto, k.Dst = p.Proto, p.Dst
		if id.kind() == hashIPPortIP {
			k.Peer = peerClient(p.Src)
		}
	}
	v, ok := s.objects[k]
	if !ok {
		return xtables.SetMark{}, false
	}
	m, _ := s.marks.entry(k, v)
	return xtables.SetMark{Value: m.Value, Mask: m.Mask}, true
}

func (s *Sim) within(set Key, a netip.Addr) bool {
	return slices.ContainsFunc(s.ranges[set.Set], func(r Key) bool {
		return r.Family == set.Family && r.Dst == set.Dst && r.Proto == set.Proto &&
			r.Peer.network().Contains(a)
	})
}
