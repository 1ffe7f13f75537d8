// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// Objects returns all that Observe finds.
func (d *Driver) Objects(ctx context.Context) (have map[Key]Value, err error) {
	err = dataplane.RetryInterrupted(func() error {
		have = map[Key]Value{}
		return d.Observe(ctx, func(k Key, v Value) { have[k] = v })
	})
	return have, err
}

func (d *Driver) Observe(ctx context.Context, found func(Key, Value)) error {
	generation, commits, err := d.begin(ctx)
	if err != nil {
		return err
	}
	r := reading{found: found, counts: d.budget.counts}
	for _, f := range d.families {
		if err := d.observeFamily(ctx, f, nil, r.add); err != nil {
			return fmt.Errorf("nftables: read owned tables: %w", err)
		}
	}
	d.observed(&r, generation, commits)
	for _, e := range r.without {
		found(e.Key, e.Value)
	}
	return nil
}

// observed notes the end of a reading that began at a generation and a count of own
// transactions.
func (d *Driver) observed(r *reading, generation, commits uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.budget.end(r, d.commits == commits)
	d.generation, d.lost = after(generation, d.commits-commits), false
}

// begin returns the kernel's generation and the count of own transactions at the same
// time.
func (d *Driver) begin(ctx context.Context) (generation, commits uint32, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	generation, err = d.currentGeneration(ctx)
	return generation, d.commits, err
}

// ObserveSome is Observe, except that it reads only those elements with a Single key that are in
// keys. Disturbed still compares with the last Observe.
func (d *Driver) ObserveSome(ctx context.Context, keys []Key, found func(Key, Value)) error {
	if keys == nil {
		keys = []Key{} // nil would read all
	}
	for _, f := range d.families {
		if err := d.observeFamily(ctx, f, keys, d.asWanted(found)); err != nil {
			return fmt.Errorf("nftables: read objects of owned tables: %w", err)
		}
	}
	return nil
}

// observeFamily reads a family's table. If keys is not nil, it reads only those elements with
// a Single key that are in it.
func (d *Driver) observeFamily(ctx context.Context, f model.Family, keys []Key, found func(Key, Value)) error {
	s, err := d.look(ctx, d.readers[0], f, found)
	if err != nil || !s.hasTable {
		return err
	}
	s.many = d.many
	table := func(w *netlink.Writer) { w.Text(attrTable, d.table.Name) }
	for _, kind := range []uint16{msgGetChain, msgGetRule, msgGetSet} {
		if err := d.dump(ctx, d.readers[0], kind, table, s); err != nil {
			return err
		}
	}
	var sets []*Set
	for _, one := range d.table.sets {
		if _, ok := s.objects[SetKey(f, one.Name)]; !ok || one.Unread || s.damage {
			continue
		}
		if keys == nil || !(Key{Kind: KindElement, Set: one}).Single() {
			sets = append(sets, one)
		}
	}
	if err := d.readSets(ctx, s, sets); err != nil {
		return err
	}
	for _, k := range keys {
		if k.Family != f || !k.Single() || s.damage {
			continue
		}
		if err := cmp.Or(ctx.Err(), d.requestElements(ctx, d.readers[0], s, k.Set, &k)); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	s.finish()
	return nil
}

// Filled calls found for the elements that rules have added to a set of addresses. If the set
// does not exist, there are none.
func (d *Driver) Filled(ctx context.Context, f model.Family, set *Set, found func(netip.Addr)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := request(ctx, d.sock, msgGetSetElem, netlink.FlagDump, netlink.FamilyOf(f), d.table.part(attrElementsSet, set.Name), func(m netlink.Message) error {
		for kind, list := range m.Attrs() {
			if kind != attrElementsList {
				continue
			}
			for _, elem := range netlink.Attrs(list) {
				if e := parseElement(elem); len(e.key) == addressLen(f) {
					found(addressOf(e.key))
				}
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("nftables: read set %s: %w", set, err)
	}
	return nil
}

// ReadSet calls found for the elements of a set that the driver fills. It uses the socket of
// Commit, and waits for it.
func (d *Driver) ReadSet(ctx context.Context, f model.Family, set *Set, found func(Key, Value)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.readSet(ctx, d.sock, newSnapshot(d.table, f, found), set)
}

// part fills a request about a part of the table; attr is the attribute for its name.
func (t *Table) part(attr uint16, name string) func(*netlink.Writer) {
	return func(w *netlink.Writer) {
		w.Text(attrTable, t.Name)
		w.Text(attr, name)
	}
}

func (d *Driver) dump(ctx context.Context, sock *netlink.Socket, kind uint16, fill func(*netlink.Writer), s *snapshot) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := request(ctx, sock, kind, netlink.FlagDump, netlink.FamilyOf(s.family), fill, s.add)
	if errors.Is(err, unix.ENOENT) { // it existed a moment ago
		return dataplane.ErrInterrupted
	}
	return err
}

// Get uses the socket of Commit, since it may be called during Observe. Transactions may come
// between the objects that it reads.
func (d *Driver) Get(ctx context.Context, keys []Key, found func(Key, Value)) error {
	asked := make(map[Key]bool, len(keys))
	for _, k := range keys {
		asked[k] = true
	}
	for _, f := range d.families {
		if err := d.getFamily(ctx, f, keys, d.asWanted(func(k Key, v Value) {
			if asked[k] {
				found(k, v)
			}
		})); err != nil {
			return fmt.Errorf("nftables: read %d objects: %w", len(keys), err)
		}
	}
	return nil
}

func (d *Driver) getFamily(ctx context.Context, f model.Family, keys []Key, found func(Key, Value)) error {
	s, err := d.lookInto(ctx, f, found)
	if err != nil || !s.hasTable {
		return err
	}
	read := map[*Set]bool{} // sets read as a whole
	for _, k := range keys {
		if err := ctx.Err(); err != nil {
			return err
		}
		if k.Family != f || k.whole() && read[k.Set] || s.damage {
			continue
		}
		read[k.Set] = read[k.Set] || k.whole()
		if err := d.getOne(ctx, k, s); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	s.finish()
	return nil
}

// lookInto reads the table and the definitions of its sets, which show whether the table is
// damaged.
func (d *Driver) lookInto(ctx context.Context, f model.Family, found func(Key, Value)) (*snapshot, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, err := d.look(ctx, d.sock, f, found)
	if err != nil || !s.hasTable {
		return s, err
	}
	return s, request(ctx, d.sock, msgGetSet, netlink.FlagDump, netlink.FamilyOf(f), func(w *netlink.Writer) { w.Text(attrTable, d.table.Name) }, s.add)
}

// whole reports whether an object cannot be read by its key alone.
func (k Key) whole() bool { return k.Kind == KindForeign || k.Kind == KindElement && k.Set.ranges() }

// getOne reads the object of a key into a snapshot; ENOENT means that it does not exist.
func (d *Driver) getOne(ctx context.Context, k Key, s *snapshot) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	family := netlink.FamilyOf(k.Family)
	switch {
	case k.Kind == KindChain:
		if err := request(ctx, d.sock, msgGetChain, 0, family, d.table.part(attrChainName, k.Name()), s.add); err != nil {
			return err
		}
		return request(ctx, d.sock, msgGetRule, netlink.FlagDump, family, d.table.part(attrRuleChain, k.Name()), s.add)
	case k.whole():
		return d.requestElements(ctx, d.sock, s, k.Set, nil)
	case k.Kind == KindElement:
		return d.requestElements(ctx, d.sock, s, k.Set, &k)
	}
	return nil // the table and its sets are read already
}

// Disturbed is also true after other programs' transactions on their own tables: the
// kernel counts those of all tables in the namespace.
func (d *Driver) Disturbed(ctx context.Context) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lost {
		return true, nil
	}
	generation, err := d.currentGeneration(ctx)
	return generation != d.generation, err
}

func (d *Driver) currentGeneration(ctx context.Context) (generation uint32, err error) {
	err = request(ctx, d.sock, msgGetGen, 0, 0, nil, func(m netlink.Message) error {
		for kind, v := range m.Attrs() {
			if kind == unix.NFTA_GEN_ID {
				generation = netlink.Uint32(v)
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("nftables: read the generation: %w", err)
	}
	return generation, nil
}

// Sets are read over several sockets at once, since the kernel takes most of the time: it
// reads them without a lock (NFNL_CB_RCU), one per socket.

// readSets reads the elements of sets.
func (d *Driver) readSets(ctx context.Context, s *snapshot, sets []*Set) error {
	var last []*Set // very large ones, whose keys follow from elements of the others
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
	return d.dump(ctx, sock, msgGetSetElem, d.table.part(attrElementsSet, set.Name), s)
}

// foundAtOnce is the number of elements that are passed on together.
const foundAtOnce = 256

// together calls read concurrently for each of the readers, with a part of a snapshot, and
// waits for all. One at a time passes on its elements.
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

// The kernel returns a set in parts of 32 KB, and for each skips all elements that it returned
// before (nf_tables_dump_set): 250,000 elements take 46 million steps.
// Reading an element by its key takes the same time in any set, which from manyElements on is
// less in total. The kernel's count of elements, which it reports since Linux 6.17, shows that none
// was missed. Without the count, or if it differs, the set is
// read in parts.

const (
	manyElements = 100_000
	atOnce       = 64 // elements per request: the answers fit into any socket's buffer
)

// SetMany sets the number of elements from which on a set is read by its keys, instead of
// manyElements. It is called before the first Observe.
func (d *Driver) SetMany(n int) { d.many = n - 1 }

// ReadByKeys returns the number of sets that were read by their keys.
func (d *Driver) ReadByKeys() int { return int(d.byKeys.Load()) }

// readNumbered reads by their keys the elements of a set that those read so far lead to, and
// reports whether these are all. Elements that nothing leads to can be missed, if as many were
// deleted meanwhile; no packet finds them, and the next reading does.
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
	err = request(ctx, d.readers[0], msgGetSet, 0, netlink.FamilyOf(s.family), d.table.part(attrSetName, set.Name), now.add)
	if errors.Is(err, unix.ENOENT) { // it existed a moment ago
		return false, nil
	}
	if whole = err == nil && now.counts[set] == total; whole {
		d.byKeys.Add(1)
	}
	return whole, err
}

// numberedKeys holds the keys that are still to be read. It is safe for concurrent use.
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

// stop drops the remaining keys.
func (q *numberedKeys) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.all, q.stopped = nil, true
}

// distinct drops duplicates: several elements, such as those of one frontend for several
// origins, lead to the same ones.
func distinct(all []numbered) []numbered {
	slices.SortFunc(all, func(a, b numbered) int {
		return cmp.Or(bytes.Compare(a.key.Addr[:], b.key.Addr[:]), cmp.Compare(a.key.Port, b.key.Port), cmp.Compare(a.key.Proto, b.key.Proto),
			cmp.Compare(a.key.Slot, b.key.Slot), cmp.Compare(b.n, a.n)) // the most elements first
	})
	return slices.CompactFunc(all, func(a, b numbered) bool { return a.key == b.key })
}

// requestKeys reads elements of one set by their keys, and reports whether all exist.
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
