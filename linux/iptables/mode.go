// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"maps"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Mode is the iptables mode. Probe and Open are in mode_linux.go; elsewhere they
// fail with an error that they need Linux.
func Mode() dataplane.Mode {
	return dataplane.Mode{
		Name: Name, System: "linux", Conntrack: true,
		Probe: probe, Open: openBackend, Remove: remove, KubeProxy: kubeProxy, Plan: plan,
	}
}

func plan(c *config.Config, host *model.Host, ports []*model.Port) dataplane.Plan {
	return dataplane.PlanOf(NewCompiler(optionsOf(c)), host, ports, Script)
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
		if classOf(id.Chain) == unowned {
			replaceRules(s, id.Chain, nil, rules)
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
