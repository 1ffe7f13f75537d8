// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Mode is the userspace mode. Handover returns what passes the sockets of relays to the next
// process; it may return nil.
func Mode(handover func() relay.Handover) dataplane.Mode {
	return onLinux(dataplane.Mode{Name: relay.Mode, System: "linux", Ephemeral: true, Plan: plan}, handover)
}

func plan(c *config.Config, host *model.Host, ports []*model.Port) dataplane.Plan {
	return dataplane.PlanOf(NewCompiler(markOf(c)), host, ports, Script)
}

// Script renders objects as what iptables-restore and ip6tables-restore read, one
// part for each. The ports of relays are examples, in the order of their names; at
// run time the system chooses them.
func Script(objects map[Key]Value) string {
	ports := map[RelayID]uint16{}
	const first = 40000
	for _, k := range sorted(objects, kindRelay) {
		ports[k.Relay] = uint16(first + len(ports))
	}
	var b strings.Builder
	for _, f := range model.Families() {
		if _, ok := objects[Key{Kind: kindAddress, Family: f}]; !ok {
			continue
		}
		fmt.Fprintf(&b, "# %s; relays listen on %s, an address of lo\n", xtables.RestoreCommand(f), relayAddr(f))
		batch := &batch{}
		for _, k := range sorted(objects, KindChain, kindEntry, kindJump) {
			switch v := objects[k]; {
			case k.Family != f:
			case k.Kind == KindChain:
				batch.Rewrite(k.Chain, v.Rules)
			case k.Kind == kindEntry:
				batch.put(k, entryRule(k, v.To, ports[v.To.Relay]))
			default:
				batch.put(k, jumpRule(k))
			}
		}
		b.Write(batch.Text(xtables.NAT))
	}
	return b.String()
}

// Sim is a host with some objects: its nat table, packet by packet, and its
// relays.
type Sim struct {
	rules   *xtables.Sim
	relays  map[RelayID]Value
	ports   map[uint16]RelayID
	listens map[RelayID]uint16
}

// NewSim returns a simulator of a host with some objects. It keeps both, unchanged.
func NewSim(objects map[Key]Value, host *model.Host) *Sim {
	s := &Sim{relays: map[RelayID]Value{}, ports: map[uint16]RelayID{}, listens: map[RelayID]uint16{}}
	keys := map[xtables.ChainID][]Key{}
	for k, v := range objects {
		switch k.Kind {
		case kindRelay:
			s.relays[k.Relay] = v
		case KindChain, kindEntry, kindJump:
			id := xtables.ChainID{Family: k.Family, Table: xtables.NAT, Chain: k.Chain}
			keys[id] = append(keys[id], k)
		}
	}
	rules := func(id xtables.ChainID) (rules []xtables.Rule) {
		slices.SortFunc(keys[id], compareKeys)
		for _, k := range keys[id] {
			if v := objects[k]; k.Kind == kindEntry {
				rules = append(rules, entryRule(k, v.To, s.port(v.To.Relay)))
			} else {
				rules = slices.AppendSeq(rules, v.Rules.All())
			}
		}
		if id.Chain == chainGuard { // as the driver inserts them
			slices.SortStableFunc(rules, func(a, b xtables.Rule) int { return cmp.Compare(dropsRest(a), dropsRest(b)) })
		}
		return rules
	}
	local := func(a netip.Addr) bool { return a.IsLoopback() || slices.Contains(host.IPs, a) }
	s.rules = &xtables.Sim{Rules: rules, Local: local}
	return s
}

// port returns the port of a relay, also of one that is missing.
func (s *Sim) port(relay RelayID) uint16 {
	at, known := s.listens[relay]
	if !known {
		at = dropPort + 1 + uint16(len(s.listens))
		s.listens[relay], s.ports[at] = at, relay
	}
	return at
}

// dropsRest is 1 for the rule that drops clients not in source ranges, and 0
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

// endFate is the fate of a packet at the reject port or the drop port. There is no
// SCTP socket on the drop port, so the kernel rejects SCTP.
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

func (*Compiler) Evaluate(objects map[Key]Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
	return NewSim(objects, host).Decide
}

func (*Compiler) Text(k Key, v Value) string {
	switch k.Kind {
	case KindChain, kindJump:
		switch {
		case foreign(k, v):
			return "foreign rules, or rules in another order"
		case v.Rules.Len() == 0:
			return "chain of entries"
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

// Opaque reports whether Evaluate does not see the object's rules: Tandem did not write them,
// or only a digest of them was read back.
func (*Compiler) Opaque(k Key, v Value) bool {
	return k.Kind == kindUnexpected || k.Kind == kindEntry && v.To.Do == unknown || (k.Kind == KindChain || k.Kind == kindJump) && foreign(k, v)
}

// foreign reports whether a chain or a jump has other rules than Tandem writes, or only a digest of them was
// read back. An entry chain has no rules but its entries, which are objects of their own.
func foreign(k Key, v Value) bool {
	if v.Rules.Len() > 0 {
		return false
	}
	return k.Kind == kindJump || !isEntryChain(k.Chain) || v.Digest != 0 && v.Digest != digest(k, nil)
}

// Connection tracking sends all datagrams of a flow to the target of the first one.
// When an entry's target changes, such flows are stale. A change of endpoints makes
// none stale, since the target is the relay.

// hasFlows reports whether an entry has conntrack entries that outlive its changes:
// those of UDP.
func hasFlows(k Key) bool {
	return k.Kind == kindEntry && k.Proto == model.UDP && k.Chain != chainGuard
}

// staleFlows returns the flows that ops make stale, given the rules before the ops.
// Driver.leads decides for each flow that is found whether to keep it.
func staleFlows(ops []ledger.Op[Key, Value], rules map[Key]installed) (stale []flows.Match) {
	for _, op := range ops {
		switch {
		case !hasFlows(op.Key):
		case op.Verb == ledger.Delete:
			stale = append(stale, endedFlows(op.Key, rules[op.Key].port, op.Port().Service.Namespace))
		default:
			stale = append(stale, flows.Match{Namespace: op.Port().Service.Namespace, Proto: model.UDP, Frontend: op.Key.At, Reach: flows.Everything})
		}
	}
	return stale
}

// endedFlows returns the flows of an entry to its present target: a relay's port, the
// reject port or the drop port. Other flows of the frontend may belong to another
// mode that already serves it.
func endedFlows(k Key, port uint16, namespace string) flows.Match {
	f := k.Family
	return flows.Match{
		Namespace: namespace, Proto: model.UDP, Frontend: k.At,
		Gone: flows.SetOf(relayAddrPort(f, port), relayAddrPort(f, rejectPort), relayAddrPort(f, dropPort)),
	}
}
