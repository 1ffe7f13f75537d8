// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// tables creates tables, and deletes replaced ones with all their contents.
func (b *batch) tables(ops []Op) {
	for i, o := range ops {
		if o.Key.Kind != KindTable || o.Verb == ledger.Delete {
			continue
		}
		if o.Verb == ledger.Replace {
			b.delTable(i, o.Key.Family)
		}
		// Exclusive: an existing table belongs to another program.
		b.message(msgNewTable, netlink.FlagCreate|netlink.FlagExclusive, i, o.Key)
		b.Text(attrTable, b.table.Name)
		if b.table.flags != 0 {
			b.Uint32(attrTableFlags, b.table.flags)
		}
		var n notes
		n.comment(o.New.Body.Comment)
		b.Bytes(attrTableUserdata, n)
		b.End()
	}
}

func (b *batch) delTable(op int, f model.Family) {
	b.message(msgDelTable, 0, op, TableKey(f))
	b.Text(attrTable, b.table.Name)
	b.End()
}

// flush deletes the rules of chains that are changed or deleted.
func (b *batch) flush(ops []Op) {
	for i, o := range ops {
		if o.Key.Kind == KindChain && o.Verb != ledger.Create {
			b.message(msgDelRule, 0, i, o.Key)
			b.Text(attrTable, b.table.Name)
			b.Text(attrRuleChain, o.Key.Name())
			b.End()
		}
	}
}

// declare creates sets and chains. A chain whose hook differs must be re-created.
func (b *batch) declare(ops []Op) {
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

func (b *batch) newSet(i int, o Op) {
	def, sh := b.table.named[o.Key.Name()], o.New.Body.Set
	b.message(msgNewSet, netlink.FlagCreate, i, o.Key)
	b.Text(attrTable, b.table.Name)
	b.Text(attrSetName, o.Key.Name())
	b.Uint32(attrSetFlags, sh.flags)
	b.Uint32(attrSetKeyType, sh.keyType)
	b.Uint32(attrSetKeyLen, sh.keyLen)
	if sh.flags&setMap != 0 {
		b.Uint32(attrSetDataType, sh.dataType)
		b.Uint32(attrSetDataLen, sh.dataLen)
	}
	b.describe(def, sh)
	b.Uint32(attrSetID, b.next) // required, but not used
	b.Bytes(attrSetUserdata, setNotes(o.Key.Family, def))
	b.End()
}

// describe writes a set's size, and the lengths of its fields where the kernel
// must know them.
func (b *batch) describe(def *Set, sh shape) {
	desc := b.Nest(attrSetDesc)
	if sh.size > 0 {
		b.Uint32(attrDescSize, sh.size)
	}
	if sh.flags&setConcat != 0 {
		fields := b.Nest(attrDescConcat)
		for _, k := range def.Key {
			at := b.Nest(attrListItem)
			b.Uint32(attrFieldLen, uint32(fieldLen(b.family, k)))
			b.NestEnd(at)
		}
		b.NestEnd(fields)
	}
	b.NestEnd(desc)
}

func (b *batch) newChain(i int, o Op) {
	h := o.New.Body.Chain.Hook
	flags := uint16(netlink.FlagCreate)
	if o.Verb == ledger.Create {
		flags |= netlink.FlagExclusive // an existing chain would keep its rules, before these
	}
	b.message(msgNewChain, flags, i, o.Key)
	b.Text(attrTable, b.table.Name)
	b.Text(attrChainName, o.Key.Name())
	if h.Type != "" {
		at := b.Nest(attrChainHook)
		b.Uint32(attrHookPoint, uint32(h.Point))
		b.Uint32(attrHookPriority, uint32(h.Priority))
		b.NestEnd(at)
		b.Uint32(attrChainPolicy, h.Policy)
		b.Text(attrChainType, h.Type)
	}
	b.End()
}

func (b *batch) delChain(i int, k Key) {
	b.message(msgDelChain, 0, i, k)
	b.Text(attrTable, b.table.Name)
	b.Text(attrChainName, k.Name())
	b.End()
}

func (b *batch) rules(ops []Op) {
	for i, o := range ops {
		if o.Key.Kind != KindChain || o.Verb == ledger.Delete {
			continue
		}
		for _, r := range o.New.Body.Chain.Rules {
			b.message(msgNewRule, netlink.FlagCreate|netlink.FlagAppend, i, o.Key)
			b.Text(attrTable, b.table.Name)
			b.Text(attrRuleChain, o.Key.Name())
			list := b.Nest(attrRuleExpressions)
			for _, s := range r.Statements {
				s.encode(&b.encoder)
			}
			b.NestEnd(list)
			b.Bytes(attrRuleUserdata, b.table.ruleNotes(o.Key.Family, r))
			b.End()
		}
	}
}
