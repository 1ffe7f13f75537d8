// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"slices"
	"strconv"

	"github.com/tandem-proxy/tandem/core/model"
)

// Script is one transaction of one table of one family, for iptables-restore
// --noflush: first chains to create or flush, then changes of rules, then chains to
// delete. The zero value is empty.
type Script struct {
	declared, rules, deleted []byte
	written                  int
}

// Begin makes a chain, or empties it.
func (s *Script) Begin(chain string) {
	s.declared = append(append(append(s.declared, ':'), chain...), " - [0:0]\n"...)
}

// Rewrite replaces the rules of a chain.
func (s *Script) Rewrite(chain string, rules ...Rules) {
	s.Begin(chain)
	for _, r := range rules {
		s.Append(chain, r)
	}
}

// Append adds rules to the end of a chain.
func (s *Script) Append(chain string, rules Rules) { s.add("-A ", chain, 0, rules) }

// Insert adds rules to a chain, the first of them at a position counted from 1.
func (s *Script) Insert(chain string, at int, rules Rules) { s.add("-I ", chain, at, rules) }

// Delete deletes rules, as they were printed.
func (s *Script) Delete(chain string, rules Rules) { s.add("-D ", chain, 0, rules) }

// Drop deletes a chain, whether or not it exists.
func (s *Script) Drop(chain string) {
	s.Begin(chain)
	s.deleted = append(append(append(s.deleted, "-X "...), chain...), '\n')
}

func (s *Script) add(verb, chain string, at int, rules Rules) {
	for l := range rules.lines() {
		s.rules = append(append(append(s.rules, verb...), chain...), ' ')
		if at > 0 {
			s.rules = append(strconv.AppendInt(s.rules, int64(at), 10), ' ')
			at++
		}
		s.rules = append(s.rules, l...)
		if verb != "-D " {
			s.written++
		}
	}
}

// Empty reports whether there is nothing to do.
func (s *Script) Empty() bool { return len(s.declared)+len(s.rules) == 0 }

// Written is how many rules are written.
func (s *Script) Written() int { return s.written }

// Text returns what iptables-restore reads.
func (s *Script) Text(t Table) []byte {
	return slices.Concat([]byte("*"+t.String()+"\n"), s.declared, s.rules, s.deleted, []byte("COMMIT\n"))
}

// RestoreCommand is the command that reads the scripts of a family.
func RestoreCommand(f model.Family) string {
	return [...]string{model.IPv4: "iptables-restore", model.IPv6: "ip6tables-restore"}[f]
}
