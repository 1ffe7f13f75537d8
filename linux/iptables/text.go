package iptables

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
)

// script is the text of one transaction of iptables-restore --noflush: the
// chains it begins anew, rules, and chains that go. It is one table of one
// family.
type script struct {
	declared, rules, deleted []byte
	touched                  bool
	written                  int // rules
}

// rewrite gives a chain of ours new content: rules, each ending in a newline.
func (s *script) rewrite(chain string, rules []Value) {
	s.declare(chain)
	for _, r := range rules {
		s.add("-A ", chain, string(r))
	}
}

// declare makes a chain, or empties it.
func (s *script) declare(chain string) {
	s.touched = true
	s.declared = append(append(append(s.declared, ':'), chain...), " - [0:0]\n"...)
}

// drop deletes a chain, whether or not it is there.
func (s *script) drop(chain string) {
	s.declare(chain)
	s.deleted = append(append(append(s.deleted, "-X "...), chain...), '\n')
}

// add writes rules, one a line, each after a verb and its chain.
func (s *script) add(verb, chain, rules string) {
	s.touched = true
	for r := range strings.Lines(rules) {
		if verb != "-D " {
			s.written++
		}
		s.rules = append(append(append(append(append(s.rules, verb...), chain...), ' '), r...), ""...)
	}
}

// relay replaces our rules in a chain of the kernel, whose other rules stay:
// ours come to its top.
func (s *script) relay(chain string, before, after []Value) {
	for _, r := range before {
		s.add("-D ", chain, string(r))
	}
	for i, r := range after {
		s.add("-I ", chain+" "+strconv.Itoa(i+1), string(r))
	}
}

// text returns what iptables-restore reads.
func (s *script) text(t Table) []byte {
	return slices.Concat([]byte("*"+t.String()+"\n"), s.declared, s.rules, s.deleted, []byte("COMMIT\n"))
}

// Script renders objects as what iptables-restore --noflush reads, and after it
// what ip6tables-restore does.
func Script(objects map[Key]Value) string {
	var scripts [2][2]script
	keys := slices.SortedFunc(maps.Keys(objects), compareKeys)
	for len(keys) > 0 {
		id := keys[0].chainID
		var lines []Value
		for ; len(keys) > 0 && keys[0].chainID == id; keys = keys[1:] {
			lines = append(lines, objects[keys[0]])
		}
		s := &scripts[id.Family][id.Table]
		if classOf(id.Chain) == foreign {
			s.relay(id.Chain, nil, lines)
		} else {
			s.rewrite(id.Chain, lines)
		}
	}
	var b strings.Builder
	for f, command := range [...]string{model.IPv4: "iptables-restore", model.IPv6: "ip6tables-restore"} {
		b.WriteString("# " + command + " --noflush\n")
		for t := range scripts[f] {
			if s := &scripts[f][t]; s.touched {
				b.Write(s.text(Table(t)))
			}
		}
	}
	return b.String()
}
