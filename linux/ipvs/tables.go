package ipvs

import (
	"slices"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// ourTables are the tables with chains of ours, the one that claims packets last:
// then the others know already what to do with them.
var ourTables = [...]xtables.Table{xtables.Filter, xtables.NAT, xtables.Mangle}

// restore writes ops on the chains of one family for iptables-restore
// --noflush, one table at a time, and what is deleted after all else and the
// other way round.
func restore(f model.Family, ops []ledger.Op[Key, Value]) (text []byte) {
	write := func(table xtables.Table, deletes bool) {
		var some []ledger.Op[Key, Value]
		for _, op := range ops {
			if op.Key.Family == f && op.Key.Chain.table() == table && deletes == (op.Verb == ledger.Delete) {
				some = append(some, op)
			}
		}
		if len(some) > 0 {
			text = append(text, script(some).Text(table)...)
		}
	}
	for _, table := range ourTables {
		write(table, false)
	}
	for _, table := range slices.Backward(ourTables[:]) {
		write(table, true)
	}
	return text
}

// script writes ops on one table. Jumps that must not be taken for those that
// replace them are deleted first, also so that chains that are deleted are in no
// use. All other jumps are deleted when their successors are there.
func script(ops []ledger.Op[Key, Value]) *xtables.Script {
	s := &xtables.Script{}
	for _, op := range ops {
		c := op.Key.Chain
		switch {
		case op.Key.Kind == KindJump:
			if op.Verb == ledger.Delete || op.Old.Rules.Len() > 0 {
				s.Delete(c.from(), c.installed(op.Old))
			}
		case op.Verb == ledger.Delete:
			s.Drop(c.name())
		default:
			s.Rewrite(c.name(), op.New.Rules)
		}
	}
	for _, op := range ops {
		if c := op.Key.Chain; op.Key.Kind == KindJump && op.Verb != ledger.Delete {
			s.Insert(c.from(), 1, xtables.List(c.jumpRule(op.New.OldOnly)))
			if op.Verb == ledger.Replace && op.Old.Rules.Len() == 0 {
				s.Delete(c.from(), c.installed(op.Old))
			}
		}
	}
	return s
}

// installed are the rules of a jump.
func (c ChainID) installed(v Value) xtables.Rules {
	if v.Rules.Len() > 0 {
		return v.Rules
	}
	return xtables.List(c.jumpRule(v.OldOnly))
}

// readTables reads what iptables-save prints: our chains, and the jumps to them. A
// chain is ours if it has the owner's rule, before which others may have put
// theirs, or if it is empty and something leads there: then somebody has emptied
// it.
func readTables(f model.Family, text string, emit func(Key, Value)) error {
	tables, err := xtables.ParseSave(text)
	if err != nil {
		return err
	}
	chains := map[string][]xtables.Line{} // by "table chain"
	for _, t := range tables {
		for _, c := range t.Chains {
			chains[t.Name+" "+c.Name] = c.Rules
		}
	}
	for c := noChain + 1; c < numChains; c++ {
		lines := chains[c.String()]
		v, led := c.jump(chains[c.table().String()+" "+c.from()])
		owned := slices.ContainsFunc(lines, func(l xtables.Line) bool { return l.Rule().Equal(owner()) })
		if !owned && (len(lines) > 0 || !led) {
			continue
		}
		emit(Key{Kind: KindChain, Family: f, Chain: c}, Value{Rules: xtables.Canonical(lines...)})
		if led {
			emit(Key{Kind: KindJump, Family: f, Chain: c}, v)
		}
	}
	return nil
}

// jump finds the jump to a chain among the rules of where it comes from. There may
// be more than one: kube-proxy's, or what others have put there once more.
func (c ChainID) jump(rules []xtables.Line) (v Value, there bool) {
	var all []xtables.Line
	for _, l := range rules {
		r := l.Rule()
		if r.Chain() != c.name() {
			continue
		}
		for _, known := range [...]Value{{OldOnly: true}, {}} {
			if r.Equal(c.jumpRule(known.OldOnly)) {
				v, all = known, append(all, l)
			}
		}
	}
	if len(all) == 1 {
		return v, true
	}
	return Value{Rules: xtables.Printed(all...)}, len(all) > 0
}
