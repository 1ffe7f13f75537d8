package ipvs

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// verdict is what becomes of a packet in a chain.
type verdict uint8

const (
	goesOn verdict = iota
	returned
	dropped
	refused
	masqueraded
	accepted
)

// simRule is a rule as the simulator runs it.
type simRule struct {
	matches []func(*Sim, *packet) bool
	target  func(*Sim, *packet) verdict
}

// run runs a chain. What jumps back into a chain that is running would be a
// loop, which iptables refuses.
func (s *Sim) run(p *packet, table, name string) verdict {
rules:
	for _, r := range s.chains[chainKey{p.family, table, name}] {
		for _, m := range r.matches {
			if !m(s, p) {
				continue rules
			}
		}
		switch v := r.target(s, p); v {
		case goesOn:
		case returned:
			return goesOn
		default:
			return v
		}
	}
	return goesOn
}

// parseRule understands exactly the rules that Base writes. It panics on any
// other: the simulator must not be kinder than the kernel.
func parseRule(line string) (r simRule) {
	w := words{line: line, rest: splitRule(line)}
	r.target = func(*Sim, *packet) verdict { return goesOn }
	for len(w.rest) > 0 {
		not := w.skip("!")
		switch word := w.next(); word {
		case "-j":
			r.target = w.target()
		case "-g":
			name := w.next()
			r.target = func(s *Sim, p *packet) verdict { return max(s.run(p, "mangle", name), returned) }
		case "-s", "-d":
			prefix := netip.MustParsePrefix(w.next())
			r.add(not, func(_ *Sim, p *packet) bool {
				return prefix.Contains(map[string]netip.Addr{"-s": p.Src, "-d": p.Dst.Addr()}[word])
			})
		case "-i":
			name := w.next()
			prefix, open := strings.CutSuffix(name, "+")
			r.add(not, func(_ *Sim, p *packet) bool {
				return open && strings.HasPrefix(p.Iface, prefix) || p.Iface == name
			})
		case "-p":
			proto := w.next()
			r.add(not, func(_ *Sim, p *packet) bool { return p.Proto.String() == proto })
		case "-m":
			w.match(&r, w.next())
		default:
			w.fail(word)
		}
	}
	return r
}

func (r *simRule) add(not bool, m func(*Sim, *packet) bool) {
	r.matches = append(r.matches, func(s *Sim, p *packet) bool { return m(s, p) != not })
}

// words are what is left of a rule.
type words struct {
	line string
	rest []string
}

func (w *words) next() string {
	if len(w.rest) == 0 {
		w.fail("its end")
	}
	word := w.rest[0]
	w.rest = w.rest[1:]
	return word
}

func (w *words) skip(word string) bool {
	if len(w.rest) > 0 && w.rest[0] == word {
		w.rest = w.rest[1:]
		return true
	}
	return false
}

func (w *words) fail(at string) { panic(fmt.Sprintf("rule %q: %s is not understood", w.line, at)) }

// match parses an extension.
func (w *words) match(r *simRule, name string) {
	not := w.skip("!")
	option := w.next()
	switch name + " " + option {
	case "comment --comment":
		w.next()
	case "mark --mark":
		bits, mask := w.mark()
		r.add(not, func(_ *Sim, p *packet) bool { return p.mark&mask == bits })
	case "conntrack --ctstate":
		states := w.next() // all packets here are the first of a connection
		r.add(not, func(*Sim, *packet) bool { return strings.Contains(states, "NEW") })
	case "addrtype --dst-type":
		w.next()
		r.add(not, func(s *Sim, p *packet) bool { return s.local(p.Dst.Addr()) })
	case "addrtype --src-type":
		w.next()
		r.add(not, func(_ *Sim, p *packet) bool { return p.Iface == "" }) // the host sends from no other
	case "set --match-set":
		set, fields := w.set()
		r.add(not, func(s *Sim, p *packet) bool { _, _, ok := s.entry(set, fields, p); return ok })
	default:
		w.fail(name + " " + option)
	}
}

func (w *words) set() (SetID, string) {
	set, _ := setNamed(w.next())
	return set, w.next()
}

func (w *words) mark() (bits, mask uint32) {
	a, b, _ := strings.Cut(w.next(), "/")
	x, err1 := strconv.ParseUint(a, 0, 32)
	y, err2 := strconv.ParseUint(b, 0, 32)
	if err1 != nil || err2 != nil {
		w.fail("a mark")
	}
	return uint32(x), uint32(y)
}

func (w *words) target() func(*Sim, *packet) verdict {
	name := w.next()
	end := map[string]verdict{"RETURN": returned, "DROP": dropped, "REJECT": refused, "MASQUERADE": masqueraded, "ACCEPT": accepted}
	switch v, ok := end[name]; {
	case ok:
		if w.skip("--reject-with") {
			w.next()
		}
		w.skip("--random-fully")
		return func(*Sim, *packet) verdict { return v }
	case name == "MARK" && w.skip("--set-xmark"):
		bits, mask := w.mark()
		return func(_ *Sim, p *packet) verdict { p.mark = p.mark&^mask ^ bits; return goesOn }
	case name == "SET" && w.skip("--map-set"):
		set, fields := w.set()
		w.skip("--map-mark")
		return func(s *Sim, p *packet) verdict { s.translate(set, fields, p); return goesOn }
	}
	return func(s *Sim, p *packet) verdict { return s.run(p, "mangle", name) }
}

// translate changes a packet's mark as its entry says, if it has one.
func (s *Sim) translate(set SetID, fields string, p *packet) {
	if k, v, ok := s.entry(set, fields, p); ok {
		m := s.numbers.mark(s.marks, k, v)
		p.mark = p.mark&^m.Mask ^ m.Bits
	}
}

// splitRule cuts a rule into words; quoted ones are one.
func splitRule(line string) (all []string) {
	for len(line) > 0 {
		if line[0] == '"' {
			word, rest, _ := strings.Cut(line[1:], `"`)
			all, line = append(all, word), strings.TrimPrefix(rest, " ")
			continue
		}
		word, rest, _ := strings.Cut(line, " ")
		all, line = append(all, word), rest
	}
	return all
}
