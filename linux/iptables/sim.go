package iptables

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// Sim runs packets through objects as the kernel would, but takes every branch
// that chance or the past could. It reads the text that the kernel would get.
type Sim struct {
	chains map[chainID][]Rule
	host   *model.Host
}

// NewSim returns a simulator of the objects on a host. Rules that cannot be
// read match nothing.
func NewSim(objects map[Key]Value, host *model.Host) *Sim {
	s := &Sim{chains: map[chainID][]Rule{}, host: host}
	keys := make([]Key, 0, len(objects))
	for k := range objects {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, compareKeys)
	for _, k := range keys {
		for text := range strings.Lines(string(objects[k])) {
			if r, err := parseRule(text); err == nil {
				s.chains[k.chainID] = append(s.chains[k.chainID], r)
			}
		}
	}
	return s
}

// packet is a packet on its way.
type packet struct {
	oracle.Packet
	orig netip.Addr // destination before DNAT
	mark uint32
	dnat bool
}

// end is how a packet leaves a chain.
type end struct {
	packet
	by string // a builtin target; empty for the end of the chain
}

// Decide returns what happens to a packet: every endpoint that it may reach. A
// packet that some branch would treat otherwise than others, which a sound set
// of rules never does, gets the fate of a branch that forwards nothing.
func (s *Sim) Decide(p oracle.Packet) oracle.Outcome {
	out := oracle.Outcome{Fate: oracle.Forward}
	found := map[netip.AddrPort]bool{} // endpoint -> SNAT
	hook := prerouting
	if p.Iface == "" {
		hook = output
	}
	for _, e := range s.hook(NAT, hook, packet{Packet: p, orig: p.Dst.Addr()}) {
		for _, f := range s.filter(e.packet) {
			switch {
			case f.by == targetReject:
				out.Fate = oracle.Reject
			case f.by == targetDrop:
				out.Fate = oracle.Drop
			case !f.dnat:
				out.Fate = oracle.Pass
			default:
				found[f.Dst] = s.masqueraded(f.packet)
			}
		}
	}
	for addr, snat := range found {
		out.Endpoints = append(out.Endpoints, oracle.Target{Addr: addr, SNAT: snat})
	}
	slices.SortFunc(out.Endpoints, func(a, b oracle.Target) int { return a.Addr.Compare(b.Addr) })
	return out
}

// filter returns what becomes of a packet that has passed address translation.
func (s *Sim) filter(p packet) []end {
	here := s.isLocal(p.Dst.Addr())
	var ends []end
	switch {
	case p.Iface == "" && here: // it goes out by the loopback interface and comes in again
		for _, e := range s.hook(Filter, output, p) {
			if e.by == targetAccept {
				ends = append(ends, s.hook(Filter, input, e.packet)...)
			} else {
				ends = append(ends, e)
			}
		}
		return ends
	case p.Iface == "":
		return s.hook(Filter, output, p)
	case here:
		return s.hook(Filter, input, p)
	}
	return s.hook(Filter, forward, p)
}

// masqueraded reports whether a packet leaves with the host's address. What is
// for the host itself never gets to postrouting or, when it is from the host
// too, has the host's address already.
func (s *Sim) masqueraded(p packet) bool {
	if slices.Contains(s.host.IPs, p.Dst.Addr()) {
		return false
	}
	return slices.ContainsFunc(s.hook(NAT, postrouting, p), func(e end) bool { return e.by == targetMasquerade })
}

func (s *Sim) isLocal(a netip.Addr) bool { return a.IsLoopback() || slices.Contains(s.host.IPs, a) }

// hook runs a chain of the kernel, whose policy is to accept.
func (s *Sim) hook(t Table, chain string, p packet) []end {
	ends := s.chain(chainID{model.FamilyOf(p.Dst.Addr()), t, chain}, p, 0)
	for i := range ends {
		if ends[i].by == "" {
			ends[i].by = targetAccept
		}
	}
	return ends
}

// maxDepth is how deep chains may go here; ours are far from it.
const maxDepth = 32

// chain returns how a packet may leave a chain.
func (s *Sim) chain(id chainID, p packet, depth int) []end {
	if depth > maxDepth {
		return []end{{p, targetDrop}}
	}
	return s.rules(id, s.chains[id], p, depth)
}

func (s *Sim) rules(id chainID, rules []Rule, p packet, depth int) (ends []end) {
	if len(rules) == 0 {
		return []end{{packet: p}}
	}
	r, rest := rules[0], rules[1:]
	yes, no := s.match(r, p)
	if no {
		ends = s.rules(id, rest, p, depth)
	}
	if !yes {
		return ends
	}
	switch r.Target {
	case "":
		return append(ends, s.rules(id, rest, p, depth)...)
	case targetMark:
		p.mark = p.mark&^r.XMark.Mask ^ r.XMark.Value
		return append(ends, s.rules(id, rest, p, depth)...)
	case targetReturn:
		return append(ends, end{packet: p})
	case targetDNAT:
		p.Dst, p.dnat = r.To, true
		return append(ends, end{p, targetAccept})
	case targetAccept, targetDrop, targetReject, targetMasquerade:
		return append(ends, end{p, r.Target})
	}
	for _, e := range s.chain(chainID{id.Family, id.Table, r.Target}, p, depth+1) {
		if e.by == "" && !r.Goto {
			ends = append(ends, s.rules(id, rest, e.packet, depth)...)
			continue
		}
		ends = append(ends, e)
	}
	return ends
}

// match reports whether a packet may match a rule, and whether it may not.
func (s *Sim) match(r Rule, p packet) (yes, no bool) {
	all := r.Src.match(p.Src) && r.Dst.match(p.Dst.Addr()) && r.In.interfaceMatch(p.Iface) &&
		(r.Proto == 0 || r.Proto == p.Proto) &&
		(r.Ports == portRange{} || r.Ports.First <= p.Dst.Port() && p.Dst.Port() <= r.Ports.Last) &&
		(!r.SrcLocal || p.Iface == "" || s.isLocal(p.Src)) && // the host sends from no address but its own
		(!r.DstLocal || s.isLocal(p.Dst.Addr())) && (!r.DstRemote || !s.isLocal(p.Dst.Addr())) &&
		(r.Mark.Mask == 0 || (p.mark&r.Mark.Mask == r.Mark.Value) != r.Mark.Not) &&
		(r.State.Name == "" || r.State.stateMatch(p) != r.State.Not) && r.OrigDst.match(p.orig)
	if !all {
		return false, true
	}
	maybe := r.Chance != 0 || r.Remember.Name != "" && !r.Remember.Set
	return true, maybe
}

func (m addrMatch) match(a netip.Addr) bool {
	return !m.Prefix.IsValid() || m.Prefix.Contains(a) != m.Not
}

func (m nameMatch) interfaceMatch(name string) bool {
	if m.Name == "" {
		return true
	}
	beginning, open := strings.CutSuffix(m.Name, "+")
	return (name == m.Name || open && name != "" && strings.HasPrefix(name, beginning)) != m.Not
}

// stateMatch knows that every packet here is the first of its connection.
func (m nameMatch) stateMatch(p packet) bool {
	for state := range strings.SplitSeq(m.Name, ",") {
		if state == "NEW" || state == "DNAT" && p.dnat {
			return true
		}
	}
	return false
}
