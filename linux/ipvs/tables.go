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
var tableNames = [...]string{"filter", "nat", "mangle"}

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
	for _, table := range slices.Backward(tableNames[:]) {
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
	case op.Key.Kind == KindJump:
		t.addJump(op)
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

// addJump puts a jump at the top. What it replaces goes before where the new one
// could be taken for it.
func (t *tableText) addJump(op ledger.Op[Key, Value]) {
	c := op.Key.Chain
	if op.Verb != ledger.Delete {
		t.jumps = append(t.jumps, "-I "+c.from()+" 1 "+c.jumpRule(op.New))
	}
	switch {
	case op.Verb == ledger.Create:
	case op.Old.Rules != nil:
		for _, rule := range op.Old.Rules.Lines {
			t.unjumps = append(t.unjumps, "-D "+c.from()+" "+rule)
		}
	case op.Verb == ledger.Delete:
		t.unjumps = append(t.unjumps, "-D "+c.from()+" "+c.jumpRule(op.Old))
	default:
		t.ends = append(t.ends, "-D "+c.from()+" "+c.jumpRule(op.Old))
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
		v, led := c.jump(found[c.table()+" "+c.from()])
		if !slices.Contains(lines, comment(owner)) && (len(lines) > 0 || !led) { // else somebody has emptied it
			continue
		}
		emit(Key{Kind: KindChain, Family: f, Chain: c}, Value{Rules: &Rules{lines}})
		if led {
			emit(Key{Kind: KindJump, Family: f, Chain: c}, v)
		}
	}
}

// jump finds the jump to a chain among the rules of where it comes from. There may
// be more than one: kube-proxy's, or what others have put there once more.
func (c ChainID) jump(rules []string) (v Value, there bool) {
	var all []string
	for _, v := range jumpValues {
		for _, rule := range rules {
			if rule == c.jumpRule(v) {
				all = append(all, rule)
			}
		}
	}
	for _, v := range jumpValues {
		if len(all) == 1 && all[0] == c.jumpRule(v) {
			return v, true
		}
	}
	return Value{Rules: &Rules{all}}, len(all) > 0
}

var jumpValues = [...]Value{{OldOnly: true}, {}}
