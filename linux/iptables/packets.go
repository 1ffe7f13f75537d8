package iptables

import (
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

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
