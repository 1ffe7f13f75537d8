// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"strings"
)

// match sends a packet to the next statement, or to the next rule.
func (p *step) match(ok bool) []step {
	if ok {
		return p.end(onward)
	}
	return p.end(nowhere)
}

// end sends a packet in one direction.
func (p *step) end(to direction) []step {
	p.to = to
	return nil
}

func (st SourceIn) eval(_ *Sim, p *step) []step { return p.match(st.Prefix.Contains(p.Src)) }

func (st DestinationIn) eval(_ *Sim, p *step) []step {
	return p.match(st.Prefix.Contains(p.Dst.Addr()) != st.Not)
}

func (st FibLocal) eval(s *Sim, p *step) []step {
	return p.match(s.local(&p.packet) != st.Not)
}

func (st IifName) eval(_ *Sim, p *step) []step {
	if st.Prefix {
		return p.match(strings.HasPrefix(p.Iface, st.Name))
	}
	return p.match(p.Iface == st.Name)
}

func (st L4ProtoIs) eval(_ *Sim, p *step) []step { return p.match(p.Proto == st.Proto) }

func (st MarkHas) eval(_ *Sim, p *step) []step { return p.match((p.mark&st.Bit != 0) != st.Not) }

// eval knows that all packets here are the first of a connection.
func (st CtState) eval(_ *Sim, p *step) []step { return p.match(st.States&CtNew != 0) }

// eval: see CtState.
func (NotSYN) eval(_ *Sim, p *step) []step { return p.match(false) }

func (st CtDNAT) eval(_ *Sim, p *step) []step { return p.match(p.dnat != st.Not) }

func (st Lookup) eval(s *Sim, p *step) []step {
	_, ok := s.element(st.Set, &p.packet, 0)
	return p.match(ok != st.Not)
}

func (st SetMark) eval(_ *Sim, p *step) []step {
	p.mark |= st.Bit
	return p.match(true)
}

func (st ClearMark) eval(_ *Sim, p *step) []step {
	p.mark &^= st.Bit
	return p.match(true)
}

// eval knows the clients in the objects; the next packet sees no others. There
// is always room.
func (st Update) eval(s *Sim, p *step) []step {
	if _, known := s.element(st.Set, &p.packet, 0); !known {
		p.kept = p.Dst.Addr()
	}
	return p.match(true)
}

// eval knows no earlier packets: none is beyond a limit.
func (Over) eval(_ *Sim, p *step) []step { return p.match(false) }

func (Delete) eval(_ *Sim, p *step) []step {
	p.kept, p.forgot = netip.Addr{}, true
	return p.match(true)
}

func (st SetAddr) eval(s *Sim, p *step) []step {
	ends := []step{}
	for i := range st.Number.eval(p.packet) {
		v, ok := s.element(st.Map, &p.packet, i)
		to := *p
		to.chance /= st.Number.chances(p.packet)
		if a := v.Endpoint(p.family).Addr(); ok && st.Field == Saddr {
			to.Src = a
		} else if ok {
			to.Dst = netip.AddrPortFrom(a, p.Dst.Port())
		}
		to.match(ok)
		ends = append(ends, to)
	}
	return ends
}

func (RestoreSource) eval(_ *Sim, p *step) []step {
	p.Src = p.origin.Src
	return p.match(true)
}

func (st Vmap) eval(s *Sim, p *step) []step {
	v, ok := s.element(st.Map, &p.packet, 0)
	switch {
	case !ok:
		return p.match(false)
	case v.Body.Verdict == VerdictDrop:
		return p.end(dropped)
	}
	return Goto{v.Body.Goto}.eval(s, p)
}

func (st Goto) eval(_ *Sim, p *step) []step {
	p.chain = st.Chain
	return p.end(toChain)
}

func (st Jump) eval(_ *Sim, p *step) []step {
	p.chain = st.Chain
	return p.end(throughChain)
}

func (Return) eval(_ *Sim, p *step) []step { return p.end(returned) }

func (Reject) eval(_ *Sim, p *step) []step { return p.end(rejected) }

func (Accept) eval(_ *Sim, p *step) []step { return p.end(accepted) }

func (Drop) eval(_ *Sim, p *step) []step { return p.end(dropped) }

func (st DNAT) eval(_ *Sim, p *step) []step {
	p.Dst, p.dnat = st.To, true
	return p.end(accepted)
}

// eval makes one step of all numbers that lead to one endpoint: a table of hashes has
// a thousand of them.
func (st DNATMap) eval(s *Sim, p *step) []step {
	ends := []step{}
	known := map[netip.AddrPort]int{}
	for i := range st.Number.eval(p.packet) {
		v, ok := s.element(st.Map, &p.packet, i)
		to := *p
		to.chance /= st.Number.chances(p.packet)
		if !ok {
			to.match(false)
			ends = append(ends, to)
			continue
		}
		to.Dst, to.dnat = v.Endpoint(p.family), true
		if at, again := known[to.Dst]; again {
			ends[at].chance += to.chance
			continue
		}
		known[to.Dst] = len(ends)
		to.end(accepted)
		ends = append(ends, to)
	}
	return ends
}

func (Masquerade) eval(_ *Sim, p *step) []step { return p.end(masqueraded) }
