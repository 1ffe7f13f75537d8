// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
)

// Rules is a list of rules as text: equal lists are equal values.
type Rules struct{ text string }

// List returns a list of rules.
func List(rules ...Rule) Rules {
	b := NewBuilder(len(rules) * ruleSize)
	for i := range rules {
		b.Add(&rules[i])
	}
	return b.Rules()
}

// Builder builds a list of rules one by one.
type Builder struct{ text []byte }

// NewBuilder returns a builder for a text of about size bytes.
func NewBuilder(size int) Builder { return Builder{make([]byte, 0, size)} }

// Add appends a rule.
func (b *Builder) Add(r *Rule) { b.text = append(r.Append(b.text), '\n') }

// Rules returns the list.
func (b *Builder) Rules() Rules { return Rules{string(b.text)} }

// ruleSize is the approximate length of a rule in bytes.
const ruleSize = 160

// All iterates over the rules, unparsed ones included.
func (rs Rules) All() iter.Seq[Rule] {
	return func(yield func(Rule) bool) {
		for l := range rs.lines() {
			if !yield(ParseRule(strings.TrimSuffix(l, "\n"))) {
				return
			}
		}
	}
}

func (rs Rules) lines() iter.Seq[string] { return strings.Lines(rs.text) }

// Len returns the number of rules.
func (rs Rules) Len() int { return strings.Count(rs.text, "\n") }

// String returns the rules as iptables-save prints them, each ending in a newline,
// without "-A CHAIN".
func (rs Rules) String() string { return rs.text }

func (rs Rules) MarshalText() ([]byte, error) { return []byte(rs.text), nil }

func (rs *Rules) UnmarshalText(text []byte) error {
	rs.text = string(text)
	return nil
}

// Selector is the text of all matches of a rule, without comment and target. Equal
// selectors are equal values.
type Selector struct{ text string }

// Selector returns the selector of a rule.
func (r Rule) Selector() Selector {
	if r.Unparsed != "" {
		return Selector{r.Unparsed}
	}
	r.Comment = ""
	return Selector{string(trim(r.appendMatches(make([]byte, 0, ruleSize)), 0))}
}

// Compare orders selectors by their text.
func (s Selector) Compare(o Selector) int { return strings.Compare(s.text, o.text) }

// String returns the options.
func (s Selector) String() string { return s.text }

func (s Selector) MarshalText() ([]byte, error) { return []byte(s.text), nil }

func (s *Selector) UnmarshalText(text []byte) error {
	s.text = string(text)
	return nil
}

// Append writes a rule as iptables-save prints it, without "-A CHAIN".
func (r Rule) Append(b []byte) []byte {
	if r.Unparsed != "" {
		return append(b, r.Unparsed...)
	}
	start := len(b)
	b = r.appendMatches(b)
	if r.Target != nil {
		b = r.Target.append(b)
	}
	return trim(b, start)
}

// String returns the text of a rule.
func (r Rule) String() string { return string(r.Append(make([]byte, 0, ruleSize))) }

// Equal reports whether two rules are equal, comments included, which may differ and have the
// same text (appendQuoted).
func (r Rule) Equal(o Rule) bool {
	return r.Comment == o.Comment && string(r.Append(nil)) == string(o.Append(nil))
}

// trim removes the leading space.
func trim(b []byte, start int) []byte {
	if len(b) > start {
		return slices.Delete(b, start, start+1)
	}
	return b
}

func (r Rule) appendMatches(b []byte) []byte {
	b = r.Src.append(b, " -s ")
	b = r.Dst.append(b, " -d ")
	if r.In.Name != "" {
		b = append(option(b, r.In.Not, " -i "), r.In.Name...)
	}
	if r.Proto != 0 {
		b = append(append(b, " -p "...), r.Proto.String()...)
	}
	if r.Comment != "" {
		b = appendQuoted(append(b, " -m comment --comment "...), r.Comment)
	}
	for _, m := range inOrder(r.Matches) {
		b = m.append(b)
	}
	if r.Ports != (Ports{}) {
		b = append(append(append(b, " -m "...), r.Proto.String()...), " --dport "...)
		b = strconv.AppendUint(b, uint64(r.Ports.First), 10)
		if r.Ports.Last != r.Ports.First {
			b = strconv.AppendUint(append(b, ':'), uint64(r.Ports.Last), 10)
		}
	}
	return b
}

func inOrder(ms []Match) []Match {
	byOrder := func(a, b Match) int { return cmp.Compare(a.order(), b.order()) }
	if slices.IsSortedFunc(ms, byOrder) {
		return ms
	}
	ms = slices.Clone(ms)
	slices.SortStableFunc(ms, byOrder)
	return ms
}

// option writes an option with its spaces, negated with not.
func option(b []byte, not bool, text string) []byte {
	if not {
		b = append(b, " !"...)
	}
	return append(b, text...)
}

func (a Addrs) append(b []byte, text string) []byte {
	if !a.Prefix.IsValid() {
		return b
	}
	return a.Prefix.AppendTo(option(b, a.Not, text))
}

// The order of matches: cheap ones first.
func (SrcLocal) order() int { return 1 }
func (HasMark) order() int  { return 2 }
func (InSet) order() int    { return 3 }
func (DstLocal) order() int { return 4 }
func (State) order() int    { return 5 }
func (Recent) order() int   { return 6 }
func (Chance) order() int   { return 7 }

func (m SrcLocal) append(b []byte) []byte {
	return append(option(append(b, " -m addrtype"...), m.Not, " --src-type "), "LOCAL"...)
}

func (m DstLocal) append(b []byte) []byte {
	return append(option(append(b, " -m addrtype"...), m.Not, " --dst-type "), "LOCAL"...)
}

func (m HasMark) append(b []byte) []byte {
	return appendMark(option(append(b, " -m mark"...), m.Not, " --mark "), m.Value, m.Mask)
}

func (m InSet) append(b []byte) []byte {
	b = append(option(append(b, " -m set"...), m.Not, " --match-set "), m.Set...)
	return append(append(b, ' '), m.Fields...)
}

func (m State) append(b []byte) []byte {
	return append(option(append(b, " -m conntrack"...), m.Not, " --ctstate "), m.Any...)
}

func (m Recent) append(b []byte) []byte {
	if m.Set {
		b = append(append(b, " -m recent --set --name "...), m.Name...)
	} else {
		b = strconv.AppendUint(append(b, " -m recent --rcheck --seconds "...), uint64(m.Seconds), 10)
		b = append(append(b, " --reap --name "...), m.Name...)
	}
	return append(b, " --rsource"...)
}

func (m Chance) append(b []byte) []byte {
	return m.appendDecimal(append(b, " -m statistic --mode random --probability "...))
}

// appendDecimal writes a probability as iptables-save does: with eleven decimals, rounded
// half to even.
func (m Chance) appendDecimal(b []byte) []byte {
	scaled := uint64(m) * 48828125 // 5^11: the number of 1/10^11, times 2^20
	n, rest := scaled>>20, scaled&(1<<20-1)
	if rest > 1<<19 || rest == 1<<19 && n&1 == 1 {
		n++
	}
	b = append(b, byte('0'+n/1e11), '.')
	for unit := uint64(1e10); unit > 0; unit /= 10 {
		b = append(b, byte('0'+n/unit%10))
	}
	return b
}

func (v Verdict) append(b []byte) []byte {
	return append(b, [...]string{" -j ACCEPT", " -j DROP", " -j REJECT", " -j RETURN"}[v]...)
}

func (t Jump) append(b []byte) []byte { return append(append(b, " -j "...), t.Chain...) }

func (t Goto) append(b []byte) []byte { return append(append(b, " -g "...), t.Chain...) }

func (t DNAT) append(b []byte) []byte {
	return t.To.AppendTo(append(b, " -j DNAT --to-destination "...))
}

func (t Masquerade) append(b []byte) []byte {
	b = append(b, " -j MASQUERADE"...)
	if t.RandomFully {
		b = append(b, " --random-fully"...)
	}
	return b
}

func (t SetMark) append(b []byte) []byte {
	return appendMark(append(b, " -j MARK --set-xmark "...), t.Value, t.Mask)
}

func (t MapMark) append(b []byte) []byte {
	return fmt.Appendf(b, " -j SET --map-set %s %s --map-mark", t.Set, t.Fields)
}

func appendMark(b []byte, value, mask uint32) []byte {
	b = strconv.AppendUint(append(b, "0x"...), uint64(value), 16)
	return strconv.AppendUint(append(b, "/0x"...), uint64(mask), 16)
}

// appendQuoted writes a quoted comment on one line: bytes that are not printable
// ASCII become question marks.
func appendQuoted(b []byte, comment string) []byte {
	b = append(b, '"')
	for i := range min(len(comment), MaxComment) {
		switch c := comment[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c > '~':
			b = append(b, '?')
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// Line is a rule as iptables-save printed it, without "-A CHAIN". A deletion must repeat it
// exactly.
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

// ParseSave reads the output of iptables-save. A truncated listing is an error, so that
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

// chain returns a chain, which it adds if it was not declared. Rules are grouped by chain.
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

// parseCounts reads the output of "iptables-save -c": "[PACKETS:BYTES] -A CHAIN RULE".
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

// Packets returns how many packets a rule has matched, by the output of "iptables -v -S
// CHAIN"; 0 if the rule is not in it.
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

// cutCounters cuts the counters, "-c PACKETS BYTES", out of a rule's text, and returns the
// packets. It skips comments, which may have the same words.
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

// Script is one transaction of one table of one family, for iptables-restore
// --noflush: first chains to create or flush, then changes of rules, then chains to
// delete. The zero value is empty.
type Script struct {
	declared, rules, deleted []byte
	written                  int
}

// Begin creates a chain, or flushes an existing one.
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

// Drop deletes a chain, also one that does not exist.
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

// Written returns the number of rules that are added.
func (s *Script) Written() int { return s.written }

// Text returns the input of iptables-restore.
func (s *Script) Text(t Table) []byte {
	return slices.Concat([]byte("*"+t.String()+"\n"), s.declared, s.rules, s.deleted, []byte("COMMIT\n"))
}

// RestoreCommand is the command that reads the scripts of a family.
func RestoreCommand(f model.Family) string {
	return [...]string{model.IPv4: "iptables-restore", model.IPv6: "ip6tables-restore"}[f]
}

// early returns, of the output of iptables-save, the rules of nat that take packets before the
// jump to KUBE-SERVICES, and whether the policy of FORWARD is DROP.
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

// earlyIn returns the early rules of a chain.
func earlyIn(c SavedChain) (rules []string) {
	jump := slices.IndexFunc(c.Rules, func(l Line) bool {
		return target(l) == "KUBE-SERVICES" || target(l) == "KUBE-PORTALS-CONTAINER" || target(l) == "KUBE-PORTALS-HOST"
	})
	if jump < 0 {
		return nil // no jump to Services
	}
	for _, l := range c.Rules[:jump] {
		switch target(l) {
		case "ACCEPT", "RETURN", "DNAT", "REDIRECT", "NETMAP":
			rules = append(rules, "-A "+c.Name+" "+string(l))
		}
	}
	return rules
}

// target returns the target of a rule, empty if it cannot be read. It skips comments, which may
// hold any words.
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

// ahead describes the rules of a built-in chain before the first jump to an owned chain.
func ahead(f model.Family, table string, c SavedChain, owned func(chain string) bool) (texts []string) {
	if !c.Builtin {
		return nil
	}
	for i, l := range c.Rules {
		if owned(l.Rule().Chain()) {
			return texts
		}
		texts = append(texts, fmt.Sprintf("%s rule %d of %s %s is another program's and comes before tandem's: %s", f, i+1, table, c.Name, strings.TrimSpace(string(l))))
	}
	return nil // no jump to an owned chain
}

// maxAhead bounds the rules of other programs that are reported.
const maxAhead = 10

// firstAhead returns the first maxAhead texts, and one with the number of the others.
func firstAhead(texts []string) []string {
	more := len(texts) - maxAhead
	if more <= 0 {
		return texts
	}
	return append(texts[:maxAhead:maxAhead], "and "+printable.Count(more, "more rule")+" of other programs before tandem's: iptables-save shows all")
}
