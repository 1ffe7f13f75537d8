package userspace

import (
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// batch is one transaction of the nat table of one family.
type batch struct{ xtables.Script }

// edit makes a change. The table itself is the system's.
func (b *batch) edit(e edit) {
	k := e.key
	switch {
	case k.Kind == KindTable:
	case k.Kind == KindChain && e.verb == ledger.Delete:
		b.Drop(k.Chain)
	case k.Kind == KindChain:
		b.Rewrite(k.Chain, xtables.List(e.rules...))
	default:
		if e.verb != ledger.Create {
			b.Delete(k.Chain, e.have.printed)
		}
		if e.verb != ledger.Delete {
			b.put(k, e.rules[0])
		}
	}
}

// withoutNeedless leaves out the deletion of rules whose chain goes: to find each
// of them the command would read the whole chain.
func withoutNeedless(edits []edit) (rest []edit) {
	gone := map[string]bool{}
	for _, e := range edits {
		if e.key.Kind == KindChain && e.verb == ledger.Delete {
			gone[e.key.Chain] = true
		}
	}
	for _, e := range edits {
		if e.verb != ledger.Delete || e.key.Kind == KindChain || !gone[e.key.Chain] {
			rest = append(rest, e)
		}
	}
	return rest
}

// put adds an entry or a jump. Those who are allowed come before those who are
// not; jumps come before all others' rules or behind them.
func (b *batch) put(k Key, rule xtables.Rule) {
	if k.Kind == KindJump && !k.Late || k.From.IsValid() {
		b.Insert(k.Chain, 1, xtables.List(rule))
		return
	}
	b.Append(k.Chain, xtables.List(rule))
}
