// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/linux/netlink"
)

// The kernel returns a set in parts of 32 KB, and begins each at the first element to skip
// those that it returned before (nf_tables_dump_set): 250,000 elements are 46 million steps.
// An element by its key takes the same time in any set. From manyElements on that is less,
// and there is a way to know that none was missed: the kernel's own count of elements, which
// it reports since Linux 6.17. Where it does not, or where the count is another, the set is
// read in parts.

const (
	manyElements = 100_000
	atOnce       = 64 // elements of a request; the answers fit into any socket's buffer
)

// SetMany sets how many elements a set has at least if it is read by its keys; before the
// first Observe.
func (d *Driver) SetMany(n int) { d.many = n - 1 }

// ReadByKeys is how many sets were read by their keys.
func (d *Driver) ReadByKeys() int { return int(d.byKeys.Load()) }

// readNumbered reads the elements of a set that those read so far lead to, if it has very
// many, and reports whether these are all. Elements that are added and deleted meanwhile
// may hide, by the sum, as many that nothing leads to; no packet finds those, and the next
// reading does.
func (d *Driver) readNumbered(ctx context.Context, s *snapshot, set *Set) (whole bool, err error) {
	all := distinct(s.numbered[set])
	delete(s.numbered, set) // it can be large
	total := 0
	for _, one := range all {
		total += one.n
	}
	if total == 0 || total != s.counts[set] {
		return false, nil
	}
	keys := make([]Key, 0, atOnce)
	for _, one := range all {
		for range one.n {
			keys = append(keys, one.key)
			one.key.Slot++
			if len(keys) < atOnce {
				continue
			}
			if whole, err := requestKeys(ctx, d.reader, s, keys); err != nil || !whole {
				return false, err
			}
			keys = keys[:0]
		}
	}
	if whole, err := requestKeys(ctx, d.reader, s, keys); err != nil || !whole {
		return false, err
	}
	now := newSnapshot(d.table, s.family, nil)
	err = request(ctx, d.reader, msgGetSet, 0, netlink.FamilyOf(s.family), func(w *netlink.Writer) {
		w.Text(attrTable, d.table.Name)
		w.Text(attrSetName, set.Name)
	}, now.add)
	if errors.Is(err, unix.ENOENT) { // it existed a moment ago
		return false, nil
	}
	if whole = err == nil && now.counts[set] == total; whole {
		d.byKeys.Add(1)
	}
	return whole, err
}

// distinct returns what is left when several elements lead to the same ones, as those of one
// frontend for several origins do.
func distinct(all []numbered) []numbered {
	slices.SortFunc(all, func(a, b numbered) int {
		return cmp.Or(bytes.Compare(a.key.Addr[:], b.key.Addr[:]), cmp.Compare(a.key.Port, b.key.Port), cmp.Compare(a.key.Proto, b.key.Proto),
			cmp.Compare(a.key.Slot, b.key.Slot), cmp.Compare(b.n, a.n)) // the most elements first
	})
	return slices.CompactFunc(all, func(a, b numbered) bool { return a.key == b.key })
}

// requestKeys reads elements of one set by their keys, and reports whether all are there.
func requestKeys(ctx context.Context, sock *netlink.Socket, s *snapshot, keys []Key) (whole bool, err error) {
	if len(keys) == 0 {
		return true, nil
	}
	err = sock.RequestMany(ctx, subsystem<<8|msgGetSetElem, netlink.FamilyOf(s.family), func(w *netlink.Writer) {
		w.Text(attrTable, s.table.Name)
		w.Text(attrElementsSet, keys[0].Set.Name)
		at := w.Nest(attrElementsList)
		e := &encoder{Writer: w, family: s.family}
		for _, k := range keys {
			e.element(k, Value{}, false)
		}
		w.NestEnd(at)
	}, s.add)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}
