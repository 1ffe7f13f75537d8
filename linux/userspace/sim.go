// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Sim is a host with some objects: its nat table, packet by packet, and its
// relays.
type Sim struct {
	rules  *xtables.Sim
	relays map[RelayID]Value
	ports  map[uint16]RelayID
}

// NewSim returns a simulator of a host with some objects.
func NewSim(objects map[Key]Value, host *model.Host) *Sim {
	s := &Sim{relays: map[RelayID]Value{}, ports: map[uint16]RelayID{}}
	chains := map[xtables.ChainID][]xtables.Rule{}
	ports := map[RelayID]uint16{} // as if all listened
	for _, k := range sorted(objects, kindRelay, KindChain, kindEntry, kindJump) {
		v := objects[k]
		id := xtables.ChainID{Family: k.Family, Table: xtables.NAT, Chain: k.Chain}
		switch k.Kind {
		case kindRelay:
			s.relays[k.Relay] = v
		case kindEntry:
			at, known := ports[v.To.Relay]
			if !known {
				at = dropPort + 1 + uint16(len(ports))
				ports[v.To.Relay], s.ports[at] = at, v.To.Relay
			}
			chains[id] = append(chains[id], entryRule(k, v.To, at))
		default:
			chains[id] = slices.AppendSeq(chains[id], v.Rules.All())
		}
	}
	for id, rules := range chains { // as the driver inserts them
		if id.Chain == chainGuard {
			slices.SortStableFunc(rules, func(a, b xtables.Rule) int { return cmp.Compare(dropsRest(a), dropsRest(b)) })
		}
	}
	local := func(a netip.Addr) bool { return a.IsLoopback() || slices.Contains(host.IPs, a) }
	s.rules = &xtables.Sim{Rules: chains, Local: local}
	return s
}

// dropsRest is 1 for the rule that drops clients outside of the source ranges, and 0
// for others.
func dropsRest(r xtables.Rule) int {
	if r.Chain() == chainDrop {
		return 1
	}
	return 0
}

// Decide returns the outcome of a packet of a client, which has no mark.
func (s *Sim) Decide(p oracle.Packet) oracle.Outcome {
	chain := xtables.PreRouting
	if p.Iface == "" {
		chain = xtables.Output
	}
	end := s.rules.Run(xtables.NAT, chain, xtables.Packet{Src: p.Src, Dst: p.Dst, Proto: p.Proto, In: p.Iface})[0]
	switch {
	case !end.DNATed:
		return oracle.Outcome{}
	case end.Dst.Port() == rejectPort || end.Dst.Port() == dropPort:
		return oracle.Outcome{Fate: endFate(end.Dst.Port(), p.Proto)}
	}
	return s.relayed(s.ports[end.Dst.Port()])
}

// endFate is what becomes of a packet at the reject port or the drop port. There is no
// SCTP socket on the drop port, so that the kernel rejects.
func endFate(port uint16, proto model.Proto) oracle.Fate {
	if port == dropPort && proto != model.SCTP {
		return oracle.Drop
	}
	return oracle.Reject
}

// relayed is the outcome of a connection to a relay.
func (s *Sim) relayed(id RelayID) oracle.Outcome {
	v, ok := s.relays[id]
	if !ok {
		return oracle.Outcome{Fate: oracle.Reject} // nothing listens
	}
	out := oracle.Outcome{Fate: oracle.Forward}
	a := v.Policy.On[model.FromOutside]
	for i, e := range a.Endpoints {
		out.Endpoints = append(out.Endpoints, oracle.Target{Addr: e, SNAT: true, Share: a.Share(i)})
	}
	return out
}

var _ dataplane.Evaluator[Key, Value] = (*Compiler)(nil)

// Evaluate implements dataplane.Evaluator.
func (*Compiler) Evaluate(objects map[Key]Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
	return NewSim(objects, host).Decide
}

// Text implements dataplane.Evaluator.
func (*Compiler) Text(k Key, v Value) string {
	switch k.Kind {
	case KindChain, kindJump:
		if v.Rules.Len() == 0 {
			return "foreign rules, or rules in another order"
		}
		return strings.TrimSpace(v.Rules.String())
	case kindEntry:
		return v.To.String()
	case kindRelay:
		if v.Policy != nil {
			return fmt.Sprintf("relay to %v", v.Policy.On[model.FromOutside].Endpoints)
		}
	case kindUnexpected:
		return k.Rest
	}
	return ""
}

// String reports what an entry does.
func (t Target) String() string {
	switch t.Do {
	case toRelay:
		return fmt.Sprintf("to relay %s", t.Relay)
	case Reject:
		return "reject"
	case Drop:
		return "drop"
	case Accept:
		return "allow"
	}
	return "foreign"
}

// Opaque implements dataplane.Evaluator: rules that tandem does not write are not
// evaluated.
func (*Compiler) Opaque(k Key, v Value) bool {
	return k.Kind == kindUnexpected || k.Kind == kindEntry && v.To.Do == unknown ||
		(k.Kind == KindChain || k.Kind == kindJump) && v.Rules.Len() == 0
}
