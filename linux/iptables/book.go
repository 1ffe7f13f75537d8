package iptables

import (
	"maps"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// op is one difference between desired and installed state.
type op = ledger.Op[Key, Value]

// book is what is installed in chains to which many contribute, and what is
// ours in those of the kernel: to change one rule, the chain is written anew.
// A chain without entries is not there.
type book map[chainID][]entry

// entry is one object of such a chain. Entries are in the order of their lines.
type entry struct {
	line  Line
	value Value
}

func (b book) set(k Key, v Value) {
	es := b[k.chainID]
	i, known := locate(es, k.Line)
	if known {
		es[i].value = v
	} else {
		es = slices.Insert(es, i, entry{k.Line, v})
	}
	b[k.chainID] = es
}

func (b book) remove(k Key) {
	if i, known := locate(b[k.chainID], k.Line); known {
		b[k.chainID] = slices.Delete(b[k.chainID], i, i+1)
	}
}

// rules returns the rule of a key; none where there is none.
func (b book) rules(k Key) (v Value) {
	if i, known := locate(b[k.chainID], k.Line); known {
		v = b[k.chainID][i].value
	}
	return v
}

func locate(es []entry, line Line) (place int, known bool) {
	return slices.BinarySearchFunc(es, line, func(e entry, l Line) int { return e.line.compare(l) })
}

// apply returns the script of ops, which are all of one table, and the book's
// pages as they are after it. The book stays as it is: the script may fail.
func (b book) apply(ops []op) (s xtables.Script, after book) {
	after = book{}
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
		case classOf(id.Chain) == foreign:
			relay(&s, id.Chain, values(b[id], true), values(es, false))
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
		if e.value.Len() > 0 && (aliens || !e.line.alien()) {
			vs = append(vs, e.value)
		}
	}
	return vs
}

// keep takes pages over.
func (b book) keep(pages book) {
	for id, es := range pages {
		if len(es) == 0 {
			delete(b, id)
		} else {
			b[id] = es
		}
	}
}
