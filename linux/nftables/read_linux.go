package nftables

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
)

// attempts is how often a reading that others disturb is begun anew.
const attempts = 10

// Observe implements dataplane.Driver.
func (d *Driver) Observe(ctx context.Context) (map[Key]Value, error) {
	for range attempts {
		have, err := d.observe(ctx)
		if !errors.Is(err, errInterrupted) {
			return have, err
		}
	}
	return nil, fmt.Errorf("nftables: read our tables: %w, %d times in a row", errInterrupted, attempts)
}

func (d *Driver) observe(ctx context.Context) (map[Key]Value, error) {
	generation, commits, err := d.begin()
	if err != nil {
		return nil, err
	}
	all := map[Key]Value{}
	for _, f := range d.families {
		have, err := d.observeFamily(ctx, f)
		if err != nil {
			return nil, fmt.Errorf("nftables: read our tables: %w", err)
		}
		if len(all) == 0 {
			all = have
			continue
		}
		for k, v := range have {
			all[k] = v
		}
	}
	if all == nil {
		all = map[Key]Value{}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.generation, d.lost = after(generation, d.commits-commits), false
	return all, nil
}

// begin returns the kernel's generation and how many of the transactions that
// led to it are ours, at one moment.
func (d *Driver) begin() (generation, commits uint32, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	generation, err = d.currentGeneration()
	return generation, d.commits, err
}

func (d *Driver) observeFamily(ctx context.Context, f model.Family) (map[Key]Value, error) {
	s, err := d.look(d.reader, f)
	if err != nil || !s.hasTable {
		return nil, err
	}
	family := addressFamily(f)
	table := func(w *writer) { w.str(1, d.table) }
	for _, kind := range []int{msgGetChain, msgGetRule, msgGetSet} {
		if err := d.dump(ctx, kind, family, table, s); err != nil {
			return nil, err
		}
	}
	for id := noSet + 1; id < numSets && !s.damage; id++ {
		if _, ok := s.objects[setKey(f, id.String())]; !ok || id == Affinity { // which clients there are is not ours to know
			continue
		}
		set := func(w *writer) { w.str(1, d.table); w.str(2, id.String()) }
		if err := d.dump(ctx, msgGetSetElem, family, set, s); err != nil {
			return nil, err
		}
	}
	d.noteFull(f, s.full)
	return s.finish(), nil
}

func (d *Driver) noteFull(f model.Family, full bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full[f] = full
}

// Full implements dataplane.Filling.
func (d *Driver) Full() (what []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.families {
		if d.full[f] {
			what = append(what, fmt.Sprintf("affinity of %s clients: %d are remembered, others are served and not remembered", f, affinitySize))
		}
	}
	return what
}

func (d *Driver) dump(ctx context.Context, kind int, family byte, fill func(*writer), s *snapshot) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := d.reader.request(kind, flagDump, family, fill, s.add)
	if errors.Is(err, unix.ENOENT) { // it was there a moment ago
		return errInterrupted
	}
	return err
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
