// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// Counts passes the counters of the elements of some sets, and what the elements
// do, to found. It reads concurrently with drivers, in the network namespace of the calling thread.
func (t *Table) Counts(ctx context.Context, f model.Family, found func(Key, Value), sets ...*Set) (err error) {
	sock, err := openSocket()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sock.Close()) }()
	s := newSnapshot(t, f, func(k Key, v Value) {
		if counts(v) {
			found(k, v)
		}
	})
	for _, set := range sets {
		fill := func(w *netlink.Writer) { w.Text(attrTable, t.Name); w.Text(attrElementsSet, set.Name) }
		if err := request(ctx, sock, msgGetSetElem, netlink.FlagDump, netlink.FamilyOf(f), fill, s.add); err != nil {
			return err
		}
	}
	return nil
}

// fewCounters is up to how many counters are read one by one.
const fewCounters = 64

// keepCounts has elements that are replaced begin with what those before them have
// counted. What cannot be read starts again: counts are no reason to hold up a
// change. The caller has the lock.
func (d *Driver) keepCounts(ctx context.Context, ops []Op) {
	at := map[Key]int{}
	sets := map[model.Family]map[*Set]Key{}
	for i, o := range ops {
		if o.Verb != ledger.Replace || o.Key.Kind != KindElement || !counts(o.Old) || !counts(o.New) {
			continue
		}
		if o.Old.To != o.New.To || o.Old.Port != o.New.Port {
			continue // the count is the old endpoint's
		}
		at[o.Key] = i
		if sets[o.Key.Family] == nil {
			sets[o.Key.Family] = map[*Set]Key{}
		}
		sets[o.Key.Family][o.Key.Set] = o.Key
	}
	if len(at) == 0 {
		return
	}
	keep := func(k Key, v Value) {
		i, replaced := at[k]
		if !replaced || !counts(v) {
			return
		}
		body := *ops[i].New.Body // it may be shared
		body.Counter = v.Body.Counter
		ops[i].New.Body = &body
	}
	for f, of := range sets {
		s := newSnapshot(d.table, f, keep)
		for set := range of {
			if len(at) > fewCounters {
				_ = d.requestElements(ctx, d.sock, s, set, nil)
				continue
			}
			for k := range at {
				if k.Family == f && k.Set == set {
					_ = d.requestElements(ctx, d.sock, s, set, &k)
				}
			}
		}
	}
}

// requestElements reads an element of a set, or all.
func (d *Driver) requestElements(ctx context.Context, sock *netlink.Socket, s *snapshot, set *Set, one *Key) error {
	flags := uint16(netlink.FlagDump)
	if one != nil {
		flags = 0
	}
	return request(ctx, sock, msgGetSetElem, flags, netlink.FamilyOf(s.family), func(w *netlink.Writer) {
		w.Text(attrTable, d.table.Name)
		w.Text(attrElementsSet, set.Name)
		if one != nil {
			at := w.Nest(attrElementsList)
			(&encoder{Writer: w, family: s.family}).element(*one, Value{}, false)
			w.NestEnd(at)
		}
	}, s.add)
}
