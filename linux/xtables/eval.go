// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
)

// Packet is the first packet of a connection, in flight.
type Packet struct {
	Src    netip.Addr
	Dst    netip.AddrPort
	Proto  model.Proto
	In     string // the interface it came in by; empty for packets of the host
	Mark   uint32
	DNATed bool
	Odds   float64 // probability that a new client's packet reaches this rule; 1 at the start
}

// ChainID names a chain of one table of one family.
type ChainID struct {
	Family model.Family
	Table  Table
	Chain  string
}

// Sim runs packets through rules as the kernel would, but follows every branch of a
// random or stateful match. One goroutine at a time may use it.
type Sim struct {
	// Rules returns those of a chain, in their order. It is asked once for each chain
	// that a packet gets to: most packets see few, and to parse them all would cost more
	// than the packets do.
	Rules func(ChainID) []Rule
	// Local reports whether an address is the host's.
	Local func(netip.Addr) bool
	// Set looks up a packet in an ipset and returns the entry's mark. It may be nil
	// if no rule uses a set.
	Set func(set, fields string, p *Packet) (SetMark, bool)

	known map[ChainID][]Rule // what Rules has returned
}

// End is how a packet leaves a chain.
type End struct {
	Packet
	By Target // nil for the end of the chain, or RETURN
}

// maxDepth bounds nested jumps; the modes use far fewer. Beyond its own bound, the room for jumps
// of a table, the kernel drops a packet, too.
const maxDepth = 32

// Run returns how a packet may leave a chain of its family.
func (s *Sim) Run(t Table, chain string, p Packet) []End {
	return s.chain(ChainID{model.FamilyOf(p.Dst.Addr()), t, chain}, p, 0)
}

func (s *Sim) chain(id ChainID, p Packet, depth int) []End {
	if depth > maxDepth {
		return []End{{p, Drop}}
	}
	rules, known := s.known[id]
	if !known {
		if s.known == nil {
			s.known = map[ChainID][]Rule{}
		}
		rules = s.Rules(id)
		s.known[id] = rules
	}
	return s.rules(id, rules, p, depth)
}

// rules runs a packet through rules of a chain. It is copied only where it may both match and
// not match, and where a jump ends in several ways.
func (s *Sim) rules(id ChainID, rules []Rule, p Packet, depth int) (ends []End) {
	for i := range rules {
		r, rest := &rules[i], rules[i+1:]
		yes, no := s.match(r, &p)
		if !yes {
			continue
		}
		odds := r.odds()
		if no {
			passed := p
			if odds < 1 {
				passed.Odds *= 1 - odds
			}
			ends = append(ends, s.rules(id, rest, passed, depth)...)
		}
		if p.Odds *= odds; no && r.remembers() {
			p.Odds = 0
		}
		switch t := r.Target.(type) {
		case nil:
		case SetMark:
			p.Mark = t.apply(p.Mark)
		case MapMark:
			if m, ok := s.Set(t.Set, t.Fields, &p); ok {
				p.Mark = m.apply(p.Mark)
			}
		case Jump:
			back := s.chain(ChainID{id.Family, id.Table, t.Chain}, p, depth+1)
			if len(back) == 1 && back[0].By == nil {
				p = back[0].Packet
				continue
			}
			for _, e := range back {
				if e.By == nil {
					ends = append(ends, s.rules(id, rest, e.Packet, depth)...)
				} else {
					ends = append(ends, e)
				}
			}
			return ends
		case Goto:
			return append(ends, s.chain(ChainID{id.Family, id.Table, t.Chain}, p, depth+1)...)
		case DNAT:
			p.Dst, p.DNATed = t.To, true
			return append(ends, End{p, t})
		default:
			if r.Target == Return {
				return append(ends, End{Packet: p})
			}
			return append(ends, End{p, r.Target})
		}
	}
	return append(ends, End{Packet: p})
}

// odds is how likely chance lets a packet match a rule.
func (r *Rule) odds() float64 {
	odds := 1.0
	for _, m := range r.Matches {
		if c, ok := m.(Chance); ok {
			odds *= float64(c) / certain
		}
	}
	return odds
}

// remembers reports whether a rule is for clients that were there before.
func (r *Rule) remembers() bool {
	return slices.ContainsFunc(r.Matches, func(m Match) bool {
		recent, ok := m.(Recent)
		return ok && !recent.Set
	})
}

func (m SetMark) apply(mark uint32) uint32 { return mark&^m.Mask ^ m.Value }

// match reports whether a packet may match a rule, and whether it may not match.
// Unparsed rules match nothing.
func (s *Sim) match(r *Rule, p *Packet) (yes, no bool) {
	if r.Unparsed != "" || !r.Src.match(p.Src) || !r.Dst.match(p.Dst.Addr()) || !r.In.match(p.In) ||
		r.Proto != 0 && r.Proto != p.Proto ||
		r.Ports != (Ports{}) && (p.Dst.Port() < r.Ports.First || r.Ports.Last < p.Dst.Port()) {
		return false, true
	}
	yes = true
	for _, m := range r.Matches {
		may, mayNot := s.matchExtension(m, p)
		yes, no = yes && may, no || mayNot
	}
	return yes, no
}

func (a Addrs) match(of netip.Addr) bool {
	return !a.Prefix.IsValid() || a.Prefix.Contains(of) != a.Not
}

func (i Interface) match(name string) bool {
	if i.Name == "" {
		return true
	}
	beginning, open := strings.CutSuffix(i.Name, "+")
	return (name == i.Name || open && name != "" && strings.HasPrefix(name, beginning)) != i.Not
}

// matchExtension reports whether a packet may match, and whether it may not match.
// Every packet here is the first of its connection, and the host sends from its own
// addresses only.
func (s *Sim) matchExtension(m Match, p *Packet) (yes, no bool) {
	var is, not bool
	switch m := m.(type) {
	case SrcLocal:
		is, not = p.In == "" || s.Local(p.Src), m.Not
	case DstLocal:
		is, not = s.Local(p.Dst.Addr()), m.Not
	case HasMark:
		is, not = p.Mark&m.Mask == m.Value, m.Not
	case InSet:
		_, is = s.Set(m.Set, m.Fields, p)
		not = m.Not
	case State:
		for state := range strings.SplitSeq(m.Any, ",") {
			is = is || state == "NEW" || state == "DNAT" && p.DNATed
		}
		not = m.Not
	case Recent:
		return true, !m.Set
	case Chance:
		return true, true
	}
	return is != not, is == not
}

// Masqueraded reports whether the packet leaves with the host's address.
func (e End) Masqueraded() bool {
	_, yes := e.By.(Masquerade)
	return yes
}
