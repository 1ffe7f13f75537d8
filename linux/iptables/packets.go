package iptables

import (
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Two rules are there to count, too: kube-proxy counts the same packets, by
// objects of nfnetlink_acct, which not every kernel has. Rules count anywhere.

// invalid drops packets that connection tracking makes no sense of. Some of them
// would reset connections (issue 74839 of kubernetes/kubernetes).
func invalid() xtables.Rule {
	return xtables.Rule{Matches: []xtables.Match{xtables.State{Any: "INVALID"}}, Target: xtables.Drop}
}

// toLocalhost does nothing with the first packet of each connection to a node
// port on 127.0.0.0/8. It stands among the rules for packets that are marked, as
// all of those are: pods could not answer that address.
func toLocalhost() xtables.Rule {
	return xtables.Rule{
		Comment: "counts connections to node ports on localhost",
		Matches: []xtables.Match{xtables.OrigDst{Addrs: xtables.Within(loopback[model.IPv4])}},
	}
}

// packetRule is a rule whose packets are told.
type packetRule struct {
	chainID
	rule xtables.Rule
	add  func(*dataplane.Packets, uint64)
}

// packetRules are those of some families, and where node ports may answer on
// localhost.
func packetRules(families []model.Family, localhost bool) (rules []packetRule) {
	for _, f := range families {
		rules = append(rules, packetRule{
			filter(f, chainForward),
			invalid(),
			func(p *dataplane.Packets, n uint64) { p.Invalid += n },
		})
		if f == model.IPv4 && localhost {
			rules = append(rules, packetRule{
				nat(f, chainPostrouting),
				toLocalhost(),
				func(p *dataplane.Packets, n uint64) { p.Localhost += n },
			})
		}
	}
	return rules
}

// packetSum adds up what rules have matched, also across a time in which one was
// written anew.
type packetSum struct {
	dataplane.Packets
	rules  []packetRule
	before []uint64 // by rule, as read last
}

func newPacketSum(rules []packetRule) *packetSum {
	return &packetSum{rules: rules, before: make([]uint64, len(rules))}
}

// count adds what a rule has matched since it was read before. One that counts
// less than then has begun at zero again.
func (s *packetSum) count(i int, n uint64) {
	before := s.before[i]
	if n < before {
		before = 0
	}
	s.rules[i].add(&s.Packets, n-before)
	s.before[i] = n
}
