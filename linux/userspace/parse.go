package userspace

import (
	"fmt"
	"math/bits"
	"net/netip"
	"strconv"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
)

// saved is what iptables-save says of the nat table.
type saved struct {
	chains map[string]bool
	rules  []savedRule // in their order
}

// savedRule is a rule in its chain. Where it is not one that we could have
// written, known is false.
type savedRule struct {
	chain string
	text  string // after "-A CHAIN"
	rule  Rule
	known bool
}

// parse reads the output of iptables-save -t nat. Only chains that want names
// are read.
func parse(text string, want func(chain string) bool) (s saved, err error) {
	s.chains = map[string]bool{}
	complete := !strings.Contains(text, "*nat") // never used in this namespace
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		switch {
		case strings.HasPrefix(line, ":"):
			name, _, _ := strings.Cut(line[1:], " ")
			s.chains[name] = true
		case strings.HasPrefix(line, "-A "):
			chain, rest, _ := strings.Cut(line[3:], " ")
			if want(chain) {
				r, err := parseRule(rest)
				s.rules = append(s.rules, savedRule{chain: chain, text: rest, rule: r, known: err == nil})
			}
		case line == "COMMIT":
			complete = true
		}
	}
	if !complete {
		return s, fmt.Errorf("the listing of the nat table has no end")
	}
	return s, nil
}

// parseRule reads one rule. The error says that it is not of ours.
func parseRule(text string) (r Rule, err error) {
	words, err := split(text)
	if err != nil {
		return r, err
	}
	for len(words) > 0 {
		n, err := r.option(words)
		if err != nil {
			return r, err
		}
		words = words[n:]
	}
	return r, nil
}

// option reads what words begin with and returns how many words that was.
func (r *Rule) option(words []string) (n int, err error) {
	if len(words) < 2 {
		return 0, fmt.Errorf("%q has no value", words[0])
	}
	arg := words[1]
	switch words[0] {
	case "-s":
		r.Src, err = parsePrefix(arg)
	case "-d":
		r.Dst, err = parsePrefix(arg)
	case "-i":
		r.In = arg
	case "-p":
		r.Proto, err = parseProto(arg)
	case "-m":
		if arg != "addrtype" && arg != "comment" && arg != "mark" && arg != r.Proto.String() {
			err = fmt.Errorf("match %q", arg)
		}
	case "--dst-type":
		if r.Local = arg == "LOCAL"; !r.Local {
			err = fmt.Errorf("address type %q", arg)
		}
	case "--mark":
		r.Mark, err = parseMark(arg)
	case "--comment":
		r.Comment = arg
	case "--dport":
		r.Port, err = parsePort(arg)
	case "-j":
		if arg != "DNAT" {
			r.Jump = arg
		}
	case "--to-destination":
		r.To, err = netip.ParseAddrPort(arg)
	default:
		err = fmt.Errorf("option %q", words[0])
	}
	return 2, err
}

func parsePrefix(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("prefix %q", s)
	}
	return p, nil
}

// parseMark reads a bit that a mark must have.
func parseMark(s string) (uint32, error) {
	value, mask, _ := strings.Cut(s, "/")
	bit, err := strconv.ParseUint(value, 0, 32)
	if err != nil || bits.OnesCount64(bit) != 1 || value != mask {
		return 0, fmt.Errorf("mark %q", s)
	}
	return uint32(bit), nil
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err
}

func parseProto(s string) (model.Proto, error) {
	for _, p := range [...]model.Proto{model.TCP, model.UDP, model.SCTP} {
		if p.String() == s {
			return p, nil
		}
	}
	return 0, fmt.Errorf("protocol %q", s)
}

// split cuts a line into words. A word with blanks is in double quotes, within
// which a backslash takes the meaning from what follows.
func split(line string) (words []string, err error) {
	var word strings.Builder
	in, quoted, escaped := false, false, false
	for _, r := range line {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case quoted && r == '\\':
			escaped = true
		case r == '"':
			in, quoted = true, !quoted
		case r == ' ' && !quoted:
			if in {
				words = append(words, word.String())
				word.Reset()
			}
			in = false
		default:
			in = true
			word.WriteRune(r)
		}
	}
	if quoted || escaped {
		return nil, fmt.Errorf("a quote without end in %q", line)
	}
	if in {
		words = append(words, word.String())
	}
	return words, nil
}
