package nftables

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
	return match(p, st.Prefix.Contains(p.Dst.Addr()))
}

func (st DestinationNotIn) eval(_ *Sim, p packet) []step {
	return match(p, !st.Prefix.Contains(p.Dst.Addr()))
}

func (st DestinationIsLocal) eval(s *Sim, p packet) []step {
	return match(p, s.local(p) != st.Not)
}

func (st InputIs) eval(_ *Sim, p packet) []step {
	if st.Prefix {
		return match(p, strings.HasPrefix(p.Iface, st.Name))
	}
	return match(p, p.Iface == st.Name)
}

func (st ProtocolIs) eval(_ *Sim, p packet) []step { return match(p, p.Proto == st.Proto) }

func (st MarkHas) eval(_ *Sim, p packet) []step { return match(p, (p.mark&st.Bit != 0) != st.Not) }

// eval knows that all packets here are the first of a connection.
func (IsNew) eval(_ *Sim, p packet) []step { return match(p, true) }

// eval: see IsNew.
func (IsKnown) eval(_ *Sim, p packet) []step { return match(p, false) }

// eval: see IsNew.
func (IsInvalid) eval(_ *Sim, p packet) []step { return match(p, false) }

// eval: see IsNew.
func (NotSYN) eval(_ *Sim, p packet) []step { return match(p, false) }

func (st WasBalanced) eval(_ *Sim, p packet) []step { return match(p, p.balanced != st.Not) }

func (st In) eval(s *Sim, p packet) []step {
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

// eval knows of clients what the objects say; the next packet knows no more. There
// is always room.
func (st Remember) eval(s *Sim, p packet) []step {
	if _, known := s.element(st.Set, p, 0); !known {
		p.kept = p.Dst.Addr()
	}
	return match(p, true)
}

func (Forget) eval(_ *Sim, p packet) []step {
	p.kept, p.forgot = netip.Addr{}, true
	return match(p, true)
}

func (st Put) eval(s *Sim, p packet) (ends []step) {
	for i := range max(st.Count, 1) {
		v, ok := s.element(st.Map, p, st.First+i)
		to := p
		if a := v.endpoint(p.family).Addr(); ok && st.In == saddr {
			to.Src = a
		} else if ok {
			to.Dst = netip.AddrPortFrom(a, p.Dst.Port())
		}
		ends = append(ends, match(to, ok)...)
	}
	return ends
}

func (PutBackSource) eval(_ *Sim, p packet) []step {
	p.Src = p.origin.Src
	return match(p, true)
}

func (st Look) eval(s *Sim, p packet) []step {
	v, ok := s.element(st.Map, p, 0)
	switch {
	case !ok:
		return match(p, false)
	case v.Body.Verdict == VerdictDrop:
		return end(p, discarded)
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

func (Refuse) eval(_ *Sim, p packet) []step { return end(p, refused) }

func (Accept) eval(_ *Sim, p packet) []step { return end(p, accepted) }

func (Discard) eval(_ *Sim, p packet) []step { return end(p, discarded) }

func (st SendTo) eval(_ *Sim, p packet) []step {
	p.Dst, p.balanced = st.To, true
	return end(p, accepted)
}

func (st SendToFound) eval(s *Sim, p packet) []step {
	v, ok := s.element(st.Map, p, 0)
	if !ok {
		return match(p, false)
	}
	return SendTo{v.endpoint(p.family)}.eval(s, p)
}

func (st SendToSlot) eval(s *Sim, p packet) (ends []step) {
	for i := range st.Count {
		v, ok := s.element(st.Map, p, st.First+i)
		if !ok {
			ends = append(ends, match(p, false)...)
			continue
		}
		to := p
		to.Dst, to.balanced = v.endpoint(p.family), true
		ends = append(ends, end(to, accepted)...)
	}
	return ends
}

func (Masquerade) eval(_ *Sim, p packet) []step { return end(p, masqueraded) }
