// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"strings"
)

func match(p packet, ok bool) []step {
	if ok {
		return []step{{packet: p, to: onward}}
	}
	return []step{{packet: p, to: nowhere}}
}

func end(p packet, to direction) []step { return []step{{packet: p, to: to}} }

func (st SourceIn) eval(_ *Sim, p packet) []step { return match(p, st.Prefix.Contains(p.Src)) }

func (st DestinationIn) eval(_ *Sim, p packet) []step {
	return match(p, st.Prefix.Contains(p.Dst.Addr()) != st.Not)
}

func (st FibLocal) eval(s *Sim, p packet) []step {
	return match(p, s.local(p) != st.Not)
}

func (st IifName) eval(_ *Sim, p packet) []step {
	if st.Prefix {
		return match(p, strings.HasPrefix(p.Iface, st.Name))
	}
	return match(p, p.Iface == st.Name)
}

func (st L4ProtoIs) eval(_ *Sim, p packet) []step { return match(p, p.Proto == st.Proto) }

func (st MarkHas) eval(_ *Sim, p packet) []step { return match(p, (p.mark&st.Bit != 0) != st.Not) }

// eval knows that all packets here are the first of a connection.
func (st CtState) eval(_ *Sim, p packet) []step { return match(p, st.States&CtNew != 0) }

// eval: see CtState.
func (NotSYN) eval(_ *Sim, p packet) []step { return match(p, false) }

func (st CtDNAT) eval(_ *Sim, p packet) []step { return match(p, p.dnat != st.Not) }

func (st Lookup) eval(s *Sim, p packet) []step {
	_, ok := s.element(st.Set, p, 0)
	return match(p, ok != st.Not)
}

func (st SetMark) eval(_ *Sim, p packet) []step {
	p.mark |= st.Bit
	return match(p, true)
}

func (st ClearMark) eval(_ *Sim, p packet) []step {
	p.mark &^= st.Bit
	return match(p, true)
}

// eval knows the clients in the objects; the next packet sees no others. There
// is always room.
func (st Update) eval(s *Sim, p packet) []step {
	if _, known := s.element(st.Set, p, 0); !known {
		p.kept = p.Dst.Addr()
	}
	return match(p, true)
}

func (Delete) eval(_ *Sim, p packet) []step {
	p.kept, p.forgot = netip.Addr{}, true
	return match(p, true)
}

func (st SetAddr) eval(s *Sim, p packet) (ends []step) {
	for i := range st.Number.eval(p) {
		v, ok := s.element(st.Map, p, i)
		to := p
		to.chance /= st.Number.chances(p)
		if a := v.Endpoint(p.family).Addr(); ok && st.Field == Saddr {
			to.Src = a
		} else if ok {
			to.Dst = netip.AddrPortFrom(a, p.Dst.Port())
		}
		ends = append(ends, match(to, ok)...)
	}
	return ends
}

func (RestoreSource) eval(_ *Sim, p packet) []step {
	p.Src = p.origin.Src
	return match(p, true)
}

func (st Vmap) eval(s *Sim, p packet) []step {
	v, ok := s.element(st.Map, p, 0)
	switch {
	case !ok:
		return match(p, false)
	case v.Body.Verdict == VerdictDrop:
		return end(p, dropped)
	}
	return Goto{v.Body.Goto}.eval(s, p)
}

func (st Goto) eval(_ *Sim, p packet) []step {
	return []step{{packet: p, to: toChain, chain: st.Chain}}
}

func (st Jump) eval(_ *Sim, p packet) []step {
	return []step{{packet: p, to: throughChain, chain: st.Chain}}
}

func (Return) eval(_ *Sim, p packet) []step { return end(p, returned) }

func (Reject) eval(_ *Sim, p packet) []step { return end(p, rejected) }

func (Accept) eval(_ *Sim, p packet) []step { return end(p, accepted) }

func (Drop) eval(_ *Sim, p packet) []step { return end(p, dropped) }

func (st DNAT) eval(_ *Sim, p packet) []step {
	p.Dst, p.dnat = st.To, true
	return end(p, accepted)
}

// eval makes one step of all numbers that lead to one endpoint: a table of hashes has
// a thousand of them.
func (st DNATMap) eval(s *Sim, p packet) (ends []step) {
	known := map[netip.AddrPort]int{}
	for i := range st.Number.eval(p) {
		v, ok := s.element(st.Map, p, i)
		to := p
		to.chance /= st.Number.chances(p)
		if !ok {
			ends = append(ends, match(to, false)...)
			continue
		}
		to.Dst, to.dnat = v.Endpoint(p.family), true
		if at, again := known[to.Dst]; again {
			ends[at].chance += to.chance
			continue
		}
		known[to.Dst] = len(ends)
		ends = append(ends, end(to, accepted)...)
	}
	return ends
}

func (Masquerade) eval(_ *Sim, p packet) []step { return end(p, masqueraded) }
