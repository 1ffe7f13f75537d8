// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// NewSim returns a simulator of the objects on a host. It keeps both, unchanged.
func NewSim(objects map[Key]Value, host *model.Host) *Sim {
	s := &Sim{objects: objects, host: host, ranges: map[*Set][]Key{}, hooks: hooks(objects)}
	for k := range objects {
		if _, ok := k.Range(); ok {
			s.ranges[k.Set] = append(s.ranges[k.Set], k)
		}
	}
	return s
}

// Lookups returns the Single keys that rules look up for a packet, whether the elements exist
// or not.
func (s *Sim) Lookups(p oracle.Packet) []Key {
	seen := map[Key]struct{}{}
	s.asked = func(k Key) { seen[k] = struct{}{} }
	s.Decide(p)
	s.asked = nil
	return slices.Collect(maps.Keys(seen))
}

// Decide returns what happens to a packet: every endpoint that it may reach. If
// branches disagree, which a correct rule set never does, it returns the fate of a
// branch that does not forward.
func (s *Sim) Decide(p oracle.Packet) oracle.Outcome {
	out := oracle.Outcome{Fate: oracle.Forward}
	found := map[netip.AddrPort]oracle.Target{}
	for _, end := range s.routed(first(p)) {
		switch {
		case end.to == rejected:
			out.Fate = oracle.Reject
		case end.to == dropped:
			out.Fate = oracle.Drop
		case !end.dnat:
			out.Fate = oracle.Pass
		default:
			// Packets to the host itself never reach postrouting or, if they come
			// from the host too, have its address already.
			leaves := !slices.Contains(s.host.IPs, end.Dst.Addr())
			for _, last := range s.hook(PostRouting, step{packet: end.packet, to: accepted}) {
				found[last.Dst] = oracle.Target{
					Addr: last.Dst, SNAT: leaves && last.to == masqueraded, Share: found[last.Dst].Share + last.chance,
				}
			}
		}
	}
	out.Endpoints = slices.Collect(maps.Values(found))
	slices.SortFunc(out.Endpoints, func(a, b oracle.Target) int { return a.Addr.Compare(b.Addr) })
	return out
}

// Statements returns the number of statements that a packet meets on the longest of its ways,
// before source NAT.
func (s *Sim) Statements(p oracle.Packet) (most int) {
	for _, end := range s.routed(first(p)) {
		most = max(most, end.met)
	}
	return most
}

// first returns a packet before its first statement.
func first(p oracle.Packet) packet {
	return packet{Packet: p, family: model.FamilyOf(p.Dst.Addr()), origin: &p, chance: 1}
}

// maxDepth is the kernel's limit of nested jumps.
const maxDepth = 16

// chain returns the ways in which a packet may leave a chain.
func (s *Sim) chain(name string, p packet, depth int) []step {
	v, ok := s.objects[ChainKey(p.family, name)]
	if !ok || depth > maxDepth {
		return []step{{packet: p, to: accepted}}
	}
	return s.rules(nil, v.Body.Chain.Rules, p, depth)
}

// rules returns the ways in which a packet may leave a chain, of whose current rule the statements ss are left, and the rules rest.
func (s *Sim) rules(ss []Statement, rest []Rule, p packet, depth int) (ends []step) {
	one := []step{{packet: p}} // mostly there is no other
	at := &one[0]
	for {
		switch {
		case len(ss) > 0:
		case len(rest) > 0:
			ss, rest = rest[0].Statements, rest[1:]
			continue
		default:
			at.to = returned
			return one
		}
		at.met++
		several := ss[0].eval(s, at)
		ss = ss[1:]
		switch {
		case several != nil:
			for i := range several {
				ends = join(ends, s.after(several[i:i+1:i+1], ss, rest, depth), len(several)-i-1)
			}
			return ends
		case at.to == nowhere:
			ss = nil
		case at.to != onward:
			return s.after(one, ss, rest, depth)
		}
	}
}

// after returns the ways in which a packet may leave a chain after a step, which ss and rest follow.
func (s *Sim) after(one []step, ss []Statement, rest []Rule, depth int) (ends []step) {
	switch st := &one[0]; st.to {
	case onward:
		return s.rules(ss, rest, st.packet, depth)
	case nowhere:
		return s.rules(nil, rest, st.packet, depth)
	case toChain:
		return s.chain(st.chain, st.packet, depth+1)
	case throughChain:
		through := s.chain(st.chain, st.packet, depth+1)
		for i, end := range through {
			if end.to == returned {
				ends = join(ends, s.rules(ss, rest, end.packet, depth), len(through)-i-1)
			} else {
				ends = append(ends, end)
			}
		}
		return ends
	}
	return one
}

// join returns the concatenation of two lists, which it may reuse, with capacity for further
// lists.
func join(a, b []step, further int) []step {
	if len(a) == 0 && further == 0 {
		return b
	}
	return append(slices.Grow(a, len(b)+further), b...)
}

// element returns the element of a set or map for a packet.
func (s *Sim) element(set *Set, p *packet, number uint32) (Value, bool) {
	k := Key{Kind: KindElement, Family: p.family, Set: set}
	for i, f := range set.loaded(model.IPv4) { // IPv4: fields instead of hashes
		switch {
		case f == L4Proto, f == CtProto:
			k.Proto = p.Proto
		case f == Dport:
			k.Port = p.Dst.Port()
		case f == Sport, f == CtID: // oracle.Packet has none
			return Value{}, false
		case f == Number:
			k.Slot = uint16(number)
		case set.Interval && i == len(set.Key)-1:
			return s.within(k, p)
		case i == 0:
			k.Addr = packed(p.address(f))
		default: // a second address
			k = k.WithSecond(p.address(f))
		}
	}
	if set.Dynamic() && p.kept.IsValid() {
		return AddressValue(p.kept), true
	}
	if s.asked != nil && k.Single() {
		s.asked(k)
	}
	v, ok := s.objects[k]
	return v, ok && !(set.Dynamic() && p.forgot)
}

// address returns one of a packet's addresses.
func (p *packet) address(f Field) netip.Addr {
	switch f {
	case Saddr:
		return p.Src
	case CtSaddr:
		return p.origin.Src
	case CtDaddr:
		return p.origin.Dst.Addr()
	}
	return p.Dst.Addr()
}

// within reports whether a range of the set contains the packet's address.
func (s *Sim) within(k Key, p *packet) (Value, bool) {
	a := p.Src
	alone := k.Set.ranges()
	if alone {
		a = p.Dst.Addr()
	}
	return Value{}, slices.ContainsFunc(s.ranges[k.Set], func(r Key) bool {
		in, _ := r.Range()
		same := alone || r.Addr == k.Addr && r.Proto == k.Proto && r.Port == k.Port
		return same && r.Family == k.Family && in.First.Compare(a) <= 0 && a.Compare(in.Last) <= 0
	})
}

// hooks returns the chains of each point in the order in which packets meet them.
func hooks(objects map[Key]Value) map[attachment][]Key {
	all := map[attachment][]Key{}
	for k, v := range objects {
		if k.Kind == KindChain && v.Body.Chain.Hook.Type != "" {
			at := attachment{k.Family, v.Body.Chain.Hook.Point}
			all[at] = append(all[at], k)
		}
	}
	for _, chains := range all {
		slices.SortFunc(chains, func(a, b Key) int {
			return cmp.Compare(objects[a].Body.Chain.Hook.Priority, objects[b].Body.Chain.Hook.Priority)
		})
	}
	return all
}

// hook sends a packet through the chains attached to a point. Chains of type nat that
// rewrite destinations do not see a packet whose destination is already rewritten.
func (s *Sim) hook(at Point, start step) []step {
	ends := []step{start}
	for _, name := range s.hooks[attachment{start.family, at}] {
		nat := s.objects[name].Body.Chain.Hook.Type == "nat"
		var next []step
		for i, end := range ends {
			if end.to == rejected || end.to == dropped || nat && end.dnat && at != PostRouting {
				next = join(next, ends[i:i+1:i+1], len(ends)-i-1)
			} else {
				next = join(next, s.chain(name.Name(), end.packet, 0), len(ends)-i-1)
			}
		}
		ends = next
	}
	return ends
}

// routed returns what happens to a packet until it leaves or is delivered, except for
// source NAT.
func (s *Sim) routed(p packet) (all []step) {
	if p.Iface == "" {
		return s.hook(LocalOut, step{packet: p, to: accepted})
	}
	for _, end := range s.hook(PreRouting, step{packet: p, to: accepted}) {
		if end.to == rejected || end.to == dropped || s.local(&end.packet) {
			all = append(all, end)
		} else {
			all = join(all, s.hook(Forward, end), 0)
		}
	}
	return all
}

// local reports whether a packet is for an address of the host.
func (s *Sim) local(p *packet) bool {
	return p.Dst.Addr().IsLoopback() || slices.Contains(s.host.IPs, p.Dst.Addr())
}
