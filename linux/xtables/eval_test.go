// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
)

// Packets go through chains as in the kernel, and take each branch that chance and
// the past leave open.
func TestSim(t *testing.T) {
	chains := map[string][]string{
		PreRouting: {"-d 10.0.0.9/32 -j SERVICE", "-d 10.0.0.8/32 -g GONE", "-m mark --mark 0x2/0x2 -j DROP", "-j ACCEPT"},
		"GONE":     {"-j RETURN", "-j DROP"},
		"SERVICE": {
			"-m foreign -j DROP", "-s 10.9.0.0/16 -j MARK --set-xmark 0x3/0x3", "-i eth+ -m set --match-set CLUSTER dst,dst -j SET --map-set CLUSTER dst,dst --map-mark",
			"-m addrtype --src-type LOCAL -j REJECT", "-m recent --rcheck --seconds 1 --reap --name A --rsource -j TO-A",
			"-m statistic --mode random --probability 0.5 -j TO-A", "-p udp -j RETURN", "-p tcp -m tcp --dport 80 -j DNAT --to-destination 10.1.0.2:8080",
		},
		"TO-A": {"-m conntrack ! --ctstate NEW -j DROP", "-j DNAT --to-destination 10.1.0.1:8080"},
	}
	parsed := map[string]int{}
	rules := func(id ChainID) (rules []Rule) {
		parsed[id.Chain]++
		for _, l := range chains[id.Chain] {
			rules = append(rules, ParseRule(l))
		}
		return rules
	}
	s := &Sim{Rules: rules, Local: netip.Addr.IsLoopback, Set: func(set, fields string, p *Packet) (SetMark, bool) {
		return SetMark{Value: 2, Mask: 2}, set == "CLUSTER" && fields == "dst,dst" && p.Dst.Port() == 81
	}}
	a, b := DNAT{netip.MustParseAddrPort("10.1.0.1:8080")}, DNAT{netip.MustParseAddrPort("10.1.0.2:8080")}
	for _, c := range []struct {
		src, dst string
		proto    model.Proto
		in       string
		want     []Target
		mark     uint32
	}{
		{"10.8.0.1", "10.0.0.1:80", model.TCP, "eth0", []Target{Accept}, 0},
		{"10.8.0.1", "10.0.0.9:80", model.TCP, "eth0", []Target{a, a, b}, 0},
		{"10.9.0.1", "10.0.0.9:80", model.TCP, "eth0", []Target{a, a, b}, 3},
		{"10.8.0.1", "10.0.0.9:81", model.UDP, "eth0", []Target{a, a, Drop}, 2},
		{"10.8.0.1", "10.0.0.9:81", model.UDP, "lo", []Target{a, a, Accept}, 0},
		{"127.0.0.1", "10.0.0.9:80", model.TCP, "eth0", []Target{Reject}, 0},
		{"10.8.0.1", "10.0.0.9:80", model.TCP, "", []Target{Reject}, 0},
		{"10.8.0.1", "10.0.0.8:80", model.TCP, "eth0", []Target{nil}, 0},
	} {
		p := Packet{Src: netip.MustParseAddr(c.src), Dst: netip.MustParseAddrPort(c.dst), Proto: c.proto, In: c.in}
		var got []Target
		for _, e := range s.Run(NAT, PreRouting, p) {
			got = append(got, e.By)
			if _, sent := e.By.(DNAT); e.Mark != c.mark || e.DNATed != sent {
				t.Errorf("%+v: %+v", c, e)
			}
		}
		for _, x := range c.want {
			if i := slices.Index(got, x); i >= 0 {
				got = slices.Delete(got, i, i+1)
			} else {
				t.Errorf("%+v: not %v", c, x)
			}
		}
		if len(got) > 0 {
			t.Errorf("%+v: also %v", c, got)
		}
	}
	for chain, n := range parsed {
		if n > 1 {
			t.Errorf("%s was parsed %d times", chain, n)
		}
	}
}
