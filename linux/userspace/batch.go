package userspace

import (
	"fmt"
	"strings"

	"github.com/tandem-proxy/tandem/core/ledger"
)

// batch is one transaction of the nat table of one family, as text for
// iptables-restore --noflush.
type batch struct {
	declared strings.Builder // chains; a chain that is there is emptied
	lines    strings.Builder
	gone     []string // chains, deleted when nothing leads to them any more
}

func newBatch() *batch { return &batch{} }

// edit makes a change. The table itself is the system's.
func (b *batch) edit(e edit) {
	k := e.key
	switch {
	case k.Kind == KindTable:
	case k.Kind == KindChain && e.verb == ledger.Delete:
		b.drop(k.Chain)
	case k.Kind == KindChain:
		b.chain(k.Chain, e.rules)
	default:
		if e.verb != ledger.Create {
			b.remove(k.Chain, e.have.text)
		}
		if e.verb != ledger.Delete {
			b.put(k, e.rules[0].String())
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

// put adds an entry or a jump.
func (b *batch) put(k Key, rule string) {
	if k.Kind == KindJump {
		b.jump(k, rule)
		return
	}
	b.entry(k, rule)
}

// chain makes a chain, or makes it anew, with its fixed rules.
func (b *batch) chain(name string, rules []Rule) {
	fmt.Fprintf(&b.declared, ":%s - [0:0]\n", name)
	for _, r := range rules {
		b.rule("-A", name, r.String())
	}
}

// entry adds an entry. Those who are allowed come before those who are not.
func (b *batch) entry(k Key, rule string) {
	how := "-A"
	if k.From.IsValid() {
		how = "-I"
	}
	b.rule(how, k.Chain, rule)
}

// jump adds a way into our chains, before all others' rules or behind them.
func (b *batch) jump(k Key, rule string) {
	how := "-I"
	if k.Rest == last {
		how = "-A"
	}
	b.rule(how, k.Chain, rule)
}

// remove deletes a rule.
func (b *batch) remove(chain, rule string) { b.rule("-D", chain, rule) }

// drop deletes a chain.
func (b *batch) drop(chain string) {
	fmt.Fprintf(&b.lines, "-F %s\n", chain)
	b.gone = append(b.gone, chain)
}

func (b *batch) rule(how, chain, rule string) { fmt.Fprintf(&b.lines, "%s %s %s\n", how, chain, rule) }

func (b *batch) empty() bool { return b.declared.Len()+b.lines.Len() == 0 }

func (b *batch) text() string {
	var all strings.Builder
	all.WriteString("*nat\n" + b.declared.String() + b.lines.String())
	for _, chain := range b.gone {
		fmt.Fprintf(&all, "-X %s\n", chain)
	}
	all.WriteString("COMMIT\n")
	return all.String()
}
