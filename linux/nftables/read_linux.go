package nftables

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
)

// attempts is how often a reading that others disturb is begun anew.
const attempts = 10

// Objects returns all that Observe tells.
func (d *Driver) Objects(ctx context.Context) (have map[Key]Value, err error) {
	for range attempts {
		have = map[Key]Value{}
		err = d.Observe(ctx, func(k Key, v Value) { have[k] = v })
		if !errors.Is(err, dataplane.ErrInterrupted) {
			break
		}
	}
	return have, err
}

// Observe implements dataplane.Driver.
func (d *Driver) Observe(ctx context.Context, found func(Key, Value)) error {
	generation, commits, err := d.begin()
	if err != nil {
		return err
	}
	for _, f := range d.families {
		if err := d.observeFamily(ctx, f, found); err != nil {
			return fmt.Errorf("nftables: read our tables: %w", err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.generation, d.lost = after(generation, d.commits-commits), false
	return nil
}

// begin returns the kernel's generation and how many of the transactions that
// led to it are ours, at one moment.
func (d *Driver) begin() (generation, commits uint32, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	generation, err = d.currentGeneration()
	return generation, d.commits, err
}

func (d *Driver) observeFamily(ctx context.Context, f model.Family, found func(Key, Value)) error {
	s, err := d.look(d.reader, f, found)
	if err != nil || !s.hasTable {
		return err
	}
	family := addressFamily(f)
	table := func(w *writer) { w.str(1, d.table) }
	for _, kind := range []int{msgGetChain, msgGetRule, msgGetSet} {
		if err := d.dump(ctx, kind, family, table, s); err != nil {
			return err
		}
	}
	for id := noSet + 1; id < numSets && !s.damage; id++ {
		if _, ok := s.objects[setKey(f, id.String())]; !ok || id == Affinity { // which clients there are is not ours to know
			continue
		}
		set := func(w *writer) { w.str(1, d.table); w.str(2, id.String()) }
		if err := d.dump(ctx, msgGetSetElem, family, set, s); err != nil {
			return err
		}
	}
	s.finish()
	d.noteFull(f, s.full)
	return nil
}

func (d *Driver) noteFull(f model.Family, full bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full[f] = full
}

// Full implements dataplane.Filling.
func (d *Driver) Full() (full []model.Problem) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.families {
		if d.full[f] {
			detail := fmt.Sprintf("affinity of %s clients: %d are remembered, others are served and not remembered", f, affinitySize)
			full = append(full, model.Problem{Object: "data plane", Why: model.WhyFull, Detail: detail})
		}
	}
	return full
}

func (d *Driver) dump(ctx context.Context, kind int, family byte, fill func(*writer), s *snapshot) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := d.reader.request(kind, flagDump, family, fill, s.add)
	if errors.Is(err, unix.ENOENT) { // it was there a moment ago
		return dataplane.ErrInterrupted
	}
	return err
}

// Get implements dataplane.Getter: over the socket of Commit, as it may come
// while Observe has the other one. Each object is read between two transactions.
func (d *Driver) Get(ctx context.Context, keys []Key, found func(Key, Value)) error {
	asked := make(map[Key]bool, len(keys))
	for _, k := range keys {
		asked[k] = true
	}
	for _, f := range d.families {
		if err := d.getFamily(ctx, f, keys, func(k Key, v Value) {
			if asked[k] {
				found(k, v)
			}
		}); err != nil {
			return fmt.Errorf("nftables: look at %d objects: %w", len(keys), err)
		}
	}
	return nil
}

func (d *Driver) getFamily(ctx context.Context, f model.Family, keys []Key, found func(Key, Value)) error {
	s, err := d.lookInto(f, found)
	if err != nil || !s.hasTable {
		return err
	}
	var read [numSets]bool // sets that were read as a whole
	for _, k := range keys {
		if err := ctx.Err(); err != nil {
			return err
		}
		if k.Family != f || k.whole() && read[k.Set] || s.damage {
			continue
		}
		read[k.Set] = read[k.Set] || k.whole()
		if err := d.getOne(k, s); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	s.finish()
	return nil
}

// lookInto reads what tells whether a table is damaged: itself, and its sets.
func (d *Driver) lookInto(f model.Family, found func(Key, Value)) (*snapshot, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, err := d.look(d.sock, f, found)
	if err != nil || !s.hasTable {
		return s, err
	}
	return s, d.sock.request(msgGetSet, flagDump, addressFamily(f), func(w *writer) { w.str(1, d.table) }, s.add)
}

// whole says that the kernel does not tell an object by its key alone.
func (k Key) whole() bool { return k.Kind == KindAlien || k.Kind == KindElement && k.Set.ranges() }

// getOne reads the object of a key into a snapshot; ENOENT says that there is
// none.
func (d *Driver) getOne(k Key, s *snapshot) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	family := addressFamily(k.Family)
	in := func(name string) func(*writer) {
		return func(w *writer) { w.str(1, d.table); w.str(2, name) }
	}
	switch {
	case k.Kind == KindChain:
		chain := func(w *writer) { w.str(1, d.table); w.str(3, k.Rest) }
		if err := d.sock.request(msgGetChain, 0, family, chain, s.add); err != nil {
			return err
		}
		return d.sock.request(msgGetRule, flagDump, family, in(k.Rest), s.add)
	case k.whole():
		return d.sock.request(msgGetSetElem, flagDump, family, in(k.Set.String()), s.add)
	case k.Kind == KindElement:
		return d.sock.request(msgGetSetElem, 0, family, func(w *writer) {
			in(k.Set.String())(w)
			at := w.open(3)
			w.element(k, Value{}, false)
			w.close(at)
		}, s.add)
	}
	return nil // the table and its sets are read already
}

// Disturbed implements dataplane.Sentinel. The kernel counts transactions of
// all tables of the namespace, so others' changes to their own tables are seen,
// too.
func (d *Driver) Disturbed(context.Context) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lost {
		return true, nil
	}
	generation, err := d.currentGeneration()
	return generation != d.generation, err
}

func (d *Driver) currentGeneration() (generation uint32, err error) {
	err = d.sock.request(msgGetGen, 0, 0, nil, func(m message) {
		for kind, v := range m.attrs() {
			if kind == 1 {
				generation = number(v)
			}
		}
	})
	if err != nil {
		return 0, fmt.Errorf("nftables: read the generation: %w", err)
	}
	return generation, nil
}
