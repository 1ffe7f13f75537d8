package iptables

import (
	"maps"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// relay replaces our rules in a chain of the kernel, whose other rules stay:
// ours come to its top.
func relay(s *xtables.Script, chain string, before, after []Value) {
	for _, r := range before {
		s.Delete(chain, r)
	}
	at := 1
	for _, r := range after {
		s.Insert(chain, at, r)
		at += r.Len()
	}
}

// Script renders objects as what iptables-restore --noflush reads, and after it
// what ip6tables-restore does.
func Script(objects map[Key]Value) string {
	var scripts [2][2]xtables.Script
	keys := slices.SortedFunc(maps.Keys(objects), compareKeys)
	for len(keys) > 0 {
		id := keys[0].chainID
		var rules []Value
		for ; len(keys) > 0 && keys[0].chainID == id; keys = keys[1:] {
			rules = append(rules, objects[keys[0]])
		}
		s := &scripts[id.Family][id.Table]
		if classOf(id.Chain) == foreign {
			relay(s, id.Chain, nil, rules)
		} else {
			s.Rewrite(id.Chain, rules...)
		}
	}
	var b strings.Builder
	for f := range scripts {
		b.WriteString("# " + xtables.RestoreCommand(model.Family(f)) + " --noflush\n")
		for t := range scripts[f] {
			if s := &scripts[f][t]; !s.Empty() {
				b.Write(s.Text(xtables.Table(t)))
			}
		}
	}
	return b.String()
}
