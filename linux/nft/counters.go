// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"slices"
	"sync"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// Count is what a counter has counted.
type Count struct{ Packets, Bytes uint64 }

// counter writes the counter of an element, with its initial count.
func (e *encoder) counter(c Count) {
	at := e.Nest(elemExpr)
	e.Text(attrExprName, "counter")
	data := e.Nest(attrExprData)
	e.Uint64(counterBytes, c.Bytes)
	e.Uint64(counterPackets, c.Packets)
	e.NestEnd(data)
	e.NestEnd(at)
}

// parseCounter reads the expression of an element; ok is false for any other than a counter.
func parseCounter(b []byte) (c Count, ok bool) {
	for kind, v := range netlink.Attrs(b) {
		switch kind {
		case attrExprName:
			ok = string(netlink.TextBytes(v)) == "counter"
		case attrExprData:
			for kind, v := range netlink.Attrs(v) {
				switch {
				case kind == counterBytes && len(v) == 8:
					c.Bytes = binary.BigEndian.Uint64(v)
				case kind == counterPackets && len(v) == 8:
					c.Packets = binary.BigEndian.Uint64(v)
				}
			}
		}
	}
	return c, ok
}

// budget bounds the counters of elements: each takes kernel memory for every possible CPU. Elements
// written when it is used up get no counter, and are reported as if they had one, so that they are no
// drift; they stay without one until they are replaced. After a restart, elements without a counter
// are drift only as far as there is room for their counters. It is safe for concurrent use.
type budget struct {
	most   int           // counters; 0 for none
	counts map[*Set]bool // sets whose elements have counters

	mu     sync.Mutex
	used   int              // as of the last reading and the transactions since
	denied map[Key]struct{} // elements without a counter for lack of room
}

// counts reports whether a value has a counter.
func counts(v Value) bool { return v.Body != nil && v.Body.Counter != nil }

// uncounted returns a value without its counter.
func uncounted(v Value) Value {
	body := *v.Body // it may be shared
	if body.Counter = nil; body == (Body{}) {
		v.Body = nil
		return v
	}
	v.Body = &body
	return v
}

// room reports whether there is room for an element's counter when used ones exist. Counters of
// endpoints, which come first and are more, may use half of the budget.
func (b *budget) room(used int, k Key) bool {
	if k.Set.Data == DataEndpoint {
		return used < b.most/2
	}
	return used < b.most
}

// admit returns ops without the counters that there is no room for. It copies ops before it
// changes them.
func (b *budget) admit(ops []Op) []Op {
	if b.most == 0 {
		return ops
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	used, own := b.used, false
	for i, o := range ops {
		if o.Key.Kind != KindElement {
			continue
		}
		if o.Verb != ledger.Create && b.counted(o.Key, o.Old) {
			used--
		}
		switch {
		case o.Verb == ledger.Delete || !counts(o.New):
		case b.room(used, o.Key):
			used++
		default:
			if !own {
				ops, own = slices.Clone(ops), true
			}
			ops[i].New = uncounted(o.New)
		}
	}
	return ops
}

// applied notes the ops of a transaction as sent, except those that failed. Asked are the
// same ops before admit.
func (b *budget) applied(asked, sent []Op, errs []error) {
	if b.most == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, o := range sent {
		if o.Key.Kind != KindElement || errs[i] != nil {
			continue
		}
		if o.Verb != ledger.Create && b.counted(o.Key, o.Old) {
			b.used--
		}
		delete(b.denied, o.Key)
		switch {
		case o.Verb == ledger.Delete:
		case counts(o.New):
			b.used++
		case counts(asked[i].New):
			b.denied[o.Key] = struct{}{}
		}
	}
}

// counted reports whether an element with the recorded value v has a counter. The caller
// holds the lock.
func (b *budget) counted(k Key, v Value) bool {
	_, denied := b.denied[k]
	return counts(v) && !denied
}

// reading passes on the objects that are read, except elements without a counter in sets
// with counters: budget.end decides at the end of the reading whether they lack room.
type reading struct {
	found   func(Key, Value)
	counts  map[*Set]bool
	used    int // counters that were read
	without []element
}

type element struct {
	Key
	Value
}

func (r *reading) add(k Key, v Value) {
	switch {
	case k.Kind != KindElement || !r.counts[k.Set]:
	case counts(v):
		r.used++
	default:
		r.without = append(r.without, element{k, v})
		return
	}
	r.found(k, v)
}

// end adds a counter to the values of read elements that have none for lack of room. Alone
// means that nothing was written during the reading.
func (b *budget) end(r *reading, alone bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if alone {
		b.used = r.used
	}
	used := b.used
	for i := range r.without {
		e := &r.without[i]
		if _, denied := b.denied[e.Key]; !denied && b.room(used, e.Key) {
			used++
			continue
		}
		b.denied[e.Key] = struct{}{}
		e.Value = counted(e.Value)
	}
}

// counted returns a value with a counter.
func counted(v Value) Value {
	body := Body{}
	if v.Body != nil {
		body = *v.Body
	}
	body.Counter = &Count{}
	v.Body = &body
	return v
}

// lacks reports whether an element has no counter for lack of room.
func (b *budget) lacks(k Key) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, denied := b.denied[k]
	return denied
}
