// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
)

// ParseRule reads a rule as iptables-save prints it, without "-A CHAIN". A rule with
// unknown options is Unparsed. Options may be in any order, and defaults may be
// explicit.
func ParseRule(text string) Rule {
	p := parser{text: text}
	for !p.end() {
		p.option()
	}
	p.finish()
	if p.err != nil {
		return Rule{Unparsed: text}
	}
	return p.rule
}

// parser reads the options of one rule. An error ends it.
type parser struct {
	text string
	rule Rule
	err  error

	protocol string // of -m tcp, udp or sctp
	needs    string // an option without which the target is not complete
	recent   *recentOptions
	random   bool
}

type recentOptions struct {
	Recent
	check, reap bool
}

func (p *parser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf(format, args...)
	}
	p.text = ""
}

func (p *parser) end() bool {
	p.text = strings.TrimLeft(p.text, " ")
	return p.text == ""
}

// word returns the next word; a quoted one may hold spaces, and escapes.
func (p *parser) word() (word string) {
	if p.end() {
		p.fail("missing value")
		return ""
	}
	if p.text[0] != '"' {
		word, p.text, _ = strings.Cut(p.text, " ")
		return word
	}
	word, rest, ok := unquote(p.text[1:])
	if !ok {
		p.fail("unterminated quote")
		return ""
	}
	p.text = rest
	return word
}

func unquote(s string) (word, rest string, ok bool) {
	end := strings.IndexAny(s, `"\`)
	if end >= 0 && s[end] == '"' {
		return s[:end], s[end+1:], true
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '"':
			return b.String(), s[i+1:], true
		case '\\':
			if i++; i == len(s) {
				return "", "", false
			}
		}
		b.WriteByte(s[i])
	}
	return "", "", false
}

// name returns a word that can be written without quotes.
func (p *parser) name() string {
	w := p.word()
	if w == "" || strings.ContainsAny(w, " \t\n\"\\") {
		p.fail("%q is not a name", w)
	}
	return w
}

func (p *parser) expect(known ...string) {
	if w := p.word(); !slices.Contains(known, w) {
		p.fail("unexpected %q", w)
	}
}

func (p *parser) add(m Match) { p.rule.Matches = append(p.rule.Matches, m) }

// option reads the options that may be negated.
func (p *parser) option() {
	option := p.word()
	not := option == "!"
	if not {
		option = p.word()
	}
	switch r := &p.rule; option {
	case "-s":
		r.Src = p.addrs(not)
	case "-d":
		r.Dst = p.addrs(not)
	case "-i":
		r.In = Interface{p.name(), not}
	case "--src-type":
		p.expect("LOCAL")
		p.add(SrcLocal{not})
	case "--dst-type":
		p.expect("LOCAL")
		p.add(DstLocal{not})
	case "--mark":
		value, mask := p.mark()
		p.add(HasMark{value, mask, not})
	case "--match-set":
		p.add(InSet{p.name(), p.name(), not})
	case "--ctstate":
		p.add(State{p.name(), not})
	default:
		if not {
			p.fail("%q negated", option)
			return
		}
		p.plain(option)
	}
}

// plain reads the options that are never negated.
func (p *parser) plain(option string) {
	switch option {
	case "-p":
		p.rule.Proto = p.proto()
	case "-m":
		p.extension(p.word())
	case "--comment":
		if p.rule.Comment = p.word(); len(p.rule.Comment) > MaxComment {
			p.fail("comment too long")
		}
	case "--dport":
		p.rule.Ports = p.ports()
	case "--mode":
		p.expect("random")
		p.random = true
	case "--probability":
		p.add(p.chance())
		p.random = false
	case "-j":
		p.target(p.name())
	case "-g":
		p.rule.Target = Goto{p.name()}
	default:
		if p.needs != "" || p.rule.Target != nil {
			p.targetOption(option)
		} else {
			p.recentOption(option)
		}
	}
}

func (p *parser) extension(name string) {
	switch name {
	case "comment", "addrtype", "conntrack", "mark", "set", "statistic":
	case "recent":
		p.recent = &recentOptions{}
	case "tcp", "udp", "sctp":
		p.protocol = name
	default:
		p.fail("match %q", name)
	}
}

func (p *parser) target(name string) {
	switch name {
	case "ACCEPT":
		p.rule.Target = Accept
	case "DROP":
		p.rule.Target = Drop
	case "REJECT":
		p.rule.Target = Reject
	case "RETURN":
		p.rule.Target = Return
	case "MASQUERADE":
		p.rule.Target = Masquerade{}
	case "DNAT":
		p.needs = "--to-destination"
	case "MARK":
		p.needs = "--set-xmark"
	case "SET":
		p.needs = "--map-set"
	default:
		p.rule.Target = Jump{name}
	}
}

func (p *parser) targetOption(option string) {
	switch {
	case p.needs != "" && option != p.needs:
		p.fail("option %q", option)
	case option == "--to-destination" && p.needs != "":
		to, err := netip.ParseAddrPort(p.word())
		if err != nil || to.Addr().Zone() != "" {
			p.fail("destination: %v", err)
		}
		p.rule.Target, p.needs = DNAT{to}, ""
	case option == "--set-xmark" && p.needs != "":
		value, mask := p.mark()
		p.rule.Target, p.needs = SetMark{value, mask}, ""
	case option == "--map-set" && p.needs != "":
		p.rule.Target, p.needs = MapMark{p.name(), p.name()}, ""
		p.expect("--map-mark")
	case option == "--random-fully" && p.rule.Target == Masquerade{}:
		p.rule.Target = Masquerade{RandomFully: true}
	case option == "--reject-with" && p.rule.Target == Reject:
		p.expect("icmp-port-unreachable", "icmp6-port-unreachable")
	default:
		p.fail("option %q", option)
	}
}

func (p *parser) recentOption(option string) {
	m := p.recent
	if m == nil {
		p.fail("option %q", option)
		return
	}
	switch option {
	case "--set":
		m.Set = true
	case "--rcheck":
		m.check = true
	case "--reap":
		m.reap = true
	case "--rsource":
	case "--seconds":
		m.Seconds = p.number(10, 32)
	case "--name":
		m.Name = p.name()
	case "--mask":
		p.expect("255.255.255.255", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
	default:
		p.fail("option %q", option)
	}
}

// finish adds matches that consist of several options, and rejects combinations that
// could not be written back.
func (p *parser) finish() {
	if m := p.recent; m != nil {
		p.add(m.Recent)
		check := m.check && m.reap && m.Seconds > 0
		note := m.Set && !m.check && !m.reap && m.Seconds == 0
		if m.Name == "" || check == note {
			p.fail("unknown form of the recent match")
		}
	}
	switch r := &p.rule; {
	case p.random || p.needs != "":
		p.fail("missing option")
	case r.Ports != (Ports{}) && p.protocol == "", p.protocol != "" && p.protocol != r.Proto.String():
		p.fail("port without protocol")
	}
}

func (p *parser) number(base, bits int) uint32 {
	n, err := strconv.ParseUint(p.word(), base, bits)
	if err != nil {
		p.fail("%w", err)
	}
	return uint32(n)
}

func (p *parser) addrs(not bool) Addrs {
	w := p.word()
	if !strings.Contains(w, "/") {
		a, err := netip.ParseAddr(w)
		if err != nil || a.Is4In6() || a.Zone() != "" {
			p.fail("address %q", w)
			return Addrs{}
		}
		return Addrs{Address(a).Prefix, not}
	}
	prefix, err := netip.ParsePrefix(w)
	if err != nil || prefix != prefix.Masked() || prefix.Addr().Is4In6() {
		p.fail("prefix %q", w)
	}
	return Addrs{prefix, not}
}

func (p *parser) proto() model.Proto {
	w := p.word()
	for _, known := range [...]model.Proto{model.TCP, model.UDP, model.SCTP} {
		if w == known.String() {
			return known
		}
	}
	p.fail("protocol %q", w)
	return 0
}

func (p *parser) ports() Ports {
	first, last, isRange := strings.Cut(p.word(), ":")
	if !isRange {
		last = first
	}
	a, err1 := strconv.ParseUint(first, 10, 16)
	b, err2 := strconv.ParseUint(last, 10, 16)
	if err := errors.Join(err1, err2); err != nil || b == 0 {
		p.fail("ports: %v", err)
	}
	return Ports{uint16(a), uint16(b)}
}

func (p *parser) mark() (value, mask uint32) {
	v, m, masked := strings.Cut(p.word(), "/")
	if !masked {
		m = "0xffffffff"
	}
	a, err1 := strconv.ParseUint(v, 0, 32)
	b, err2 := strconv.ParseUint(m, 0, 32)
	if err := errors.Join(err1, err2); err != nil {
		p.fail("mark: %w", err)
	}
	return uint32(a), uint32(b)
}

func (p *parser) chance() Chance {
	f, err := strconv.ParseFloat(p.word(), 64)
	c := Chance(math.Round(f * (1 << 31)))
	if err != nil || !(f > 0 && f <= 1) || c == 0 {
		p.fail("probability")
	}
	return c
}
