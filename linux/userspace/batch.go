package userspace

import (
	"fmt"
	"strings"
)

// batch is one transaction of the nat table of one family, as text for
// iptables-restore --noflush.
type batch struct {
	declared strings.Builder // chains; a chain that is there is emptied
	lines    strings.Builder
	gone     []string // chains, deleted when nothing leads to them any more
}

func newBatch() *batch { return &batch{} }

// create adds an object; port is that of the relay an entry leads to.
func (b *batch) create(k Key, v Value, port uint16) {
	switch k.Kind {
	case KindChain:
		fmt.Fprintf(&b.declared, ":%s - [0:0]\n", k.Chain)
		for _, r := range v.Rules {
			b.rule("-A", k.Chain, r.String())
		}
	case KindEntry:
		b.entry(k, entryRule(k, v.To, port))
	case KindJump:
		for _, r := range v.Rules {
			b.rule("-I", k.Chain, r.String())
		}
	}
}

// entry adds an entry. Those who are allowed come before those who are not.
func (b *batch) entry(k Key, r Rule) {
	how := "-A"
	if k.From.IsValid() {
		how = "-I"
	}
	b.rule(how, k.Chain, r.String())
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
