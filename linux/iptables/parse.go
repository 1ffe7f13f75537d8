package iptables

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
)

// parseRule reads a rule as iptables-save prints it, without "-A CHAIN". It
// knows no more than Rule has: anything else is an error, and so not ours. The
// order of matches is of no meaning, and what goes without saying may be said.
func parseRule(text string) (Rule, error) {
	words, err := split(text)
	if err != nil {
		return Rule{}, err
	}
	p := parser{words: words}
	for len(p.words) > 0 {
		if err := p.option(); err != nil {
			return Rule{}, err
		}
	}
	return p.rule, p.check()
}

// parser reads the options of one rule.
type parser struct {
	words []string
	rule  Rule
}

func (p *parser) next() (word string) {
	if len(p.words) > 0 {
		word, p.words = p.words[0], p.words[1:]
	}
	return word
}

func (p *parser) option() (err error) {
	not := p.words[0] == "!"
	if not {
		p.next()
	}
	r := &p.rule
	option := p.next()
	switch option {
	case "-s":
		r.Src, err = parseAddrMatch(p.next(), not)
		return err
	case "-d":
		r.Dst, err = parseAddrMatch(p.next(), not)
		return err
	case "-i":
		r.In = nameMatch{p.next(), not}
		return nil
	case "--ctstate":
		r.State = nameMatch{p.next(), not}
		return nil
	case "--dst-type":
		r.DstLocal, r.DstRemote = !not, not
		return want(p.next(), "LOCAL")
	case "--ctorigdst":
		r.OrigDst, err = parseAddrMatch(p.next(), not)
		return err
	case "--mark":
		r.Mark.Not = not
		r.Mark.Value, r.Mark.Mask, err = parseMark(p.next())
		return err
	}
	if not {
		return fmt.Errorf("%q negated", option)
	}
	return p.plain(option)
}

// plain reads the options that are never negated.
func (p *parser) plain(option string) (err error) {
	r := &p.rule
	switch option {
	case "-p":
		r.Proto, err = parseProto(p.next())
	case "-m":
		return p.match(p.next())
	case "-j", "-g":
		r.Target, r.Goto = p.next(), option == "-g"
	case "--comment":
		r.Comment = p.next()
	case "--src-type":
		r.SrcLocal, err = true, want(p.next(), "LOCAL")
	case "--dport":
		r.Ports, err = parsePorts(p.next())
	case "--mode":
		err = want(p.next(), "random")
	case "--probability":
		r.Chance, err = parseChance(p.next())
	case "--to-destination":
		r.To, err = netip.ParseAddrPort(p.next())
	case "--set-xmark":
		r.XMark.Given = true
		r.XMark.Value, r.XMark.Mask, err = parseMark(p.next())
	case "--random-fully":
		r.RandomFully = true
	case "--reject-with":
		err = want(p.next(), "icmp-port-unreachable", "icmp6-port-unreachable")
	default:
		return p.recent(option)
	}
	return err
}

func (p *parser) match(name string) error {
	return want(name, "comment", "addrtype", "conntrack", "mark", "recent", "statistic", "tcp", "udp", "sctp")
}

func (p *parser) recent(option string) (err error) {
	m := &p.rule.Remember
	switch option {
	case "--set":
		m.Set = true
	case "--rcheck", "--reap", "--rsource":
	case "--seconds":
		var n uint64
		n, err = strconv.ParseUint(p.next(), 10, 32)
		m.Seconds = uint32(n)
	case "--name":
		m.Name = p.next()
	case "--mask":
		err = want(p.next(), "255.255.255.255", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
	default:
		return fmt.Errorf("unknown option %q", option)
	}
	return err
}

// check finds what no rule of ours is like, and could not be written again.
func (p *parser) check() error {
	r := &p.rule
	switch {
	case r.Ports != (portRange{}) && r.Proto == 0:
		return errors.New("a port without a protocol")
	case r.Remember != (recent{}) && r.Remember.Name == "":
		return errors.New("a list without a name")
	case r.Remember.Set && r.Remember.Seconds != 0:
		return errors.New("set and rcheck")
	case len(r.Comment) > maxComment:
		return errors.New("a comment that is too long")
	}
	for _, name := range []string{r.In.Name, r.State.Name, r.Remember.Name, r.Target} {
		if strings.ContainsAny(name, " \t\"\\") {
			return fmt.Errorf("%q is no name", name)
		}
	}
	return nil
}

func want(word string, known ...string) error {
	for _, k := range known {
		if word == k {
			return nil
		}
	}
	return fmt.Errorf("unexpected %q", word)
}

func parseAddrMatch(s string, not bool) (m addrMatch, err error) {
	m.Not = not
	if !strings.Contains(s, "/") {
		a, err := netip.ParseAddr(s)
		return addrMatch{exactly(a).Prefix, not}, err
	}
	if m.Prefix, err = netip.ParsePrefix(s); err == nil && m.Prefix != m.Prefix.Masked() {
		err = fmt.Errorf("%s is not canonical", s)
	}
	return m, err
}

func parseProto(s string) (model.Proto, error) {
	for _, p := range []model.Proto{model.TCP, model.UDP, model.SCTP} {
		if s == p.String() {
			return p, nil
		}
	}
	return 0, fmt.Errorf("protocol %q", s)
}

func parsePorts(s string) (r portRange, err error) {
	first, last, isRange := strings.Cut(s, ":")
	if !isRange {
		last = first
	}
	a, err := strconv.ParseUint(first, 10, 16)
	if err != nil {
		return r, err
	}
	b, err := strconv.ParseUint(last, 10, 16)
	return portRange{uint16(a), uint16(b)}, err
}

func parseMark(s string) (value, mask uint32, err error) {
	v, m, masked := strings.Cut(s, "/")
	if !masked {
		m = "0xffffffff"
	}
	a, err := strconv.ParseUint(v, 0, 32)
	if err != nil {
		return 0, 0, err
	}
	b, err := strconv.ParseUint(m, 0, 32)
	return uint32(a), uint32(b), err
}

func parseChance(s string) (uint32, error) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f > 0 && f <= 1) {
		return 0, fmt.Errorf("probability %q", s)
	}
	return uint32(math.Round(f * (1 << 31))), nil
}

// split cuts a line into words. Quoted ones may hold spaces, and escapes.
func split(line string) (words []string, err error) {
	for {
		line = strings.TrimLeft(line, " \n")
		if line == "" {
			return words, nil
		}
		if line[0] != '"' {
			word, rest, _ := strings.Cut(line, " ")
			words, line = append(words, strings.TrimSuffix(word, "\n")), rest
			continue
		}
		word, rest, err := unquote(line[1:])
		if err != nil {
			return nil, err
		}
		words, line = append(words, word), rest
	}
}

func unquote(s string) (word, rest string, err error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '"':
			return b.String(), s[i+1:], nil
		case '\\':
			if i++; i == len(s) {
				return "", "", errors.New("a quote that never ends")
			}
		}
		b.WriteByte(s[i])
	}
	return "", "", errors.New("a quote that never ends")
}
