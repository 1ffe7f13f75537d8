package ipvs

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// tableNames are the tables with chains of ours, the one that claims packets
// last: then the others know already what to do with them.
var tableNames = []string{"filter", "nat", "mangle"}

// restore writes ops on the chains of one family for iptables-restore
// --noflush, one table at a time, and what is deleted after all else and the
// other way round. Jumps are deleted first, so that chains that are deleted are
// in no use.
func restore(f model.Family, ops []ledger.Op[Key, Value]) string {
	var b strings.Builder
	write := func(table string, deletes bool) {
		var t tableText
		for _, op := range ops {
			if op.Key.Family == f && op.Key.Chain.table() == table && deletes == (op.Verb == ledger.Delete) {
				t.add(op)
			}
		}
		if lines := slices.Concat(t.heads, t.unjumps, t.rules, t.jumps, t.ends); len(lines) > 0 {
			fmt.Fprintf(&b, "*%s\n%s\nCOMMIT\n", table, strings.Join(lines, "\n"))
		}
	}
	for _, table := range tableNames {
		write(table, false)
	}
	for _, table := range slices.Backward(tableNames) {
		write(table, true)
	}
	return b.String()
}

// tableText are the lines about one table, by when they come. A head makes a
// chain, or empties it.
type tableText struct{ heads, unjumps, rules, jumps, ends []string }

func (t *tableText) add(op ledger.Op[Key, Value]) {
	c := op.Key.Chain
	switch {
	case op.Key.Kind == KindJump && op.Verb == ledger.Delete:
		t.unjumps = append(t.unjumps, "-D "+c.from()+" "+c.jumpRule(op.Old))
	case op.Key.Kind == KindJump:
		t.jumps = append(t.jumps, "-I "+c.from()+" 1 "+c.jumpRule(op.New))
		if op.Verb == ledger.Replace {
			t.ends = append(t.ends, "-D "+c.from()+" "+c.jumpRule(op.Old))
		}
	case op.Verb == ledger.Delete:
		t.heads = append(t.heads, ":"+c.name()+" - [0:0]")
		t.ends = append(t.ends, "-X "+c.name())
	default:
		t.heads = append(t.heads, ":"+c.name()+" - [0:0]")
		for _, line := range op.New.Rules.Lines {
			t.rules = append(t.rules, "-A "+c.name()+" "+line)
		}
	}
}

// parseSave reads what iptables-save prints: our chains, and the jumps to them.
func parseSave(f model.Family, text string, emit func(Key, Value)) {
	table, found := "", map[string][]string{} // by "table chain"
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "*"); ok {
			table = name
		} else if rest, ok := strings.CutPrefix(line, "-A "); ok {
			chain, rule, _ := strings.Cut(rest, " ")
			found[table+" "+chain] = append(found[table+" "+chain], rule)
		}
	}
	for c := noChain + 1; c < numChains; c++ {
		lines := found[c.String()]
		if len(lines) == 0 || lines[0] != comment(owner) {
			continue
		}
		emit(Key{Kind: KindChain, Family: f, Chain: c}, Value{Rules: &Rules{lines}})
		for _, v := range []Value{{OldOnly: true}, {}} {
			if slices.Contains(found[c.table()+" "+c.from()], c.jumpRule(v)) {
				emit(Key{Kind: KindJump, Family: f, Chain: c}, v)
			}
		}
	}
}
