// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

func (*Compiler) Evaluate(objects map[Key]Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
	return NewSim(objects, host).Decide
}

func (*Compiler) Text(k Key, v Value) string {
	if k.Rank == rankDisorder {
		return "its rules in another order"
	}
	return strings.TrimSpace(v.String())
}

// Opaque: rules with what tandem never writes match
// nothing in Evaluate.
func (*Compiler) Opaque(k Key, v Value) bool {
	if k.Rank == rankDisorder {
		return true
	}
	for r := range v.All() {
		if r.Unparsed != "" {
			return true
		}
	}
	return false
}

// Sim runs packets through objects as the kernel would, but follows every branch of a
// random or stateful match.
type Sim struct {
	rules *xtables.Sim
	host  *model.Host
}

// NewSim returns a simulator of the objects on a host. It keeps both and changes
// neither.
func NewSim(objects map[Key]Value, host *model.Host) *Sim {
	keys := map[chainID][]Key{}
	for k := range objects {
		keys[k.chainID] = append(keys[k.chainID], k)
	}
	rules := func(id chainID) (rules []xtables.Rule) {
		slices.SortFunc(keys[id], compareKeys)
		for _, k := range keys[id] {
			rules = slices.AppendSeq(rules, objects[k].All())
		}
		return rules
	}
	local := func(a netip.Addr) bool { return a.IsLoopback() || slices.Contains(host.IPs, a) }
	return &Sim{&xtables.Sim{Rules: rules, Local: local}, host}
}

// Decide returns what happens to a packet: every endpoint that it may reach. If
// branches disagree, which correct rules never do, it returns the fate of a branch
// that does not forward.
func (s *Sim) Decide(p oracle.Packet) oracle.Outcome {
	out := oracle.Outcome{Fate: oracle.Forward}
	found := map[netip.AddrPort]oracle.Target{}
	hook := xtables.PreRouting
	if p.Iface == "" {
		hook = xtables.Output
	}
	first := xtables.Packet{Src: p.Src, Dst: p.Dst, Proto: p.Proto, In: p.Iface, Odds: 1}
	for _, e := range s.rules.Run(xtables.NAT, hook, first) {
		for _, f := range s.filter(e.Packet) {
			switch {
			case f.By == xtables.Reject:
				out.Fate = oracle.Reject
			case f.By == xtables.Drop:
				out.Fate = oracle.Drop
			case !f.DNATed:
				out.Fate = oracle.Pass
			default:
				found[f.Dst] = oracle.Target{Addr: f.Dst, SNAT: s.masqueraded(f.Packet), Share: found[f.Dst].Share + f.Odds}
			}
		}
	}
	out.Endpoints = slices.Collect(maps.Values(found))
	slices.SortFunc(out.Endpoints, func(a, b oracle.Target) int { return a.Addr.Compare(b.Addr) })
	return out
}

// filter returns what happens to a packet after destination NAT.
func (s *Sim) filter(p xtables.Packet) (ends []xtables.End) {
	here := s.rules.Local(p.Dst.Addr())
	switch {
	case p.In == "" && here: // it goes out by the loopback interface and comes in again
		for _, e := range s.rules.Run(xtables.Filter, xtables.Output, p) {
			if e.By == nil || e.By == xtables.Accept {
				ends = append(ends, s.rules.Run(xtables.Filter, xtables.Input, e.Packet)...)
			} else {
				ends = append(ends, e)
			}
		}
		return ends
	case p.In == "":
		return s.rules.Run(xtables.Filter, xtables.Output, p)
	case here:
		return s.rules.Run(xtables.Filter, xtables.Input, p)
	}
	return s.rules.Run(xtables.Filter, xtables.Forward, p)
}

// masqueraded reports whether a packet leaves with the host's address. Packets to the
// host itself never reach postrouting or, if they come from the host too, have its
// address already.
func (s *Sim) masqueraded(p xtables.Packet) bool {
	if slices.Contains(s.host.IPs, p.Dst.Addr()) {
		return false
	}
	return slices.ContainsFunc(s.rules.Run(xtables.NAT, xtables.PostRouting, p), xtables.End.Masqueraded)
}
