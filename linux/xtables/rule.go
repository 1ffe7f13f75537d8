// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
)

// Table is a table of iptables.
type Table uint8

// The tables that modes write to.
const (
	Filter Table = iota
	NAT
	Mangle
	Tables // the number of tables
)

// String returns the table's name.
func (t Table) String() string { return [...]string{"filter", "nat", "mangle"}[t] }

// Variant is one of the two implementations of iptables. Rules of one are invisible to the
// other.
type Variant string

const (
	Legacy Variant = "legacy"
	NFT    Variant = "nft" // iptables over nf_tables
)

// The built-in chains.
const (
	PreRouting  = "PREROUTING"
	Input       = "INPUT"
	Forward     = "FORWARD"
	Output      = "OUTPUT"
	PostRouting = "POSTROUTING"
)

// Rule is one rule. A field with its zero value matches everything. The order of Matches does
// not matter.
type Rule struct {
	Src, Dst Addrs
	In       Interface
	Proto    model.Proto
	Comment  string
	Ports    Ports // destination; needs Proto
	Matches  []Match
	Target   Target // nil for a rule that only counts

	// Unparsed is the text of a rule with unknown options; no other field is set.
	Unparsed string
}

// MaxComment is the length of the longest comment in bytes.
const MaxComment = 255

// Addrs matches an address of a packet.
type Addrs struct {
	Prefix netip.Prefix
	Not    bool
}

// Address is the match of one address.
func Address(a netip.Addr) Addrs { return Addrs{Prefix: netip.PrefixFrom(a, a.BitLen())} }

// Within is the match of a prefix; for all addresses it is the zero value.
func Within(p netip.Prefix) Addrs {
	if p.Bits() <= 0 {
		return Addrs{}
	}
	return Addrs{Prefix: p}
}

// Interface matches the interface that a packet came in by; a name that ends in + is a
// prefix.
type Interface struct {
	Name string
	Not  bool
}

// Ports matches a range of ports.
type Ports struct{ First, Last uint16 }

// Port is the match of one port.
func Port(n uint16) Ports { return Ports{n, n} }

// Match is a match extension (-m). Matches are comparable.
type Match interface {
	// order is the match's position in the text of a rule.
	order() int
	append([]byte) []byte
}

type (
	// SrcLocal matches packets from an address of the host itself.
	SrcLocal struct{ Not bool }

	// DstLocal matches packets to an address of the host itself.
	DstLocal struct{ Not bool }

	// HasMark matches packets whose mark has Value in the bits of Mask.
	HasMark struct {
		Value, Mask uint32
		Not         bool
	}

	// InSet matches packets with an entry in an ipset. Fields is a comma-separated list of
	// "src" and "dst", one for each part of an entry.
	InSet struct {
		Set, Fields string
		Not         bool
	}

	// State matches the connection tracking state, such as NEW or
	// RELATED,ESTABLISHED.
	State struct {
		Any string
		Not bool
	}

	// Recent is xt_recent: with Set it records the sender; without, it matches senders
	// recorded within Seconds.
	Recent struct {
		Name    string
		Set     bool
		Seconds uint32
	}

	// Chance matches at random, with a probability in units of 1/2^31.
	Chance uint32
)

// certain is the probability 1.
const certain = 1 << 31

// PartOf is the probability parts/n, as the kernel stores it.
func PartOf(parts, n int) Chance {
	return Chance((certain*uint64(parts) + uint64(n)/2) / uint64(n))
}

// Target is what a rule does with packets that match. Targets are comparable.
type Target interface{ append([]byte) []byte }

type (
	// Verdict is a target that ends a chain and has no options.
	Verdict uint8

	// Jump continues in a chain, and returns at its end.
	Jump struct{ Chain string }

	// Goto continues in a chain, whose end returns to the caller of this one.
	Goto struct{ Chain string }

	// DNAT rewrites a connection's destination.
	DNAT struct{ To netip.AddrPort }

	// Masquerade rewrites a connection's source to the host's address.
	Masquerade struct{ RandomFully bool }

	// SetMark clears the bits of Mask in a packet's mark and then flips those of Value
	// (--set-xmark).
	SetMark struct{ Value, Mask uint32 }

	// MapMark sets a packet's mark to that of its entry in an ipset (SET --map-set),
	// if there is one.
	MapMark struct{ Set, Fields string }
)

// The verdicts. Reject answers with ICMP port unreachable.
const (
	Accept Verdict = iota
	Drop
	Reject
	Return
)

// JumpTo is a rule without matches that jumps to a chain.
func JumpTo(chain string) Rule { return Rule{Target: Jump{chain}} }

// Chain returns the chain that a rule jumps or goes to; empty for none.
func (r Rule) Chain() string {
	switch t := r.Target.(type) {
	case Jump:
		return t.Chain
	case Goto:
		return t.Chain
	}
	return ""
}

// With returns the rule with an additional match.
func (r Rule) With(m Match) Rule {
	r.Matches = append(r.Matches[:len(r.Matches):len(r.Matches)], m)
	return r
}

// FromPods returns rules without a target that match packets of this node's pods:
// among arriving packets, and among those sent by the host, which have no input
// interface and can only be matched by address. There are none if pods cannot be
// detected.
func FromPods(f model.Family, pods model.PodMatch) (arriving, sent []Rule) {
	switch {
	case pods.Interface != "":
		return []Rule{{In: Interface{Name: pods.Interface}}}, nil
	case pods.Prefix != "":
		return []Rule{{In: Interface{Name: pods.Prefix + "+"}}}, nil
	}
	for _, p := range pods.CIDRs {
		if model.FamilyOf(p.Addr()) == f {
			sent = append(sent, Rule{Src: Within(p.Masked())})
		}
	}
	return sent, sent
}

// Packet is the first packet of a connection, in flight.
type Packet struct {
	Src    netip.Addr
	Dst    netip.AddrPort
	Proto  model.Proto
	In     string // the interface it came in by; empty for packets of the host
	Mark   uint32
	DNATed bool
	Odds   float64 // probability that the packet of a new client reaches this rule; 1 at the start
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
	// Rules returns the rules of a chain, in order. It is called once for each chain
	// that a packet gets to: parsing all chains would cost more than simulating the
	// packets.
	Rules func(ChainID) []Rule
	// Local reports whether an address is the host's.
	Local func(netip.Addr) bool
	// Set looks up a packet in an ipset and returns the entry's mark. It may be nil
	// if no rule uses a set.
	Set func(set, fields string, p *Packet) (SetMark, bool)

	known map[ChainID][]Rule // results of Rules
}

// End is how a packet leaves a chain.
type End struct {
	Packet
	By Target // nil for the end of the chain, or RETURN
}

// maxDepth bounds nested jumps; the modes use far fewer. The kernel also drops packets beyond its
// bound.
const maxDepth = 32

// Run returns the ways in which a packet may leave a chain of its family.
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

// rules runs a packet through the rules of a chain. The packet is copied only if it may both
// match and not match a rule, or a jump ends in several ways.
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

// odds returns the probability of a rule's Chance matches.
func (r *Rule) odds() float64 {
	odds := 1.0
	for _, m := range r.Matches {
		if c, ok := m.(Chance); ok {
			odds *= float64(c) / certain
		}
	}
	return odds
}

// remembers reports whether a rule matches only senders that were recorded before.
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
// A simulated packet is the first of its connection, and the host sends from its own
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
