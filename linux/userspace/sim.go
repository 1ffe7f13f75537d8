package userspace

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// Sim is a host with some objects: its nat table, packet by packet, and its
// relays.
type Sim struct {
	host   *model.Host
	tables [2]map[string][]simRule
	relays map[RelayID]Value
}

// simRule is a rule, and for entries where it leads.
type simRule struct {
	Rule
	to    Target
	entry bool
}

// NewSim returns a host with the objects. Of the host itself it knows its
// addresses.
func NewSim(objects map[Key]Value, host *model.Host) *Sim {
	s := &Sim{host: host, relays: map[RelayID]Value{}, tables: [2]map[string][]simRule{{}, {}}}
	for k, v := range objects {
		chains := s.tables[k.Family]
		switch k.Kind {
		case KindRelay:
			s.relays[k.Relay] = v
		case KindChain, KindJump:
			for _, r := range v.Rules {
				chains[k.Chain] = append(chains[k.Chain], simRule{Rule: r})
			}
		case KindEntry:
			chains[k.Chain] = append(chains[k.Chain], simRule{entryRule(k, v.To, 0), v.To, true})
		}
	}
	for _, table := range s.tables { // as the driver inserts them
		slices.SortStableFunc(table[chainGuard], func(a, b simRule) int { return int(b.to.Do) - int(a.to.Do) })
		for chain := range jumps {
			slices.SortFunc(table[chain], func(a, b simRule) int { return a.order() - b.order() })
		}
	}
	return s
}

// order is where a way into our chains stands among the two of its chain.
func (r simRule) order() int {
	if r.Jump == chainLast {
		return 1
	}
	return 0
}

// Decide says what becomes of a packet.
func (s *Sim) Decide(p oracle.Packet) oracle.Outcome {
	chain := "PREROUTING"
	if p.Iface == "" {
		chain = "OUTPUT"
	}
	out, _ := s.chain(chain, p, 0)
	return out
}

// chain sends a packet through a chain. It is false when the packet comes back.
func (s *Sim) chain(name string, p oracle.Packet, depth int) (out oracle.Outcome, final bool) {
	const deepest = 8
	if depth > deepest {
		return out, false
	}
	for _, r := range s.tables[model.FamilyOf(p.Dst.Addr())][name] {
		switch {
		case !s.matches(r.Rule, p):
		case r.entry && r.to.Do == ToRelay:
			return s.relayed(r.to.Relay), true
		case r.Jump == returns:
			return out, false
		case r.To.Port() == refusingPort:
			return oracle.Outcome{Fate: oracle.Reject}, true
		case r.To.Port() == silentPort:
			return oracle.Outcome{Fate: oracle.Drop}, true
		default:
			if out, final := s.chain(r.Jump, p, depth+1); final {
				return out, true
			}
		}
	}
	return out, false
}

func (s *Sim) matches(r Rule, p oracle.Packet) bool {
	within := func(want netip.Prefix, a netip.Addr) bool { return !want.IsValid() || want.Contains(a) }
	iface := true
	if start, any := strings.CutSuffix(r.In, "+"); any {
		iface = strings.HasPrefix(p.Iface, start)
	} else if r.In != "" {
		iface = p.Iface == r.In
	}
	// Packets here are clients', which have no mark.
	return r.Mark == 0 && iface && within(r.Src, p.Src) && within(r.Dst, p.Dst.Addr()) &&
		(r.Proto == 0 || r.Proto == p.Proto) && (r.Port == 0 || r.Port == p.Dst.Port()) &&
		(!r.Local || p.Dst.Addr().IsLoopback() || slices.Contains(s.host.IPs, p.Dst.Addr()))
}

// relayed is what a relay does with a connection.
func (s *Sim) relayed(id RelayID) oracle.Outcome {
	v, ok := s.relays[id]
	if !ok {
		return oracle.Outcome{Fate: oracle.Reject} // nobody listens
	}
	out := oracle.Outcome{Fate: oracle.Forward}
	for _, e := range v.Policy.On[model.FromOutside].Endpoints {
		out.Endpoints = append(out.Endpoints, oracle.Target{Addr: e, SNAT: true})
	}
	return out
}
