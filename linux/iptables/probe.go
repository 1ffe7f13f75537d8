package iptables

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// specimen are the kinds of rules that a full-featured port gives.
func specimen(f model.Family, t xtables.Table, randomFully bool) []xtables.Rule {
	a := netip.MustParseAddr([...]string{model.IPv4: "192.0.2.1", model.IPv6: "2001:db8::1"}[f])
	list := "TANDEM-PROBE"
	to := xtables.Rule{Dst: xtables.Address(a), Proto: model.TCP, Ports: xtables.Port(80)}
	mark := xtables.HasMark{Value: DefaultMark, Mask: DefaultMark, Not: true}
	kinds := []xtables.Rule{
		{Src: xtables.Addrs{Prefix: xtables.Address(a).Prefix, Not: true}, Comment: "a/b:c", Matches: []xtables.Match{xtables.State{Any: "NEW"}}, Target: xtables.Drop},
		{In: xtables.Interface{Name: "tandem0", Not: true}, Matches: []xtables.Match{xtables.DstLocal{}, mark}, Target: xtables.Reject},
		{Dst: xtables.Address(a), Matches: []xtables.Match{xtables.DstLocal{Not: true}, xtables.State{Any: "DNAT", Not: true}}, Target: xtables.Drop},
		{Matches: []xtables.Match{xtables.SrcLocal{}}, Proto: model.UDP, Ports: xtables.Ports{First: 16, Last: 31}, Target: xtables.Return},
	}
	if t == xtables.NAT {
		dnat := xtables.DNAT{To: netip.AddrPortFrom(a, 80)}
		kinds = []xtables.Rule{
			{Dst: xtables.Address(a), Comment: "a/b:c", Target: xtables.SetMark{Value: DefaultMark, Mask: DefaultMark}},
			{Matches: []xtables.Match{xtables.Recent{Name: list, Seconds: 10}}, Target: xtables.Return},
			{Matches: []xtables.Match{xtables.OneOf(3)}, Proto: model.TCP, Target: dnat},
			{Matches: []xtables.Match{xtables.Recent{Name: list, Set: true}}, Proto: model.UDP, Target: dnat},
			{Matches: []xtables.Match{xtables.OrigDst{Addrs: xtables.Address(a)}}, Target: xtables.Return},
			{Matches: []xtables.Match{xtables.DstLocal{}}, Target: xtables.Masquerade{RandomFully: randomFully}},
		}
	}
	return slices.Insert(kinds, 0, to)
}
