// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// asAnswered is a rule as the kernel answers with it.
func asAnswered(t *testing.T, f model.Family, r Rule, more func(*encoder)) netlink.Message {
	t.Helper()
	e := encoder{Writer: &netlink.Writer{}, family: f}
	e.Begin(subsystem<<8|msgNewRule, 0, 1, netlink.FamilyOf(f), 0)
	list := e.Nest(attrRuleExpressions)
	for _, s := range r.Statements {
		s.encode(&e)
	}
	if more != nil {
		more(&e)
	}
	e.NestEnd(list)
	if r.Comment != "" {
		var n notes
		n.comment(r.Comment)
		e.Bytes(attrRuleUserdata, n)
	}
	e.End()
	for m, err := range netlink.Messages(e.Buf) {
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	t.Fatal("no message")
	return netlink.Message{}
}

// The text that is read from a rule's expressions is the one that nft lists for it, but for some that are shorter.
func TestRulesAreSpelled(t *testing.T) {
	v4 := []Rule{
		NewRule(SourceIn{netip.MustParsePrefix("10.0.0.0/8")}, Accept{}),
		NewRule(SourceIn{netip.MustParsePrefix("192.0.2.0/30")}, DestinationIn{netip.MustParsePrefix("192.0.2.7/32"), true}, Drop{}),
		NewRule(FibLocal{}, Jump{"nodeports"}), NewRule(FibLocal{Not: true}, Return{}),
		NewRule(IifName{Name: "eth0"}, Accept{}), NewRule(IifName{Name: "cali", Prefix: true}, Accept{}),
		NewRule(L4ProtoIs{model.UDP}, MarkHas{Bit: 0x4000}, Goto{"next"}), NewRule(MarkHas{0x4000, true}, Return{}),
		NewRule(CtState{CtInvalid}, Drop{}), NewRule(CtState{CtNew}, CtState{CtKnown}, Accept{}),
		NewRule(Lookup{pairs, false}, Reject{}), NewRule(Lookup{places, true}, Return{}),
		NewRule(SetMark{0x4000}), NewRule(RestoreSource{}), NewRule(Vmap{answers}),
		{Statements: []Statement{Drop{}}, Comment: "no endpoints of shop/web"},
	}
	shorter := map[string]Rule{
		"ct state new ct status & 0x00000020 == 0x00000000 drop":                              NewRule(CtState{CtNew}, CtDNAT{Not: true}, Drop{}),
		"tcp flags & 0x02 == 0x00 return":                                                     NewRule(NotSYN{}, Return{}),
		"dnat to 10.244.0.7 . 8080":                                                           NewRule(DNAT{netip.MustParseAddrPort("10.244.0.7:8080")}),
		"masquerade":                                                                          NewRule(Masquerade{}),
		"meta mark set meta mark & 0xffffbfff":                                                NewRule(ClearMark{0x4000}),
		"update @clients { ip saddr . ip daddr . meta l4proto . ip daddr }":                   NewRule(Update{clients, time.Hour}),
		"dnat to ip daddr . meta l4proto . th dport . numgen random mod 3 map @numbers":       NewRule(DNATMap{numbers, Numgen{Mod: 3}}),
		"dnat to ip daddr . meta l4proto . th dport . numgen inc mod 3 offset 2 map @numbers": NewRule(DNATMap{numbers, Numgen{Mod: 3, By: InTurn, Offset: 2}}),
	}
	for _, r := range v4 {
		if got, want := spell(asAnswered(t, model.IPv4, r, nil)), r.Text(model.IPv4); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
	for want, r := range shorter {
		if got := spell(asAnswered(t, model.IPv4, r, nil)); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
	six := NewRule(SourceIn{netip.MustParsePrefix("2001:db8::/32")}, DestinationIn{Prefix: netip.MustParsePrefix("2001:db8::7/128")}, Vmap{answers})
	if got, want := spell(asAnswered(t, model.IPv6, six, nil)), six.Text(model.IPv6); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	port := func(n uint16) []byte { return []byte{byte(n >> 8), byte(n)} }
	others := func(e *encoder) { // tcp dport 30000-32767, twice; fib saddr . mark . iif oif missing
		e.expr("payload", func() {
			e.Uint32(payloadDreg, reg0)
			e.Uint32(payloadBase, baseTransport)
			e.Uint32(payloadOffset, 2)
			e.Uint32(payloadLen, 2)
		})
		e.cmp(5, port(30000))
		e.cmp(3, port(32767))
		e.expr("range", func() {
			e.Uint32(1, reg0)
			e.Uint32(2, notEqual)
			e.value(3, port(30100))
			e.value(4, port(30199))
		})
		e.expr("fib", func() {
			e.Uint32(fibDreg, reg0)
			e.Uint32(fibResult, 1)
			e.Uint32(fibFlags, 1|1<<2|1<<3)
		})
		e.cmp(equal, host32(0))
	}
	if got, want := spell(asAnswered(t, model.IPv4, NewRule(), others)), "th dport >= 30000 th dport <= 32767 th dport != 30100-30199 fib 0x00000000"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	iptables := func(e *encoder) {
		e.expr("match", func() {
			e.Text(1, "comment")
			e.Bytes(3, append([]byte("shop/web \x1b[31mred"), 0, 0))
		})
		e.expr("counter", nil)
		e.expr("target", func() { e.Text(1, "REJECT") })
	}
	if got := spell(asAnswered(t, model.IPv4, NewRule(), iptables)); got != "/* shop/web ?[31mred */ counter -j REJECT" {
		t.Error(got)
	}
}

// Whatever a rule of another program holds, its text is bounded and printable.
func TestAnyRuleIsSpelled(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	names := []string{"payload", "meta", "ct", "fib", "numgen", "hash", "bitwise", "cmp", "range", "immediate", "lookup", "dynset", "nat", "match", "target", "x\x1by"}
	for range 20000 {
		m := asAnswered(t, model.IPv4, NewRule(), func(e *encoder) {
			for range random.IntN(20) {
				e.expr(names[random.IntN(len(names))], func() {
					for kind := range uint16(8) {
						switch random.IntN(3) {
						case 0:
							e.Uint32(kind+1, random.Uint32N(20))
						case 1:
							e.value(kind+1, []byte(strings.Repeat("\x1b", random.IntN(40))))
						}
					}
				})
			}
		})
		if text := spell(m); len(text) > maxSpelled+3 || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Fatalf("%d bytes: %q", len(text), text)
		}
	}
}

func TestHookText(t *testing.T) {
	for want, hook := range map[string]Hook{
		"type filter hook input priority filter; policy accept;":   {Type: "filter", Point: LocalIn, Policy: PolicyAccept},
		"type nat hook prerouting priority dstnat; policy accept;": NATHook(PreRouting),
		"type nat hook output priority -100; policy accept;":       NATHook(LocalOut),
	} {
		if got := hook.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
