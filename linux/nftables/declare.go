package nftables

import (
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// tables makes tables, and throws away those that are replaced, with all that is
// in them.
func (b *batch) tables(ops []op) {
	for i, o := range ops {
		if o.Key.Kind != KindTable || o.Verb == ledger.Delete {
			continue
		}
		if o.Verb == ledger.Replace {
			b.delTable(i, o.Key.Family)
		}
		// Exclusive: a table that is there already is not ours to write to.
		b.message(msgNewTable, flagCreate|flagExcl, i, o.Key)
		b.str(1, b.name)
		var n notes
		n.comment(o.New.Body.Comment)
		b.attr(6, n)
		b.end()
	}
}

func (b *batch) delTable(op int, f model.Family) {
	b.message(msgDelTable, 0, op, tableKey(f))
	b.str(1, b.name)
	b.end()
}

// flush takes the rules out of chains that change or go.
func (b *batch) flush(ops []op) {
	for i, o := range ops {
		if o.Key.Kind == KindChain && o.Verb != ledger.Create {
			b.message(msgDelRule, 0, i, o.Key)
			b.str(1, b.name)
			b.str(2, o.Key.Rest)
			b.end()
		}
	}
}

// declare makes sets and chains. A chain whose hook differs must be made anew.
func (b *batch) declare(ops []op) {
	for i, o := range ops {
		switch {
		case o.Verb == ledger.Delete:
		case o.Key.Kind == KindSet && o.Verb == ledger.Create:
			b.newSet(i, o)
		case o.Key.Kind == KindChain:
			if o.Verb == ledger.Replace && o.Old.Body.Chain.Hook != o.New.Body.Chain.Hook {
				b.delChain(i, o.Key)
			}
			b.newChain(i, o)
		}
	}
}

func (b *batch) newSet(i int, o op) {
	def, sh := sets[setNamed(o.Key.Rest)].Set, o.New.Body.Set
	b.message(msgNewSet, flagCreate, i, o.Key)
	b.str(1, b.name)
	b.str(2, o.Key.Rest)
	b.u32(3, sh.flags)
	b.u32(4, sh.keyType)
	b.u32(5, sh.keyLen)
	if sh.flags&setMap != 0 {
		b.u32(6, sh.dataType)
		b.u32(7, sh.dataLen)
	}
	b.describe(def, sh)
	b.u32(10, b.next) // an id within the batch, of no use to us
	b.attr(13, setNotes(o.Key.Family, def))
	b.end()
}

// describe writes a set's size, and the lengths of its fields where the kernel
// must know them.
func (b *batch) describe(def Set, sh shape) {
	desc := b.open(9)
	if sh.size > 0 {
		b.u32(1, sh.size)
	}
	if sh.flags&setConcat != 0 {
		fields := b.open(2)
		for _, k := range def.key {
			at := b.open(1)
			b.u32(1, uint32(fieldLen(b.family, k)))
			b.close(at)
		}
		b.close(fields)
	}
	b.close(desc)
}

func (b *batch) newChain(i int, o op) {
	h := o.New.Body.Chain.Hook
	flags := uint16(flagCreate)
	if o.Verb == ledger.Create {
		flags |= flagExcl // of one that is there the rules would stay, before ours
	}
	b.message(msgNewChain, flags, i, o.Key)
	b.str(1, b.name)
	b.str(3, o.Key.Rest)
	if h.Type != "" {
		at := b.open(4)
		b.u32(1, uint32(h.Point))
		b.u32(2, uint32(h.Priority))
		b.close(at)
		b.u32(5, h.Policy)
		b.str(7, h.Type)
	}
	b.end()
}

func (b *batch) delChain(i int, k Key) {
	b.message(msgDelChain, 0, i, k)
	b.str(1, b.name)
	b.str(3, k.Rest)
	b.end()
}

func (b *batch) rules(ops []op) {
	for i, o := range ops {
		if o.Key.Kind != KindChain || o.Verb == ledger.Delete {
			continue
		}
		for _, r := range o.New.Body.Chain.Rules {
			b.message(msgNewRule, flagCreate|flagAppend, i, o.Key)
			b.str(1, b.name)
			b.str(2, o.Key.Rest)
			list := b.open(4)
			for _, s := range r.Statements {
				s.encode(&b.encoder)
			}
			b.close(list)
			b.attr(7, ruleNotes(r, o.Key.Family))
			b.end()
		}
	}
}
