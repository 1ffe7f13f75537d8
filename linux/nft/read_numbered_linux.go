// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

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
	left := numberedKeys{all: all}
	err = d.together(s, func(sock *netlink.Socket, part *snapshot) error {
		keys := make([]Key, 0, atOnce)
		for {
			if keys = left.take(keys[:0]); len(keys) == 0 {
				return nil
			}
			if whole, err := requestKeys(ctx, sock, part, keys); err != nil || !whole {
				left.stop()
				return err
			}
		}
	})
	if err != nil || left.stopped {
		return false, err
	}
	now := newSnapshot(d.table, s.family, nil)
	err = request(ctx, d.readers[0], msgGetSet, 0, netlink.FamilyOf(s.family), func(w *netlink.Writer) {
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

// numberedKeys are the keys of elements that are still to be read. It is safe for concurrent
// use.
type numberedKeys struct {
	mu      sync.Mutex
	all     []numbered
	stopped bool
}

// take appends the next keys to a list, up to its capacity.
func (q *numberedKeys) take(keys []Key) []Key {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.all) > 0 && len(keys) < cap(keys) {
		next := &q.all[0]
		if next.n == 0 {
			q.all = q.all[1:]
			continue
		}
		keys = append(keys, next.key)
		next.key.Slot++
		next.n--
	}
	return keys
}

// stop drops what is left, since it will not be all.
func (q *numberedKeys) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.all, q.stopped = nil, true
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
