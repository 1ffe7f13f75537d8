package iptables

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
)

// Two rules are there to count, too: kube-proxy counts the same packets, by
// objects of nfnetlink_acct, which not every kernel has. Rules count anywhere.

// invalid drops packets that connection tracking makes no sense of. Some of them
// would reset connections (issue 74839 of kubernetes/kubernetes).
func invalid() Rule { return Rule{State: nameMatch{Name: "INVALID"}, Target: targetDrop} }

// toLocalhost does nothing with the first packet of each connection to a node
// port on 127.0.0.0/8. It stands among the rules for packets that are marked, as
// all of those are: pods could not answer that address.
func toLocalhost() Rule {
	return Rule{OrigDst: addrMatch{Prefix: loopback[model.IPv4]}, Comment: "counts connections to node ports on localhost"}
}

// packetRule is a rule whose packets are told.
type packetRule struct {
	chainID
	rule Rule
	add  func(*dataplane.Packets, uint64)
}

// packetRules are those of some families, and where node ports may answer on
// localhost.
func packetRules(families []model.Family, localhost bool) (rules []packetRule) {
	for _, f := range families {
		rules = append(rules, packetRule{
			chainID{f, Filter, chainForward},
			invalid(),
			func(p *dataplane.Packets, n uint64) { p.Invalid += n },
		})
		if f == model.IPv4 && localhost {
			rules = append(rules, packetRule{
				chainID{f, NAT, chainPostrouting},
				toLocalhost(),
				func(p *dataplane.Packets, n uint64) { p.Localhost += n },
			})
		}
	}
	return rules
}

// counters are those of a rule, packets and bytes, as "iptables -v -S" has them.
var counters = regexp.MustCompile(` -c ([0-9]+) [0-9]+`)

// packets finds the rule in what "iptables -v -S CHAIN" prints, and returns how
// many packets it has matched. A rule that is not there has matched none.
func (r packetRule) packets(listing string) (uint64, error) {
	for l := range strings.Lines(listing) {
		text, ours := strings.CutPrefix(l, "-A "+r.Chain+" ")
		at := counters.FindStringSubmatchIndex(text)
		if !ours || at == nil {
			continue
		}
		if rule, err := parseRule(text[:at[0]] + text[at[1]:]); err != nil || rule != r.rule {
			continue
		}
		n, err := strconv.ParseUint(text[at[2]:at[3]], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("packets of a rule: %w", err)
		}
		return n, nil
	}
	return 0, nil
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
