package iptables

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// probeRules are the kinds of rules that a full-featured port gives.
func probeRules(f model.Family, t Table, randomFully bool) (rules []Value) {
	a := netip.MustParseAddr([...]string{model.IPv4: "192.0.2.1", model.IPv6: "2001:db8::1"}[f])
	list := "TANDEM-PROBE"
	to := Rule{Dst: exactly(a), Proto: model.TCP, Ports: port(80)}
	kinds := []Rule{
		{Src: addrMatch{exactly(a).Prefix, true}, Comment: "a/b:c", State: nameMatch{Name: "NEW"}, Target: targetDrop},
		{In: nameMatch{"tandem0", true}, DstLocal: true, Mark: markMatch{DefaultMark, DefaultMark, true}, Target: targetReject},
		{Dst: exactly(a), DstRemote: true, State: nameMatch{"DNAT", true}, Target: targetDrop},
		{SrcLocal: true, Proto: model.UDP, Ports: portRange{16, 31}, Target: targetReturn},
	}
	if t == NAT {
		kinds = []Rule{
			{Dst: exactly(a), Comment: "a/b:c", Target: targetMark, XMark: markSet{DefaultMark, DefaultMark, true}},
			{Remember: recent{Name: list, Seconds: 10}, Target: targetReturn},
			{Chance: chance(3), Proto: model.TCP, Target: targetDNAT, To: netip.AddrPortFrom(a, 80)},
			{Remember: recent{Name: list, Set: true}, Proto: model.UDP, Target: targetDNAT, To: netip.AddrPortFrom(a, 80)},
			{OrigDst: exactly(a), Target: targetReturn},
			{DstLocal: true, Target: targetMasquerade, RandomFully: randomFully},
		}
	}
	for _, r := range slices.Insert(kinds, 0, to) {
		rules = append(rules, r.text())
	}
	return rules
}
