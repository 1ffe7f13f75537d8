package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Driver applies objects to the kernel (dataplane.Driver and
// dataplane.Sentinel) by iptables-restore: one transaction for each table of
// each family that changes. One goroutine may use it at a time, but for Observe,
// from any thread.
type Driver struct {
	tools    xtables.Tools
	families []model.Family
	ns       *host.Namespace
	timid    bool // never makes a table, not even by reading it
	watch    *xtables.Watch

	mu    sync.Mutex
	book  book
	tally tally

	localnet localnetSwitch
	written  map[chainID]bool // since the Observe that is under way began; nil when none is
}

var (
	_ dataplane.Driver[Key, Value]   = (*Driver)(nil)
	_ dataplane.Sentinel             = (*Driver)(nil)
	_ dataplane.Compiler[Key, Value] = (*Compiler)(nil)
)

// Open returns a driver for the network namespace that the calling thread is
// in, with the commands of a variant. The rules of the legacy variant are read
// again every now and then, 0 for never. Close it after use; what it has
// programmed stays.
func open(t xtables.Tools, families []model.Family, again time.Duration) (*Driver, error) {
	ns, err := host.Here()
	if err != nil {
		return nil, err
	}
	w, err := xtables.OpenWatch(t.Variant, families)
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	w.Again = again
	return &Driver{tools: t, families: families, ns: ns, watch: w, book: book{}}, nil
}

// Close implements dataplane.Driver.
func (d *Driver) Close() error { return errors.Join(d.watch.Close(), d.ns.Close()) }

// Limits implements dataplane.Driver. Each table of each family is written as a
// whole or not at all. When one fails and another was written, to do the same
// again, in parts, does no harm: chains are written whole.
//
// The legacy variant copies a table for each transaction: all goes into one. The
// nft variant takes a time that grows faster than the number of rules.
func (d *Driver) Limits() dataplane.Limits {
	l := dataplane.Limits{Atomic: true}
	if d.tools.Variant == xtables.NFT {
		l.Batch = maxOpsNFT
	}
	return l
}

const maxOpsNFT = 20000

// Commit implements dataplane.Driver.
func (d *Driver) Commit(ctx context.Context, ops []op) []error {
	errs := make([]error, len(ops))
	if err := ctx.Err(); err != nil {
		return all(errs, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.watch.BeforeWrite()
	var err error
	done, failed, locked := 0, 0, false
	for _, f := range model.Families() {
		for _, t := range tables() {
			part, places := pick(ops, f, t)
			if len(part) == 0 {
				continue
			}
			if !locked {
				err = d.commit(ctx, f, t, part)
			}
			locked = busy(err) // and will be for the other tables
			if err == nil {
				done++
			} else {
				failed++
			}
			for _, i := range places {
				errs[i] = err
			}
		}
	}
	d.watch.AfterWrite(done)
	if failed > 0 && (done > 0 || !locked) {
		// The books may not be what the kernel has: somebody else may have been at
		// it, or a part is written that its owner is told has failed.
		d.watch.Suspect()
	}
	return errs
}

func busy(err error) bool {
	var b ledger.ErrBusy
	return errors.As(err, &b)
}

func all(errs []error, err error) []error {
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// pick returns the ops of one table, and where they were.
func pick(ops []op, f model.Family, t xtables.Table) (part []op, places []int) {
	for i, o := range ops {
		if o.Key.Family == f && o.Key.Table == t {
			part, places = append(part, o), append(places, i)
		}
	}
	return part, places
}

// commit writes one table.
func (d *Driver) commit(ctx context.Context, f model.Family, t xtables.Table, ops []op) error {
	var s xtables.Script
	var pages book
	err := d.ns.Do(func() error {
		ops, err := d.localnet.before(ops)
		if err != nil {
			return err
		}
		s, pages = d.book.apply(ops)
		if err := d.tools.Restore(ctx, f, s.Text(t)); err != nil {
			return err
		}
		return d.localnet.after(ops)
	})
	if err != nil {
		return fmt.Errorf("iptables: %s table %s: %w", f, t, err)
	}
	d.book.keep(pages)
	d.tally.wrote(f, t, ops, s.Written())
	if d.written != nil {
		for id := range pages {
			d.written[id] = true
		}
	}
	return nil
}

// Observe implements dataplane.Driver.
func (d *Driver) Observe(ctx context.Context, found func(Key, Value)) error {
	have, err := d.observe(ctx)
	for k, v := range have {
		found(k, v)
	}
	return err
}

func (d *Driver) observe(ctx context.Context) (map[Key]Value, error) {
	d.mu.Lock()
	d.written = map[chainID]bool{}
	d.watch.BeforeRead()
	d.mu.Unlock()
	objects, pages, err := d.read(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	defer func() { d.written = nil }()
	if err != nil {
		return nil, fmt.Errorf("iptables: read the rules: %w", err)
	}
	if len(d.written) == 0 {
		d.tally.read(objects)
	}
	for id := range d.written { // what was written meanwhile is known better
		delete(pages, id)
		if es, ok := d.book[id]; ok {
			pages[id] = es
		}
	}
	d.book = pages
	d.localnet.adopt(pages)
	d.watch.AfterRead()
	return objects, nil
}

func (d *Driver) read(ctx context.Context) (objects map[Key]Value, pages book, err error) {
	objects, pages = map[Key]Value{}, book{}
	for _, f := range d.families {
		var text string
		err := d.ns.Do(func() (err error) {
			all := tables()
			which := all[:]
			if d.timid {
				which = d.tools.Present(f, which...)
			}
			text, err = d.tools.Save(ctx, f, which...)
			return err
		})
		if err != nil {
			return nil, nil, err
		}
		r, err := read(f, text)
		if err != nil {
			return nil, nil, err
		}
		maps.Copy(objects, r.objects)
		maps.Copy(pages, r.book)
	}
	return objects, pages, nil
}

// Rules is what dataplane.RuleCounter tells.
func (d *Driver) Rules(tell func(table string, f model.Family, total, written int)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.families {
		for _, t := range tables() {
			tell(t.String(), f, d.tally.total[f][t], d.tally.written[f][t])
		}
	}
	d.tally.written = [2][2]int{}
}

// Disturbed implements dataplane.Sentinel.
func (d *Driver) Disturbed(context.Context) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.watch.Disturbed()
}
