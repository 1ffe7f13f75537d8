// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// Counts reads the counters of a table's elements, concurrently with drivers. It keeps its
// socket open: when a netfilter socket is closed, the kernel holds the lock of all transactions
// until objects that the last ones deleted are freed, some 10 ms (nft_rcv_nl_event). It is safe
// for concurrent use.
type Counts struct {
	table *Table

	mu   sync.Mutex      // held while it reads
	sock *netlink.Socket // nil once it is closed
}

// OpenCounts opens a socket in the network namespace of the calling thread.
func OpenCounts(t *Table) (*Counts, error) {
	sock, err := openSocket()
	if err != nil {
		return nil, err
	}
	return &Counts{table: t, sock: sock}, nil
}

// Close waits for a Read, and closes the socket. A later Read fails.
func (c *Counts) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sock == nil {
		return nil
	}
	err := c.sock.Close()
	c.sock = nil
	return err
}

// Read calls found for each element of the sets that has a counter, with the counter and the address that it leads to. Found must
// not keep the value's Body. Nothing is allocated for an element: there are 10,000 and more.
func (c *Counts) Read(ctx context.Context, f model.Family, found func(Key, Value), sets ...*Set) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sock == nil {
		return fmt.Errorf("nftables: counters: %w", os.ErrClosed)
	}
	s, body := newSnapshot(c.table, f, nil), Body{Counter: &Count{}}
	s.counters = func(set *Set, e rawElement) {
		k, ours := e.keyOf(f, set)
		v, ok := e.to(f, set)
		if ours && ok {
			*body.Counter = e.count
			v.Body = &body
			found(k, v)
		}
	}
	for _, set := range sets {
		if err := request(ctx, c.sock, msgGetSetElem, netlink.FlagDump, netlink.FamilyOf(f), c.table.part(attrElementsSet, set.Name), s.add); err != nil {
			return err
		}
	}
	return nil
}

// keepCounts makes replaced elements begin with the counts of the old ones, and returns the number of
// elements read: only the replaced ones, however large their set is. Counts that cannot be read
// begin at 0: they must not delay a change. The caller holds the lock.
func (d *Driver) keepCounts(ctx context.Context, ops []Op) (read int) {
	at := map[Key]int{}
	sets := map[model.Family]map[*Set][]Key{}
	for i, o := range ops {
		if o.Verb != ledger.Replace || o.Key.Kind != KindElement || !counts(o.Old) || !counts(o.New) {
			continue
		}
		if o.Old.To != o.New.To || o.Old.Port != o.New.Port {
			continue // the count is the old endpoint's
		}
		at[o.Key] = i
		if sets[o.Key.Family] == nil {
			sets[o.Key.Family] = map[*Set][]Key{}
		}
		sets[o.Key.Family][o.Key.Set] = append(sets[o.Key.Family][o.Key.Set], o.Key)
	}
	keep := func(k Key, v Value) {
		read++
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
		for _, keys := range of {
			for some := range slices.Chunk(keys, atOnce) {
				d.readSome(ctx, s, some)
			}
		}
	}
	return read
}

// readSome reads those of some elements of one set that exist, one by one if one is missing: the
// kernel's answer to a request for several ends there.
func (d *Driver) readSome(ctx context.Context, s *snapshot, keys []Key) {
	if whole, _ := requestKeys(ctx, d.sock, s, keys); whole {
		return
	}
	for i := range keys {
		if _, err := requestKeys(ctx, d.sock, s, keys[i:i+1]); err != nil {
			return
		}
	}
}

// requestElements reads one element of a set or, with nil, all.
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

// Count enables counters in elements of some sets, at most that many. It is called before any
// other method.
func (d *Driver) Count(most int, sets ...*Set) {
	b := &d.budget
	b.most, b.counts, b.denied = most, map[*Set]bool{}, map[Key]struct{}{}
	for _, s := range sets {
		b.counts[s] = true
	}
}

// Uncounted reports whether elements have no counter for lack of room.
func (d *Driver) Uncounted() bool {
	d.budget.mu.Lock()
	defer d.budget.mu.Unlock()
	return len(d.budget.denied) > 0
}

// asWanted returns found for single elements: those without a counter for lack of room are
// passed on as if they had one.
func (d *Driver) asWanted(found func(Key, Value)) func(Key, Value) {
	if d.budget.most == 0 {
		return found
	}
	return func(k Key, v Value) {
		if !counts(v) && d.budget.lacks(k) {
			v = counted(v)
		}
		found(k, v)
	}
}
