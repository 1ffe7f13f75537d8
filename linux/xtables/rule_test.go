// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
)

// Texts that are canonical already.
var texts = []string{
	"",
	"-j DROP",
	"-g KUBE-IP-10.0.0.0/8",
	`-s 10.0.0.0/8 -d 10.96.0.1/32 -p tcp -m comment --comment "a/b:c" -m tcp --dport 80 -j KUBE-SVC-A`,
	`! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "a \"b\" \\ c" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP`,
	"! -i veth+ -p udp -m udp --dport 16:31 -j RETURN",
	"-s 2001:db8::/64 -d fd00::1/128 -j REJECT",
	"-m addrtype --src-type LOCAL -m addrtype ! --dst-type LOCAL -j ACCEPT",
	"-m mark ! --mark 0x4000/0x4000 -j RETURN",
	"-m mark --mark 0x1/0x1 -m mark --mark 0x2/0x2 -j ACCEPT",
	"-m set --match-set KUBE-LOOP-BACK dst,dst,src -m set ! --match-set KUBE-6-IPVS-IPS dst -m conntrack --ctstate NEW -m conntrack ! --ctstate DNAT -j MASQUERADE",
	"-m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-A --rsource -j KUBE-SEP-A",
	"-p tcp -m recent --set --name KUBE-SEP-A --rsource -j DNAT --to-destination 10.0.0.1:80",
	"-m statistic --mode random --probability 0.33333333349 -j KUBE-SEP-B",
	"-p sctp -j DNAT --to-destination [fd00::1]:80",
	"-j MARK --set-xmark 0x0/0x4000",
	"-j MASQUERADE --random-fully",
	"-j SET --map-set KUBE-CLUSTER-IP dst,dst --map-mark",
}

// A rule has one text, and what is written is read back as it was.
func TestTextsComeBack(t *testing.T) {
	for _, text := range texts {
		r := ParseRule(text)
		if got := r.String(); got != text || r.Unparsed != "" {
			t.Errorf("%q is read as %q (foreign: %q)", text, got, r.Unparsed)
		}
		l := List(r)
		if back := List(slices.Collect(l.All())...); back != l || l.Len() != 1 {
			t.Errorf("%q comes back as %q", l, back)
		}
	}
}

// Other spellings of a rule are the same rule.
func TestOtherSpellings(t *testing.T) {
	for printed, text := range map[string]string{
		"-d 10.0.0.1 -p tcp -m tcp -j ACCEPT":                                                                "-d 10.0.0.1/32 -p tcp -j ACCEPT",
		"-p tcp -m tcp --dport 80:80 -m comment --comment web -j X":                                          `-p tcp -m comment --comment "web" -m tcp --dport 80 -j X`,
		"-m mark --mark 0x10 -j X":                                                                           "-m mark --mark 0x10/0xffffffff -j X",
		"-m conntrack --ctstate NEW -m mark --mark 1/1 -j X":                                                 "-m mark --mark 0x1/0x1 -m conntrack --ctstate NEW -j X",
		"-j REJECT --reject-with icmp6-port-unreachable":                                                     "-j REJECT",
		"-m recent --set --name A --mask 255.255.255.255 --rsource":                                          "-m recent --set --name A --rsource",
		"-m addrtype --src-type LOCAL --dst-type LOCAL -j X":                                                 "-m addrtype --src-type LOCAL -m addrtype --dst-type LOCAL -j X",
		"-m recent --name A --reap --seconds 3 --rcheck --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff -j X": "-m recent --rcheck --seconds 3 --reap --name A --rsource -j X",
	} {
		if r := ParseRule(printed); r.String() != text || r.Unparsed != "" || !r.Equal(ParseRule(text)) {
			t.Errorf("%q is read as %q, want %q", printed, r, text)
		}
	}
}

// What is not one of our rules stays as it was printed, and is no rule of ours by
// leaving out what was not understood.
func TestForeign(t *testing.T) {
	for _, text := range []string{
		"-m tos --tos 0x10 -j RETURN", "-j LOG --log-prefix x", "-o eth0 -j X", "-p icmp -j X", "! -p tcp -j X",
		"-p tcp -m udp --dport 80 -j X", "-m tcp --dport 80 -j X", "-p tcp -m tcp --dport 0 -j X", "-p tcp --dport 80 -j X",
		"-m statistic --mode nth --every 3 --packet 0 -j X", "-m statistic --mode random --probability 0.00000000001 -j X", "-m statistic --mode random -j X",
		"-m recent --update --seconds 3 --reap --name A --rsource", "-m recent --rcheck --seconds 3 --name A --rsource", "-m recent --set --rcheck --name A",
		"-m recent --set --rsource", "-j DNAT", "-j DNAT --to-destination 10.0.0.1", "-j DNAT --to-destination 10.0.0.1:80 --random", "-j MARK", "-j MARK --set-mark 1",
		"-j SET --add-set A src", "-j ACCEPT --random-fully", "-j REJECT --reject-with tcp-reset", "-s 10.0.0.1/8 -j X", "-s", "!", `-m comment --comment "x`,
		"-m comment --comment " + strings.Repeat("x", 256), "-i \"a b\" -j X", "-j \"\"", "-m mark --mark 0x1/0xg -j X",
	} {
		r := ParseRule(text)
		if r.Unparsed != text || r.String() != text {
			t.Errorf("%q is taken for %+v", text, r)
		}
	}
}

// A comment stays on its line, and between its quotes.
func TestComments(t *testing.T) {
	for in, want := range map[string]string{
		"a\nCOMMIT": `"a?COMMIT"`, `" -j ACCEPT`: `"\" -j ACCEPT"`, `\`: `"\\"`, "ü": `"??"`, strings.Repeat("x", 300): `"` + strings.Repeat("x", MaxComment) + `"`,
	} {
		r := Rule{Comment: in}
		if got := r.String(); got != "-m comment --comment "+want || ParseRule(got).String() != got {
			t.Errorf("%q becomes %q", in, got)
		}
	}
}

// Equal asks, whatever is said of them and done then, are the same selector.
func TestSelectors(t *testing.T) {
	a := Rule{Dst: Address(netip.MustParseAddr("10.0.0.1")), Comment: "a", Target: Drop}
	b := Rule{Dst: a.Dst, Comment: "b", Target: Jump{"X"}}
	c := b.With(DstLocal{})
	if a.Selector() != b.Selector() || a.Selector() == c.Selector() || len(b.Matches) != 0 {
		t.Errorf("%q %q %q", a.Selector(), b.Selector(), c.Selector())
	}
}

// FuzzRule reads anything: what is understood is written and read back the same.
func FuzzRule(f *testing.F) {
	for _, text := range texts {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r := ParseRule(text)
		if r.Unparsed != "" {
			return
		}
		once := r.String()
		again := ParseRule(once)
		if again.Unparsed != "" || again.String() != once || strings.Contains(once, "\n") {
			t.Fatalf("%q is read as %q, then as %q", text, once, again)
		}
		_, _ = (&Sim{Local: netip.Addr.IsLoopback, Set: func(string, string, *Packet) (SetMark, bool) { return SetMark{}, false }}).match(&r, &Packet{Proto: model.TCP})
	})
}

// Probabilities are written as iptables-save prints them.
func TestChance(t *testing.T) {
	for _, c := range []Chance{0, 1, 2, 3, 1 << 10, 3 << 10, 1<<30 - 1, 1 << 30, 1<<31 - 1, 1 << 31, math.MaxUint32} {
		checkChance(t, c)
	}
	for n := range 70_000 {
		checkChance(t, PartOf(1, n+1))
		checkChance(t, Chance(n*61_001))
	}
}

func checkChance(t *testing.T, c Chance) {
	t.Helper()
	if got, want := string(c.appendDecimal(nil)), strconv.FormatFloat(float64(c)/(1<<31), 'f', 11, 64); got != want {
		t.Errorf("%d: %s, want %s", c, got, want)
	}
}
