package ipvs

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// Sim runs the first packets of connections through objects as the kernel
// would: the very rules that iptables gets, then routing, then IPVS, and takes
// every branch that a scheduler could.
type Sim struct {
	objects map[Key]Value
	host    *model.Host
	marks   marks
	numbers *numbering
	servers map[markKey]Key
	dests   map[Key][]netip.AddrPort
	ranges  map[SetID][]Key
	chains  map[chainKey][]simRule
}

type markKey struct {
	family model.Family
	mark   uint32
}

type chainKey struct {
	family model.Family
	table  string
	name   string
}

// NewSim returns a simulator of the objects on a host. It keeps both and changes
// neither. The options are those that the objects were compiled with.
func NewSim(o Options, objects map[Key]Value, host *model.Host) *Sim {
	s := &Sim{
		objects: objects, host: host, marks: marksFor(o.Mark), numbers: numberAll(objects),
		servers: map[markKey]Key{}, dests: map[Key][]netip.AddrPort{}, ranges: map[SetID][]Key{}, chains: map[chainKey][]simRule{},
	}
	for k, v := range objects {
		switch {
		case k.Kind == KindServer && k.Via != ByAddress:
			s.servers[markKey{k.Family, s.marks.number(s.numbers.of[k], k.Via)}] = k
		case k.Kind == KindDest:
			s.dests[k.serverOf()] = append(s.dests[k.serverOf()], k.To)
		case k.Kind == KindEntry && (k.Set.kind() == hashIPPortNet || k.Set.kind() == hashNet):
			s.ranges[k.Set] = append(s.ranges[k.Set], k)
		case k.Kind == KindChain:
			for _, line := range v.Rules.Lines {
				at := chainKey{k.Family, k.Chain.table(), k.Chain.name()}
				s.chains[at] = append(s.chains[at], parseRule(line))
			}
		}
	}
	return s
}

// packet is a packet on its way.
type packet struct {
	oracle.Packet
	family model.Family
	mark   uint32
}

// Decide returns what happens to a packet: every endpoint that it may reach.
func (s *Sim) Decide(p oracle.Packet) oracle.Outcome {
	pk := &packet{Packet: p, family: model.FamilyOf(p.Dst.Addr())}
	if s.hook(pk, mangleIn, mangleOut) == dropped {
		return oracle.Outcome{Fate: oracle.Drop}
	}
	if p.Iface != "" {
		filter, here := filterForward, s.delivered(pk)
		if here {
			filter = filterIn
		}
		if v := s.hook(pk, filter, noChain); v == refused || v == dropped || !here {
			return unserved(v)
		}
	}
	server, ok := s.server(pk)
	switch {
	case !ok:
		return unserved(s.hook(pk, noChain, filterOut))
	case len(s.dests[server]) == 0:
		return oracle.Outcome{Fate: oracle.Reject} // IPVS says "unreachable"
	}
	return s.forward(pk, server)
}

// unserved is what becomes of a packet that gets to no virtual server.
func unserved(filtered verdict) oracle.Outcome {
	switch filtered {
	case refused:
		return oracle.Outcome{Fate: oracle.Reject}
	case dropped:
		return oracle.Outcome{Fate: oracle.Drop}
	}
	return oracle.Outcome{Fate: oracle.Pass}
}

// hook runs the chain for what arrives, or the one for what the host sends.
func (s *Sim) hook(p *packet, in, out ChainID) verdict {
	chain := in
	if p.Iface == "" {
		chain = out
	}
	if _, ok := s.objects[Key{Kind: KindJump, Family: p.family, Chain: chain}]; !ok {
		return goesOn
	}
	return s.run(p, chain.table(), chain.name())
}

// delivered reports whether a packet that arrives is for this host.
func (s *Sim) delivered(p *packet) bool {
	_, rule := s.objects[Key{Kind: KindRule, Family: p.family}]
	_, route := s.objects[Key{Kind: KindRoute, Family: p.family, At: netip.AddrPortFrom(p.Dst.Addr(), 0)}]
	return s.local(p.Dst.Addr()) || rule && route && p.mark&s.marks.claimed != 0
}

// local reports whether an address is the host's.
func (s *Sim) local(a netip.Addr) bool {
	_, ours := s.objects[Key{Kind: KindAddress, Family: model.FamilyOf(a), At: netip.AddrPortFrom(a, 0)}]
	return ours || a.IsLoopback() || slices.Contains(s.host.IPs, a)
}

// server finds the virtual server as IPVS does: by mark, then by address.
func (s *Sim) server(p *packet) (Key, bool) {
	if k, ok := s.servers[markKey{p.family, p.mark}]; ok {
		return k, true
	}
	k := Key{Kind: KindServer, Family: p.family, Proto: p.Proto, At: p.Dst}
	_, ok := s.objects[k]
	return k, ok
}

func (s *Sim) forward(p *packet, server Key) oracle.Outcome {
	out := oracle.Outcome{Fate: oracle.Forward}
	for _, to := range s.dests[server] {
		last := *p
		last.Dst = to
		// What is for the host itself never gets to postrouting or, when it is
		// from the host too, has the host's address already.
		leaves := !slices.Contains(s.host.IPs, to.Addr())
		snat := s.run(&last, "nat", natLast.name()) == masqueraded
		out.Endpoints = append(out.Endpoints, oracle.Target{Addr: to, SNAT: leaves && snat})
	}
	slices.SortFunc(out.Endpoints, func(a, b oracle.Target) int { return a.Addr.Compare(b.Addr) })
	return out
}

// entry finds what a set has for a packet. Fields are "dst", "src" and so on,
// one for each address and port of the set's type.
func (s *Sim) entry(id SetID, fields string, p *packet) (Key, Value, bool) {
	k := Key{Kind: KindEntry, Family: p.family, Set: id}
	switch id.kind() {
	case bitmapPort:
		k.At = netip.AddrPortFrom(netip.Addr{}, p.Dst.Port())
	case hashIP:
		k.At = netip.AddrPortFrom(p.Dst.Addr(), 0)
		if fields == "src" {
			k.At = netip.AddrPortFrom(p.Src, 0)
		}
	case hashNet:
		return s.within(k, p.Dst.Addr())
	default:
		k.Proto, k.At = p.Proto, p.Dst
		if id.kind() == hashIPPortNet {
			return s.within(k, p.Src)
		}
		if id.kind() == hashIPPortIP {
			k.To = netip.AddrPortFrom(p.Src, 0)
		}
	}
	v, ok := s.objects[k]
	return k, v, ok
}

func (s *Sim) within(k Key, a netip.Addr) (Key, Value, bool) {
	i := slices.IndexFunc(s.ranges[k.Set], func(r Key) bool {
		return r.Family == k.Family && r.At == k.At && r.Proto == k.Proto &&
			netip.PrefixFrom(r.To.Addr(), int(r.Bits)).Contains(a)
	})
	return k, Value{}, i >= 0
}
