// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"slices"
	"strings"
)

// early finds, in what iptables-save prints, the rules of nat that end a packet's way
// before the jump to KUBE-SERVICES, and whether the policy of FORWARD is to drop.
func early(text string) (rules []string, drop bool) {
	drop = strings.Contains(text, "\n:FORWARD DROP ")
	tables, err := ParseSave(text)
	if err != nil {
		return nil, drop
	}
	for _, table := range tables {
		for _, c := range table.Chains {
			if table.Name == "nat" && (c.Name == "PREROUTING" || c.Name == "OUTPUT") {
				rules = append(rules, earlyIn(c)...)
			}
		}
	}
	return rules, drop
}

// earlyIn does so for a chain.
func earlyIn(c SavedChain) (rules []string) {
	jump := slices.IndexFunc(c.Rules, func(l Line) bool {
		return target(l) == "KUBE-SERVICES" || target(l) == "KUBE-PORTALS-CONTAINER" || target(l) == "KUBE-PORTALS-HOST"
	})
	if jump < 0 {
		return nil // Services are elsewhere
	}
	for _, l := range c.Rules[:jump] {
		switch target(l) {
		case "ACCEPT", "RETURN", "DNAT", "REDIRECT", "NETMAP":
			rules = append(rules, "-A "+c.Name+" "+string(l))
		}
	}
	return rules
}

// target returns what a rule jumps to, and nothing if that cannot be read. A comment
// may hold any words.
func target(l Line) string {
	p := parser{text: string(l)}
	for !p.end() {
		switch p.word() {
		case "--comment":
			p.word()
		case "-j":
			return p.word()
		}
	}
	return ""
}
