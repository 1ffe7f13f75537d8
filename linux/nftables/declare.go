package nftables

import (
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
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
		b.message(msgNewTable, netlink.FlagCreate|netlink.FlagExclusive, i, o.Key)
		b.Text(1, b.name)
		var n notes
		n.comment(o.New.Body.Comment)
		b.Bytes(6, n)
		b.End()
	}
}

func (b *batch) delTable(op int, f model.Family) {
	b.message(msgDelTable, 0, op, tableKey(f))
	b.Text(1, b.name)
	b.End()
}

// flush takes the rules out of chains that change or go.
func (b *batch) flush(ops []op) {
	for i, o := range ops {
		if o.Key.Kind == KindChain && o.Verb != ledger.Create {
			b.message(msgDelRule, 0, i, o.Key)
			b.Text(1, b.name)
			b.Text(2, o.Key.Rest)
			b.End()
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
	b.message(msgNewSet, netlink.FlagCreate, i, o.Key)
	b.Text(1, b.name)
	b.Text(2, o.Key.Rest)
	b.Uint32(3, sh.flags)
	b.Uint32(4, sh.keyType)
	b.Uint32(5, sh.keyLen)
	if sh.flags&setMap != 0 {
		b.Uint32(6, sh.dataType)
		b.Uint32(7, sh.dataLen)
	}
	b.describe(def, sh)
	b.Uint32(10, b.next) // an id within the batch, of no use to us
	b.Bytes(13, setNotes(o.Key.Family, def))
	b.End()
}

// describe writes a set's size, and the lengths of its fields where the kernel
// must know them.
func (b *batch) describe(def Set, sh shape) {
	desc := b.Nest(9)
	if sh.size > 0 {
		b.Uint32(1, sh.size)
	}
	if sh.flags&setConcat != 0 {
		fields := b.Nest(2)
		for _, k := range def.key {
			at := b.Nest(1)
			b.Uint32(1, uint32(fieldLen(b.family, k)))
			b.NestEnd(at)
		}
		b.NestEnd(fields)
	}
	b.NestEnd(desc)
}

func (b *batch) newChain(i int, o op) {
	h := o.New.Body.Chain.Hook
	flags := uint16(netlink.FlagCreate)
	if o.Verb == ledger.Create {
		flags |= netlink.FlagExclusive // of one that is there the rules would stay, before ours
	}
	b.message(msgNewChain, flags, i, o.Key)
	b.Text(1, b.name)
	b.Text(3, o.Key.Rest)
	if h.Type != "" {
		at := b.Nest(4)
		b.Uint32(1, uint32(h.Point))
		b.Uint32(2, uint32(h.Priority))
		b.NestEnd(at)
		b.Uint32(5, h.Policy)
		b.Text(7, h.Type)
	}
	b.End()
}

func (b *batch) delChain(i int, k Key) {
	b.message(msgDelChain, 0, i, k)
	b.Text(1, b.name)
	b.Text(3, k.Rest)
	b.End()
}

func (b *batch) rules(ops []op) {
	for i, o := range ops {
		if o.Key.Kind != KindChain || o.Verb == ledger.Delete {
			continue
		}
		for _, r := range o.New.Body.Chain.Rules {
			b.message(msgNewRule, netlink.FlagCreate|netlink.FlagAppend, i, o.Key)
			b.Text(1, b.name)
			b.Text(2, o.Key.Rest)
			list := b.Nest(4)
			for _, s := range r.Statements {
				s.encode(&b.encoder)
			}
			b.NestEnd(list)
			b.Bytes(7, ruleNotes(r, o.Key.Family))
			b.End()
		}
	}
}
