// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"fmt"
	"strings"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// batch is one transaction of the nat table of one family.
type batch struct{ xtables.Script }

// edit adds an edit. The nat table itself is neither created nor deleted.
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

// withoutImplied omits deletions of rules in a chain that is deleted: for each of
// them iptables-restore would search the whole chain.
func withoutImplied(edits []edit) (rest []edit) {
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

// put adds an entry or a jump. Allowed source ranges come before the drop; jumps come
// before all foreign rules, or after them if Late.
func (b *batch) put(k Key, rule xtables.Rule) {
	if k.Kind == KindJump && !k.Late || k.From.IsValid() {
		b.Insert(k.Chain, 1, xtables.List(rule))
		return
	}
	b.Append(k.Chain, xtables.List(rule))
}

// Script renders objects as what iptables-restore and ip6tables-restore read, one
// part for each. The ports of relays are examples, in the order of their names; at
// run time the system chooses them.
func Script(objects map[Key]Value) string {
	ports := map[RelayID]uint16{}
	const first = 40000
	for _, k := range sorted(objects, KindRelay) {
		ports[k.Relay] = uint16(first + len(ports))
	}
	var b strings.Builder
	for _, f := range model.Families() {
		if _, ok := objects[Key{Kind: KindAddress, Family: f}]; !ok {
			continue
		}
		fmt.Fprintf(&b, "# %s; relays listen on %s, an address of lo\n", xtables.RestoreCommand(f), RelayAddr(f))
		batch := &batch{}
		for _, k := range sorted(objects, KindChain, KindEntry, KindJump) {
			switch v := objects[k]; {
			case k.Family != f:
			case k.Kind == KindChain:
				batch.Rewrite(k.Chain, v.Rules)
			case k.Kind == KindEntry:
				batch.put(k, entryRule(k, v.To, ports[v.To.Relay]))
			default:
				batch.put(k, jumpRule(k))
			}
		}
		b.Write(batch.Text(xtables.NAT))
	}
	return b.String()
}

// listing renders objects for people, one a line: what ports add.
func listing(objects map[Key]Value) string {
	var b strings.Builder
	for _, k := range sorted(objects, KindRelay, KindEntry) {
		v := objects[k]
		if k.Kind == KindEntry {
			fmt.Fprintf(&b, "%s\n", k.text(v.To))
			continue
		}
		fmt.Fprintf(&b, "%s:", k)
		for _, e := range v.Policy.On[model.FromOutside].Endpoints {
			fmt.Fprintf(&b, " %s", e)
		}
		if v.Policy.SessionAffinity > 0 {
			fmt.Fprintf(&b, " sticky %s", v.Policy.SessionAffinity)
		}
		for _, e := range v.Policy.Draining {
			fmt.Fprintf(&b, " draining %s", e)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// natObjects turns the output of iptables-save for the nat table of a family into
// objects.
func natObjects(f model.Family, saved string, put map[Key]found) error {
	tables, err := xtables.ParseSave(saved)
	if err != nil {
		return err
	}
	for _, t := range tables {
		for _, c := range t.Chains {
			if t.Name == xtables.NAT.String() {
				natChain(f, c, put)
			}
		}
	}
	return nil
}

func natChain(f model.Family, c xtables.SavedChain, put map[Key]found) {
	if jumps[c.Name] != "" {
		for _, l := range c.Rules {
			natJump(f, c.Name, l, put)
		}
		return
	}
	entries := isEntryChain(c.Name)
	if !entries && !isFixedChain(c.Name) {
		return
	}
	put[Key{Kind: KindTable, Family: f}] = found{}
	chain := found{}
	if !entries {
		chain.Rules = xtables.Canonical(c.Rules...)
	}
	put[Key{Kind: KindChain, Family: f, Chain: c.Name}] = chain
	for _, l := range c.Rules {
		if entries {
			l = xtables.Line(strings.Clone(string(l))) // relay names share its memory, and would keep the whole listing
			natEntry(f, c.Name, l, put)
		}
	}
}

func natEntry(f model.Family, chain string, l xtables.Line, put map[Key]found) {
	k, to, port, ok := entryOf(f, chain, l.Rule())
	if _, twice := put[k]; !ok || twice {
		unexpected(f, chain, l, put)
		return
	}
	put[k] = entryFound(to, port, installed{printed: xtables.Printed(l)})
}

// entryFound is an entry as it was read, with its relay's port.
func entryFound(to Target, port uint16, have installed) found {
	if to.Do == ToRelay {
		have.relay, have.port = to.Relay, port
	}
	return found{Value{To: to}, have}
}

// natJump reads a rule of a built-in chain: those that jump to our chains; others are
// skipped.
func natJump(f model.Family, chain string, l xtables.Line, put map[Key]found) {
	rule := l.Rule()
	k := Key{Kind: KindJump, Family: f, Chain: chain}
	switch rule.Chain() {
	case chainIn, chainOut:
	case chainLast:
		k.Late = true
	default:
		return
	}
	if _, twice := put[k]; twice || !rule.Equal(jumpRule(k)) {
		unexpected(f, chain, l, put)
		return
	}
	put[k] = found{Value{Rules: xtables.List(rule)}, installed{printed: xtables.Printed(l)}}
}

func unexpected(f model.Family, chain string, l xtables.Line, put map[Key]found) {
	k := Key{Kind: KindUnexpected, Family: f, Chain: chain, Rest: strings.Clone(string(l))}
	for n := 2; ; n++ { // equal rules
		if _, taken := put[k]; !taken {
			break
		}
		k.Rest = fmt.Sprintf("%s (%d)", l, n)
	}
	put[k] = found{installed: installed{printed: xtables.Printed(l)}}
}
