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

// sharedChains is the installed content of shared chains, and of the owned rules in
// built-in chains: a change of one rule rewrites all of them in its chain. A chain without
// entries does not exist.
type sharedChains map[chainID][]entry

// entry is one object of a chain. Entries are in the order of their positions.
type entry struct {
	at    Position
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

func locate(es []entry, at Position) (index int, known bool) {
	return slices.BinarySearchFunc(es, at, func(e entry, at Position) int { return e.at.compare(at) })
}

// apply returns the script for ops on one table, and the content of changed chains
// after it. The receiver is unchanged, since the script may fail.
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

// values lists the rules of entries, with or without unexpected ones.
func values(es []entry, unexpected bool) (vs []Value) {
	for _, e := range es {
		if e.value.Len() > 0 && (unexpected || !e.at.unexpected()) {
			vs = append(vs, e.value)
		}
	}
	return vs
}

// update sets the content of chains after a script.
func (b sharedChains) update(changed sharedChains) {
	for id, es := range changed {
		if len(es) == 0 {
			delete(b, id)
		} else {
			b[id] = es
		}
	}
}

// replaceRules replaces the owned rules in a built-in chain by new ones at its top.
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

// reading is the owned objects of a family, and the content of its shared chains, as read from
// iptables-save.
type reading struct {
	objects map[Key]Value
	chains  sharedChains
}

// read parses the output of iptables-save. Foreign rules are skipped in built-in
// chains; in owned chains they are unexpected, and drift.
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
		id.Chain = strings.Clone(c.Name) // a substring would keep the whole listing in memory
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

// ownJumps returns the owned rules of a built-in chain: jumps to owned chains.
func ownJumps(rules []xtables.Line) (owned []xtables.Line) {
	for _, l := range rules {
		if classOf(l.Rule().Chain()) != unowned {
			owned = append(owned, l)
		}
	}
	return owned
}

// addShared adds the rules of a shared or built-in chain.
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
			r.chains.set(k, xtables.Printed(l)) // deleting a rule needs its text as printed
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
