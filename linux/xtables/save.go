// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"fmt"
	"strconv"
	"strings"
)

// Line is a rule as it was printed, without "-A CHAIN". To be deleted, a rule
// must be spelled as it was.
type Line string

// Rule parses a line.
func (l Line) Rule() Rule { return ParseRule(string(l)) }

// Printed returns rules as they were printed.
func Printed(lines ...Line) Rules {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(string(l))
		b.WriteByte('\n')
	}
	return Rules{b.String()}
}

// Canonical returns the rules of lines in canonical text.
func Canonical(lines ...Line) Rules {
	var b []byte
	for _, l := range lines {
		b = append(l.Rule().Append(b), '\n')
	}
	return Rules{string(b)}
}

// SavedTable is a table as listed by iptables-save.
type SavedTable struct {
	Name   string
	Chains []SavedChain
}

// SavedChain is a chain of a table.
type SavedChain struct {
	Name    string
	Builtin bool
	Rules   []Line
}

// ParseSave reads what iptables-save prints. A truncated listing is an error, so that
// no chain is taken for absent. The result shares the text's memory.
func ParseSave(text string) (tables []SavedTable, err error) {
	var s saveParser
	for l := range strings.Lines(text) {
		l = strings.TrimRight(l, "\r\n")
		switch {
		case strings.HasPrefix(l, "*"):
			if s.open {
				return nil, fmt.Errorf("truncated listing of table %s", s.table.Name)
			}
			s = saveParser{open: true, table: SavedTable{Name: l[1:]}, at: map[string]int{}}
		case !s.open:
		case strings.HasPrefix(l, ":"):
			name, rest, _ := strings.Cut(l[1:], " ")
			s.chain(name).Builtin = rest != "" && rest[0] != '-'
		case strings.HasPrefix(l, "-A "):
			chain, rule, _ := strings.Cut(l[len("-A "):], " ")
			c := s.chain(chain)
			c.Rules = append(c.Rules, Line(rule))
		case l == "COMMIT":
			tables = append(tables, s.table)
			s.open = false
		}
	}
	if s.open {
		return nil, fmt.Errorf("truncated listing of table %s", s.table.Name)
	}
	return tables, nil
}

type saveParser struct {
	table SavedTable
	open  bool
	at    map[string]int
	last  int
}

// chain returns a chain, also if it was not declared. Rules are printed by chains.
func (s *saveParser) chain(name string) *SavedChain {
	if s.last < len(s.table.Chains) && s.table.Chains[s.last].Name == name {
		return &s.table.Chains[s.last]
	}
	i, known := s.at[name]
	if !known {
		i = len(s.table.Chains)
		s.at[name] = i
		s.table.Chains = append(s.table.Chains, SavedChain{Name: name})
	}
	s.last = i
	return &s.table.Chains[i]
}

// parseCounts reads what "iptables-save -c" prints: "[PACKETS:BYTES] -A CHAIN RULE".
func parseCounts(text string, found func(chain string, r Line, packets uint64)) error {
	for l := range strings.Lines(text) {
		counted, ok := strings.CutPrefix(strings.TrimRight(l, "\r\n"), "[")
		if !ok || strings.HasPrefix(counted, "0:") {
			continue
		}
		number, rest, _ := strings.Cut(counted, ":")
		_, rest, listed := strings.Cut(rest, "] -A ")
		chain, rule, _ := strings.Cut(rest, " ")
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil || !listed {
			return fmt.Errorf("unexpected line %.80q", l)
		}
		found(chain, Line(rule), n)
	}
	return nil
}

// Packets finds a rule in what "iptables -v -S CHAIN" prints, and returns how many
// packets it has matched. A missing rule has matched none.
func Packets(listing, chain string, r Rule) (uint64, error) {
	for l := range strings.Lines(listing) {
		text, listed := strings.CutPrefix(strings.TrimSuffix(l, "\n"), "-A "+chain+" ")
		rule, packets, counted := cutCounters(text)
		if !listed || !counted || !ParseRule(rule).Equal(r) {
			continue
		}
		n, err := strconv.ParseUint(packets, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("packets of a rule: %w", err)
		}
		return n, nil
	}
	return 0, nil
}

// cutCounters cuts the counters out of a rule, "-c PACKETS BYTES", and returns the
// packets. A comment may hold any words.
func cutCounters(text string) (rule, packets string, found bool) {
	p := parser{text: text}
	for !p.end() {
		at := len(text) - len(p.text)
		switch p.word() {
		case "--comment":
			p.word()
		case "-c":
			packets = p.word()
			p.word()
			return text[:at] + p.text, packets, p.err == nil
		}
	}
	return text, "", false
}
