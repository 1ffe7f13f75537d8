package iptables

import (
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// reading is what iptables-save tells of a family: the objects that are ours, and
// the content of chains that many share.
type reading struct {
	objects map[Key]Value
	book    book
}

// read takes what iptables-save printed. It passes over what is not ours: what is
// not like anything of ours is foreign or, in a chain of ours, alien and to be
// removed.
func read(family model.Family, output string) (*reading, error) {
	r := &reading{objects: map[Key]Value{}, book: book{}}
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
		if !c.Builtin && class == foreign {
			continue
		}
		id.Chain = strings.Clone(c.Name) // else it would keep the listing in memory
		switch {
		case c.Builtin:
			r.shared(id, ourJumps(c.Rules))
		case class == whole:
			r.objects[Key{chainID: id}] = xtables.Canonical(c.Rules...)
		default:
			r.put(Key{chainID: id}, Value{})
			r.shared(id, c.Rules)
		}
	}
}

// ourJumps returns those rules of a chain of the kernel that are ours: whatever
// leads to a chain of ours, and the one that stops martians.
func ourJumps(rules []xtables.Line) (ours []xtables.Line) {
	for _, l := range rules {
		if rule := l.Rule(); classOf(rule.Chain()) != foreign || against(rule) {
			ours = append(ours, l)
		}
	}
	return ours
}

// shared takes the rules of a chain to which many contribute, or of the kernel.
func (r *reading) shared(id chainID, rules []xtables.Line) {
	var last Line
	ordered := true
	for n, l := range rules {
		rule := l.Rule()
		k := Key{id, line(id, rule)}
		if _, twice := r.objects[k]; twice || rule.Foreign != "" {
			k.Line = Line{placeAlien, uint32(n), xtables.Rule{Foreign: strings.Clone(string(l))}.Selector()}
			r.put(k, xtables.Printed(l))
			continue
		}
		ordered = ordered && last.compare(k.Line) < 0
		last = k.Line
		r.objects[k] = xtables.List(rule)
		if classOf(id.Chain) == foreign {
			r.book.set(k, xtables.Printed(l)) // to delete a rule it must be spelled as it was
		} else {
			r.book.set(k, r.objects[k])
		}
	}
	if !ordered {
		r.put(Key{id, Line{Place: placeDisorder}}, Value{})
	}
}

func (r *reading) put(k Key, v Value) {
	r.objects[k] = v
	r.book.set(k, v)
}
