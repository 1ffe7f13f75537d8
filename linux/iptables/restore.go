// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"maps"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// op is one difference between desired and installed state.
type op = ledger.Op[Key, Value]

// sharedChains is what is installed in chains to which many contribute, and what is
// ours in those of the kernel: to change one rule, the chain is written anew.
// A chain without entries is not there.
type sharedChains map[chainID][]entry

// entry is one object of such a chain. Entries are in the order of their lines.
type entry struct {
	line  Position
	value Value
}

func (b sharedChains) set(k Key, v Value) {
	es := b[k.chainID]
	i, known := locate(es, k.Position)
	if known {
		es[i].value = v
	} else {
		es = slices.Insert(es, i, entry{k.Position, v})
	}
	b[k.chainID] = es
}

func (b sharedChains) remove(k Key) {
	if i, known := locate(b[k.chainID], k.Position); known {
		b[k.chainID] = slices.Delete(b[k.chainID], i, i+1)
	}
}

// rules returns the rule of a key; none where there is none.
func (b sharedChains) rules(k Key) (v Value) {
	if i, known := locate(b[k.chainID], k.Position); known {
		v = b[k.chainID][i].value
	}
	return v
}

func locate(es []entry, line Position) (place int, known bool) {
	return slices.BinarySearchFunc(es, line, func(e entry, l Position) int { return e.line.compare(l) })
}

// apply returns the script of ops, which are all of one table, and the
// changed chains as they are after it. The receiver is unchanged: the script may
// fail.
func (b sharedChains) apply(ops []op) (s xtables.Script, after sharedChains) {
	after = sharedChains{}
	for _, o := range ops {
		switch class := classOf(o.Key.Chain); {
		case class == whole && o.Verb == ledger.Delete:
			s.Drop(o.Key.Chain)
		case class == whole:
			s.Rewrite(o.Key.Chain, o.New)
		default:
			if _, begun := after[o.Key.chainID]; !begun {
				after[o.Key.chainID] = slices.Clone(b[o.Key.chainID])
			}
			if o.Verb == ledger.Delete {
				after.remove(o.Key)
			} else {
				after.set(o.Key, o.New)
			}
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(after), func(a, b chainID) int { return strings.Compare(a.Chain, b.Chain) }) {
		switch es := after[id]; {
		case classOf(id.Chain) == unowned:
			replaceRules(&s, id.Chain, values(b[id], true), values(es, false))
		case len(es) == 0:
			s.Drop(id.Chain)
		default:
			s.Rewrite(id.Chain, values(es, false)...)
		}
	}
	return s, after
}

// values lists the rules of entries, those that should not be there included or
// not.
func values(es []entry, aliens bool) (vs []Value) {
	for _, e := range es {
		if e.value.Len() > 0 && (aliens || !e.line.unexpected()) {
			vs = append(vs, e.value)
		}
	}
	return vs
}

// update replaces chains by their content after a script.
func (b sharedChains) update(pages sharedChains) {
	for id, es := range pages {
		if len(es) == 0 {
			delete(b, id)
		} else {
			b[id] = es
		}
	}
}

// replaceRules replaces our rules in a chain of the kernel, whose other rules stay:
// ours come to its top.
func replaceRules(s *xtables.Script, chain string, before, after []Value) {
	for _, r := range before {
		s.Delete(chain, r)
	}
	at := 1
	for _, r := range after {
		s.Insert(chain, at, r)
		at += r.Len()
	}
}

// Script renders objects as what iptables-restore --noflush reads, and after it
// what ip6tables-restore does.
func Script(objects map[Key]Value) string {
	var scripts [2][2]xtables.Script
	keys := slices.SortedFunc(maps.Keys(objects), compareKeys)
	for len(keys) > 0 {
		id := keys[0].chainID
		var rules []Value
		for ; len(keys) > 0 && keys[0].chainID == id; keys = keys[1:] {
			rules = append(rules, objects[keys[0]])
		}
		s := &scripts[id.Family][id.Table]
		if classOf(id.Chain) == unowned {
			replaceRules(s, id.Chain, nil, rules)
		} else {
			s.Rewrite(id.Chain, rules...)
		}
	}
	var b strings.Builder
	for f := range scripts {
		b.WriteString("# " + xtables.RestoreCommand(model.Family(f)) + " --noflush\n")
		for t := range scripts[f] {
			if s := &scripts[f][t]; !s.Empty() {
				b.Write(s.Text(xtables.Table(t)))
			}
		}
	}
	return b.String()
}

// reading is what iptables-save tells of a family: the objects that are ours, and
// the content of chains that many share.
type reading struct {
	objects map[Key]Value
	chains  sharedChains
}

// read takes what iptables-save printed. It passes over what is not ours: what is
// not like anything of ours is not owned or, in a chain of ours, unexpected and to be
// removed.
func read(family model.Family, output string) (*reading, error) {
	r := &reading{objects: map[Key]Value{}, chains: sharedChains{}}
	saved, err := xtables.ParseSave(output)
	if err != nil {
		return nil, err
	}
	for _, t := range saved {
		for _, table := range tables() {
			if t.Name == table.String() {
				r.table(family, table, t.Chains)
			}
		}
	}
	return r, nil
}

func (r *reading) table(f model.Family, t xtables.Table, chains []xtables.SavedChain) {
	for _, c := range chains {
		id := chainID{Family: f, Table: t, Chain: c.Name}
		class := classOf(c.Name)
		if !c.Builtin && class == unowned {
			continue
		}
		id.Chain = strings.Clone(c.Name) // else it would keep the listing in memory
		switch {
		case c.Builtin:
			r.addShared(id, ownJumps(c.Rules))
		case class == whole:
			r.objects[Key{chainID: id}] = xtables.Canonical(c.Rules...)
		default:
			r.put(Key{chainID: id}, Value{})
			r.addShared(id, c.Rules)
		}
	}
}

// ownJumps returns those rules of a chain of the kernel that are ours: whatever
// leads to a chain of ours, and the one that blocks localnet.
func ownJumps(rules []xtables.Line) (ours []xtables.Line) {
	for _, l := range rules {
		if rule := l.Rule(); classOf(rule.Chain()) != unowned || isLocalnetRule(rule) {
			ours = append(ours, l)
		}
	}
	return ours
}

// addShared takes the rules of a chain to which many contribute, or of the kernel.
func (r *reading) addShared(id chainID, rules []xtables.Line) {
	var last Position
	ordered := true
	for n, l := range rules {
		rule := l.Rule()
		k := Key{id, position(id, rule)}
		if _, twice := r.objects[k]; twice || rule.Unparsed != "" {
			k.Position = Position{rankUnexpected, uint32(n), xtables.Rule{Unparsed: strings.Clone(string(l))}.Selector()}
			r.put(k, xtables.Printed(l))
			continue
		}
		ordered = ordered && last.compare(k.Position) < 0
		last = k.Position
		r.objects[k] = xtables.List(rule)
		if classOf(id.Chain) == unowned {
			r.chains.set(k, xtables.Printed(l)) // to delete a rule it must be spelled as it was
		} else {
			r.chains.set(k, r.objects[k])
		}
	}
	if !ordered {
		r.put(Key{id, Position{Rank: rankDisorder}}, Value{})
	}
}

func (r *reading) put(k Key, v Value) {
	r.objects[k] = v
	r.chains.set(k, v)
}
