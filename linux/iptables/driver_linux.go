// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Driver applies objects to the kernel (dataplane.Driver) by
// iptables-restore: one transaction per changed table and family. One goroutine may
// use it at a time, except Observe, which any thread may call.
type Driver struct {
	dataplane.SimpleDriver[Key, Value]
	tables  *xtables.Driver
	liberal *host.Liberal // nil unless Options.Liberal

	mu     sync.Mutex
	shared sharedChains
	counts ruleCounts

	committed map[chainID]bool // shared chains written since a running Observe began; nil if none runs
}

var (
	_ dataplane.Driver[Key, Value]   = (*Driver)(nil)
	_ dataplane.Compiler[Key, Value] = (*Compiler)(nil)
)

// open returns a driver for the network namespace of the calling thread, with
// the commands of a variant. The rules of the legacy variant are read again every
// syncPeriod, 0 for never. Close it after use; programmed objects stay.
func open(t xtables.Tools, families []model.Family, syncPeriod time.Duration) (*Driver, error) {
	d, err := xtables.Open(t, families, tables()...)
	if err != nil {
		return nil, err
	}
	d.Watch.Poll.Every = syncPeriod
	return &Driver{tables: d, shared: sharedChains{}}, nil
}

func (d *Driver) Close() error { return errors.Join(d.tables.Close(), d.liberal.Close()) }

func (d *Driver) Problems() []model.Problem { return d.liberal.Lost() }

// Limits: each table of each family is written as a whole or not at all. If one fails after
// another was written, ops can be repeated, also in parts: chains are always written whole.
//
// The legacy variant copies a table for each transaction, so all ops go into one. The
// time of the nft variant grows faster than the number of rules, so they are limited.
func (d *Driver) Limits() dataplane.Limits {
	l := dataplane.Limits{Atomic: true}
	if d.tables.Tools.Variant == xtables.NFT {
		l.Batch = maxOpsNFT
	}
	return l
}

// maxOpsNFT is the largest number of ops in one Commit of the nft variant.
const maxOpsNFT = 20000

func (d *Driver) Commit(ctx context.Context, ops []op) []error {
	if err := ctx.Err(); err != nil {
		return slices.Repeat([]error{err}, len(ops))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tables.Watch.BeforeWrite()
	errs := make([]error, len(ops))
	var err error
	done, failed, locked := 0, 0, false
	for _, f := range model.Families() {
		for _, t := range tables() {
			part, places := opsOf(ops, f, t)
			if len(part) == 0 {
				continue
			}
			if !locked {
				err = d.commit(ctx, f, t, part)
			}
			_, locked = errors.AsType[ledger.BusyError](err) // the lock covers all tables
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
	d.tables.Watch.AfterWrite(done)
	if failed > 0 && (done > 0 || !locked) {
		// The recorded state may differ from the kernel's: by an external change, or
		// by ops reported as failed that were written.
		d.tables.Watch.Invalidate()
	}
	return errs
}

// opsOf returns the ops of one table, and their indices.
func opsOf(ops []op, f model.Family, t xtables.Table) (part []op, places []int) {
	for i, o := range ops {
		if o.Key.Family == f && o.Key.Table == t {
			part, places = append(part, o), append(places, i)
		}
	}
	return part, places
}

// commit writes one table.
func (d *Driver) commit(ctx context.Context, f model.Family, t xtables.Table, ops []op) error {
	s, shared := d.shared.apply(ops)
	if err := d.tables.Restore(ctx, f, s.Text(t)); err != nil {
		return fmt.Errorf("iptables: %s table %s: %w", f, t, err)
	}
	d.shared.update(shared)
	d.counts.add(f, t, ops, s.Written())
	if d.committed != nil {
		for id := range shared {
			d.committed[id] = true
		}
	}
	return nil
}

func (d *Driver) Observe(ctx context.Context, found func(Key, Value)) error {
	d.mu.Lock()
	d.committed = map[chainID]bool{}
	d.mu.Unlock()
	objects, shared, err := d.read(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	defer func() { d.committed = nil }()
	if err != nil {
		return fmt.Errorf("iptables: read back: %w", err)
	}
	if len(d.committed) == 0 {
		d.counts.reset(objects)
	}
	for id := range d.committed { // written meanwhile: newer than what was read
		delete(shared, id)
		if es, ok := d.shared[id]; ok {
			shared[id] = es
		}
	}
	d.shared = shared
	for k, v := range objects {
		found(k, v)
	}
	return nil
}

func (d *Driver) read(ctx context.Context) (objects map[Key]Value, shared sharedChains, err error) {
	objects, shared = map[Key]Value{}, sharedChains{}
	err = d.tables.Read(ctx, func(f model.Family, text string) error {
		r, err := read(f, text)
		if err == nil {
			maps.Copy(objects, r.objects)
			maps.Copy(shared, r.chains)
		}
		return err
	})
	return objects, shared, err
}

func (d *Driver) Prune(ctx context.Context) error { return d.tables.Prune(ctx) }

// rules returns the number of rules in each table, and of those written since the last call.
func (d *Driver) rules() (counts []dataplane.Rules) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.tables.Families {
		for _, t := range tables() {
			counts = append(counts, dataplane.Rules{Table: t.String(), Family: f, Total: d.counts.total[f][t], Written: d.counts.written[f][t]})
		}
	}
	d.counts.written = [2][2]int{}
	return counts
}

// packets returns how many packets a rule has matched. It is safe for concurrent
// use, also with Close.
func (d *Driver) packets(ctx context.Context, id chainID, r xtables.Rule) (n uint64, err error) {
	err = d.tables.Namespace.Do(func() (err error) {
		n, err = d.tables.Tools.Packets(ctx, id, r)
		return err
	})
	return n, err
}

func (d *Driver) Disturbed(ctx context.Context) (bool, error) { return d.tables.Disturbed(ctx) }

func (d *Driver) Others(ctx context.Context) ([]string, error) {
	return d.tables.Others(ctx, func(chain string) bool { return strings.HasPrefix(chain, "KUBE-") })
}

// ruleCounts are numbers of rules, by family and table.
type ruleCounts struct{ total, written [2][2]int }

// add counts ops, and the rules that their script writes.
func (t *ruleCounts) add(f model.Family, table xtables.Table, ops []op, rules int) {
	for _, o := range ops {
		t.total[f][table] -= o.Old.Len()
		if o.Verb != ledger.Delete {
			t.total[f][table] += o.New.Len()
		}
	}
	t.written[f][table] += rules
}

// reset counts the rules of objects that were read back.
func (t *ruleCounts) reset(objects map[Key]Value) {
	t.total = [2][2]int{}
	for k, v := range objects {
		t.total[k.Family][k.Table] += v.Len()
	}
}

// Connections reads the rules' counters in the nat table, which only first packets of
// connections traverse. The counters of a rewritten chain begin at 0.
func (b *backend) Connections(ctx context.Context, endpoints bool, found func(dataplane.Connections)) (counted bool, err error) {
	if endpoints {
		return false, nil
	}
	for _, f := range b.driver.tables.Families {
		err := b.driver.tables.Tools.Counts(ctx, f, xtables.NAT, func(chain string, r xtables.Line, packets uint64) {
			if at, proto, ok := dispatches(f, chain, r); ok {
				found(dataplane.Connections{Proto: proto, At: at, New: packets})
			}
		})
		if err != nil {
			return true, err
		}
	}
	return true, nil
}
