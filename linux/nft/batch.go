// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"cmp"
	"slices"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// Op is one change of a batch.
type Op = ledger.Op[Key, Value]

// batch turns ops into the messages of one transaction. The next transaction reuses its
// memory, but for that of a start, which changes do not need.
type batch struct {
	encoder
	table   *Table
	seq     uint32 // of the first message, BATCH_BEGIN
	next    uint32
	sent    []sent
	places  []place
	pending [2][]pending // element ops by family and set
}

// sent describes a message of the batch; its index gives the sequence number.
type sent struct {
	op     int32 // index; -1 for a list of elements: see places
	start  int32 // in Buf
	places int32 // of its elements, in batch.places
}

// place maps the offset of an element in a message to its op.
type place struct {
	offset int32 // in the message
	op     int32
}

type pending struct{ del, add []int32 }

func newBatch(t *Table) *batch {
	b := &batch{encoder: encoder{Writer: &netlink.Writer{}}, table: t}
	for f := range b.pending {
		b.pending[f] = make([]pending, len(t.sets))
	}
	return b
}

// Encode returns ops as the messages of one transaction, whose first has the sequence
// number seq.
func (t *Table) Encode(ops []Op, seq uint32) []byte { return newBatch(t).encode(ops, seq) }

// keptBuffer is how many bytes a batch keeps however small transactions are.
const keptBuffer = 1 << 20

// maxElements bounds the bytes of an element list: the length of an attribute has 16
// bits.
const maxElements = 60000

// encode writes the ops as one transaction, in an order that the kernel accepts: first
// old rules and elements are deleted, then sets and chains are declared before rules and elements use
// them, and unused sets and chains are deleted last. Only the last message before
// BATCH_END is acknowledged. The bytes are valid until the next call.
func (b *batch) encode(ops []Op, seq uint32) []byte {
	if last := len(b.Buf); cap(b.Buf) > keptBuffer && cap(b.Buf) > 8*last {
		*b = *newBatch(b.table)
	}
	b.Buf, b.sent, b.places = b.Buf[:0], b.sent[:0], b.places[:0]
	b.seq, b.next = seq, seq
	b.Begin(batchBegin, 0, b.take(-1), 0, subsystem)
	b.End()
	b.sort(ops)
	b.tables(ops)
	b.flush(ops)
	b.elements(ops, true)
	b.declare(ops)
	b.rules(ops)
	b.elements(ops, false)
	b.remove(ops)
	// An acknowledgement of BATCH_END would be simpler, but kernels before 6.10 do
	// not send it.
	b.Acknowledge()
	b.Begin(batchEnd, 0, b.take(-1), 0, subsystem)
	b.End()
	return b.Buf
}

// take records a message for an op, or -1, and returns its sequence number.
func (b *batch) take(op int) uint32 {
	b.sent = append(b.sent, sent{op: int32(op), start: int32(len(b.Buf)), places: int32(len(b.places))})
	b.next++
	return b.next - 1
}

// message begins a message for the op of a key, with the name of the table.
func (b *batch) message(kind, flags uint16, op int, k Key) {
	b.family = k.Family
	b.Begin(subsystem<<8|kind, flags, b.take(op), netlink.FamilyOf(k.Family), 0)
	b.Text(attrTable, b.table.Name)
}

// named writes a message about a set or chain; attr is the attribute for its name.
func (b *batch) named(kind uint16, op int, k Key, attr uint16) {
	b.message(kind, 0, op, k)
	b.Text(attr, k.Name())
	b.End()
}

// sort groups the element ops by family and set.
func (b *batch) sort(ops []Op) {
	for f := range b.pending {
		for s := range b.pending[f] {
			p := &b.pending[f][s]
			p.del, p.add = p.del[:0], p.add[:0]
		}
	}
	for i, o := range ops {
		if o.Key.Kind != KindElement && o.Key.Kind != KindForeign {
			continue
		}
		p := &b.pending[o.Key.Family][o.Key.Set.order]
		if o.Verb != ledger.Create {
			p.del = append(p.del, int32(i))
		}
		if o.Verb != ledger.Delete {
			p.add = append(p.add, int32(i))
		}
	}
}

// elements deletes or adds elements of all sets. A replaced element is deleted and
// added again; no packet sees it missing, since that is one transaction.
func (b *batch) elements(ops []Op, del bool) {
	for f := range b.pending {
		for s := range b.pending[f] {
			list := b.pending[f][s].add
			if del {
				list = b.pending[f][s].del
			}
			for len(list) > 0 {
				list = list[b.elementList(ops, list, del):]
			}
		}
	}
}

// elementList writes one message and returns how many ops it holds.
func (b *batch) elementList(ops []Op, list []int32, del bool) (n int) {
	first := ops[list[0]].Key
	kind, flags := uint16(msgNewSetElem), uint16(netlink.FlagCreate)
	if del {
		kind, flags = msgDelSetElem, 0
	}
	b.message(kind, flags, -1, first)
	b.Text(attrElementsSet, first.Set.Name)
	at := b.Nest(attrElementsList)
	for n < len(list) && len(b.Buf)-at < maxElements {
		o := &ops[list[n]]
		b.places = append(b.places, place{offset: int32(len(b.Buf) - b.Start()), op: list[n]})
		b.element(o.Key, o.New, !del)
		n++
	}
	b.NestEnd(at)
	b.End()
	return n
}

// remove deletes sets, then chains, then tables. No rule refers to them any more, but
// elements of foreign sets in an owned table may refer to chains, so sets come first.
func (b *batch) remove(ops []Op) {
	for _, kind := range []Kind{KindSet, KindChain, KindTable} {
		for i, o := range ops {
			if o.Verb != ledger.Delete || o.Key.Kind != kind {
				continue
			}
			switch kind {
			case KindSet:
				b.named(msgDelSet, i, o.Key, attrSetName)
			case KindChain:
				b.named(msgDelChain, i, o.Key, attrChainName)
			case KindTable:
				b.delTable(i, o.Key.Family)
			}
		}
	}
}

// last is the sequence number of the message that is acknowledged.
func (b *batch) last() uint32 { return b.next - 2 }

// culprit returns the op of a failed message, given the offset of the attribute that the
// kernel rejected, 0 if unknown. Ok is false if the op is unknown; in a list of elements op
// is then the first.
func (b *batch) culprit(seq, offset uint32) (op int, ok bool) {
	i := int(seq - b.seq)
	if i <= 0 || i >= len(b.sent) {
		return 0, false
	}
	m := b.sent[i]
	if m.op >= 0 {
		return int(m.op), true
	}
	places := b.places[m.places:]
	if i+1 < len(b.sent) {
		places = places[:b.sent[i+1].places-m.places]
	}
	if len(places) == 0 {
		return 0, false
	}
	at, found := slices.BinarySearchFunc(places, int32(offset), func(p place, o int32) int { return int(p.offset - o) })
	if !found && at > 0 {
		at--
	}
	return int(places[at].op), found || offset > 0
}

// expression returns the name of the expression at the offset that the kernel rejected,
// empty if no expression begins there.
func (b *batch) expression(seq, offset uint32) string {
	i := int(seq - b.seq)
	if i <= 0 || i >= len(b.sent) || offset == 0 || b.sent[i].op < 0 {
		return ""
	}
	at := int(b.sent[i].start) + int(offset)
	if at+4 > len(b.Buf) || b.Buf[b.sent[i].start] == 0 {
		return ""
	}
	for kind, v := range netlink.Attrs(b.Buf[at:]) {
		if name := netlink.Text(v); kind == attrExprName && printable(name) == name && name != "" {
			return name
		}
		break
	}
	return ""
}

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
	b.End()
}

// flush deletes the rules of chains that are changed or deleted.
func (b *batch) flush(ops []Op) {
	for i, o := range ops {
		if o.Key.Kind == KindChain && o.Verb != ledger.Create {
			b.named(msgDelRule, i, o.Key, attrRuleChain)
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
				b.named(msgDelChain, i, o.Key, attrChainName)
			}
			b.newChain(i, o)
		}
	}
}

func (b *batch) newSet(i int, o Op) {
	def, sh := b.table.named[o.Key.Name()], o.New.Body.Set
	b.message(msgNewSet, netlink.FlagCreate, i, o.Key)
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
	b.Text(attrChainName, o.Key.Name())
	if h.Type != "" {
		b.hook(h)
	}
	b.End()
}

// hook writes where packets meet a chain.
func (e *encoder) hook(h Hook) {
	at := e.Nest(attrChainHook)
	e.Uint32(attrHookPoint, uint32(h.Point))
	e.Uint32(attrHookPriority, uint32(h.Priority))
	e.NestEnd(at)
	e.Uint32(attrChainPolicy, h.Policy)
	e.Text(attrChainType, h.Type)
}

func (b *batch) rules(ops []Op) {
	for i, o := range ops {
		if o.Key.Kind != KindChain || o.Verb == ledger.Delete {
			continue
		}
		for _, r := range o.New.Body.Chain.Rules {
			b.message(msgNewRule, netlink.FlagCreate|netlink.FlagAppend, i, o.Key)
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

// Ops that are too large for one transaction are applied in parts. Their order (Rank)
// makes every prefix of them consistent, except for ranges of addresses: deleted and
// added ranges may overlap, and the kernel rejects overlapping ranges.

// gathered returns the indices of ops in an order that keeps ranges that may overlap
// together, deletions first. Deletions of ranges move forward to additions in the same group that
// come before them. Additions that come after deletions do not overlap these (ledger.Plan),
// and stay in place.
func gathered(ops []Op) (order []int) {
	type run struct {
		begin   int
		deletes bool
	}
	runs := map[Key]run{} // the last one of each group
	at := make([]int, len(ops))
	order = make([]int, len(ops))
	for i, o := range ops {
		order[i], at[i] = i, i
		group, ok := overlapping(o)
		if !ok {
			continue
		}
		r, known := runs[group]
		if deletes := o.Verb == ledger.Delete; !known || r.deletes && !deletes {
			r = run{i, deletes}
		} else {
			r.deletes = deletes
		}
		runs[group] = r
		at[i] = r.begin
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(at[a], at[b]), cmp.Compare(deletesFirst(ops[a]), deletesFirst(ops[b])), cmp.Compare(a, b))
	})
	return order
}

// deletesFirst is a sort key that puts deletions before other ops.
func deletesFirst(o Op) int {
	if o.Verb == ledger.Delete {
		return 0
	}
	return 1
}

// overlapping returns the group within which the op's range may overlap others: the set, with
// the frontend if the keys have it. Ok is false if the op is not about a range.
func overlapping(o Op) (group Key, ok bool) {
	if _, ok = o.Key.Range(); !ok {
		return group, false
	}
	group = Key{Family: o.Key.Family, Set: o.Key.Set}
	if o.Key.Set.rangeBehind() {
		group.Proto, group.Port, group.Addr = o.Key.Proto, o.Key.Port, o.Key.Addr
	}
	return group, true
}

// cut returns where gathered ops are split: as near to the middle as possible without
// separating ranges that may overlap. If all may, it splits these: some ranges are then
// missing until the second part is applied.
func cut(ops []Op) int {
	half := len(ops) / 2
	for off := range len(ops) - half {
		for _, i := range [...]int{max(half-off, 1), half + off} {
			before, ranges := overlapping(ops[i-1])
			behind, _ := overlapping(ops[i])
			if !ranges || before != behind {
				return i
			}
		}
	}
	return half
}
