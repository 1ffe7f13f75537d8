// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tandem-proxy/tandem/linux/netlink"
)

// Large sets are read over several sockets at a time, as the kernel takes most of the time:
// it reads sets without a lock (NFNL_CB_RCU), one for each socket.

// readSets reads the elements of sets.
func (d *Driver) readSets(ctx context.Context, s *snapshot, sets []*Set) error {
	var last []*Set // those whose keys others lead to
	sets = slices.DeleteFunc(sets, func(set *Set) bool {
		follows := s.counts[set] > s.many && slices.Contains(set.Key, Number)
		if follows {
			last = append(last, set)
		}
		return follows
	})
	var next atomic.Int64
	err := d.together(s, func(sock *netlink.Socket, part *snapshot) error {
		for {
			i := int(next.Add(1)) - 1
			if i >= len(sets) {
				return nil
			}
			if err := d.readSet(ctx, sock, part, sets[i]); err != nil {
				return err
			}
		}
	})
	if err != nil {
		return err
	}
	for _, set := range last {
		whole, err := d.readNumbered(ctx, s, set)
		if err == nil && !whole {
			err = d.readSet(ctx, d.readers[0], s, set)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readSet reads the elements of a set in the kernel's own order.
func (d *Driver) readSet(ctx context.Context, sock *netlink.Socket, s *snapshot, set *Set) error {
	return d.dump(ctx, sock, msgGetSetElem, func(w *netlink.Writer) {
		w.Text(attrTable, d.table.Name)
		w.Text(attrElementsSet, set.Name)
	}, s)
}

// foundAtOnce is how many elements are passed on together.
const foundAtOnce = 256

// together calls read for each of the readers, at the same time, with a part of a snapshot,
// and waits until all have returned. What they find is passed on by one of them at a time.
func (d *Driver) together(s *snapshot, read func(*netlink.Socket, *snapshot) error) error {
	var (
		reading sync.WaitGroup
		mu      sync.Mutex // held while elements are passed on
		parts   [len(d.readers)]*snapshot
		errs    [len(d.readers)]error
	)
	for i, sock := range d.readers {
		batch := make([]element, 0, foundAtOnce)
		pass := func() {
			mu.Lock()
			defer mu.Unlock()
			for j := range batch {
				s.found(batch[j].Key, batch[j].Value)
			}
			batch = batch[:0]
		}
		parts[i] = s.part(func(k Key, v Value) {
			if batch = append(batch, element{k, v}); len(batch) == cap(batch) {
				pass()
			}
		})
		reading.Go(func() {
			defer pass()
			errs[i] = read(sock, parts[i])
		})
	}
	reading.Wait()
	for _, p := range parts {
		s.join(p)
	}
	return errors.Join(errs[:]...)
}
