// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/nft"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// table holds the rules: the nat table of iptables, or our own tables in nftables.
// One goroutine may use it at a time, and others Read and Others.
type table interface {
	// Families are those that it serves.
	Families() []model.Family

	// Reading announces Read, which covers all external changes until then.
	Reading()

	// Read returns the objects of all families.
	Read(context.Context) (map[Key]found, error)

	// Write applies edits of one family, all or none. After some errors it is unknown
	// which.
	Write(context.Context, model.Family, []edit) error

	// Disturbed reports whether there may have been an external change since Reading.
	Disturbed() (bool, error)

	// Most is the largest number of edits of a Write; 0 is no limit.
	Most() int

	// Others is dataplane.Driver's. It is called on a thread of the table's network.
	Others(context.Context) ([]string, error)

	Close() error
}

// natTable is the nat table of iptables, in the variant that this host uses.
type natTable struct {
	commands *xtables.Commands
	watch    *xtables.Watch
}

func openNAT(ctx context.Context) (table, error) {
	runtime.LockOSThread() // commands belong to the namespace of this thread
	defer runtime.UnlockOSThread()
	c, _, err := xtables.Find(ctx)
	if err != nil {
		return nil, err
	}
	w, err := xtables.OpenWatch(c.Variant, c.Families)
	if err != nil {
		return nil, err
	}
	return natTable{c, w}, nil
}

var _ table = natTable{}

func (t natTable) Families() []model.Family { return t.commands.Families }

func (t natTable) Reading() { t.watch.BeforeRead() }

func (t natTable) Disturbed() (bool, error) { return t.watch.Disturbed() }

func (t natTable) Most() int { return 0 }

func (t natTable) Others(ctx context.Context) ([]string, error) {
	return t.commands.Others(ctx, t.commands.Families, func(chain string) bool {
		return chain == chainLast || slices.Contains(ownedChains(), chain)
	})
}

func (t natTable) Close() error { return t.watch.Close() }

func (t natTable) Read(ctx context.Context) (map[Key]found, error) {
	objects := map[Key]found{}
	for _, f := range t.Families() {
		text, err := t.commands.Save(ctx, f, xtables.NAT)
		if err != nil {
			return nil, fmt.Errorf("%s tables: %w", f, err)
		}
		if err := natObjects(f, text, objects); err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
	}
	return objects, nil
}

func (t natTable) Write(ctx context.Context, f model.Family, edits []edit) error {
	b := &batch{}
	for _, e := range withoutImplied(edits) {
		b.edit(e)
	}
	if b.Empty() {
		return nil
	}
	return t.restore(ctx, f, b)
}

// restore runs a transaction and waits for the lock. A lock held for too long is an
// ordinary failure, not ledger.BusyError: without its chains the mode serves nothing.
func (t natTable) restore(ctx context.Context, f model.Family, b *batch) error {
	t.watch.BeforeWrite()
	if err := t.commands.RestoreWait(ctx, f, b.Text(xtables.NAT)); err != nil {
		t.watch.Invalidate()
		return fmt.Errorf("%s tables: %w", f, err)
	}
	t.watch.AfterWrite(1)
	return nil
}

// ownTables are the tables of our own in nftables.
type ownTables struct {
	driver   *nft.Driver
	families []model.Family
	reading  sync.Mutex
}

// openNFT opens the table for the families that the kernel supports, and writes
// nothing.
func openNFT(ctx context.Context) (table, error) {
	var families []model.Family
	for _, f := range model.Families() {
		err := nft.Check(ctx, nftTable, f)
		switch {
		case err == nil:
			families = append(families, f)
		case f == model.IPv4 || !errors.Is(err, dataplane.ErrAbsent):
			return nil, err
		}
	}
	d, err := nft.Open(nftTable, families...)
	if err != nil {
		return nil, err
	}
	return &ownTables{driver: d, families: families}, nil
}

var _ table = (*ownTables)(nil)

func (t *ownTables) Families() []model.Family { return t.families }

// Reading implements table: nft.Driver does it itself.
func (t *ownTables) Reading() {}

func (t *ownTables) Read(ctx context.Context) (map[Key]found, error) {
	t.reading.Lock()
	defer t.reading.Unlock()
	have, err := t.driver.Objects(ctx)
	if err != nil {
		return nil, err
	}
	return nftFound(have), nil
}

func (t *ownTables) Write(ctx context.Context, _ model.Family, edits []edit) error {
	for _, err := range t.driver.Commit(ctx, nftOps(edits)) {
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *ownTables) Disturbed() (bool, error) { return t.driver.Disturbed(context.Background()) }

// Most implements table: half a batch, since a table has sets besides, and redirect
// may rewrite further entries.
func (t *ownTables) Most() int { return t.driver.Limits().Batch / 2 }

func (t *ownTables) Others(ctx context.Context) ([]string, error) {
	t.reading.Lock()
	defer t.reading.Unlock()
	return t.driver.Others(ctx)
}

func (t *ownTables) Close() error { return t.driver.Close() }

// nftOps turns edits of one family into ops on nftables objects. Deleting a table
// deletes its contents.
func nftOps(edits []edit) (ops []ledger.Op[nft.Key, nft.Value]) {
	for _, e := range edits {
		if e.key.Kind == KindTable && e.verb == ledger.Delete {
			k, _ := nftTable.Object(e.key.Family)
			return append(ops[:0], ledger.Op[nft.Key, nft.Value]{Verb: ledger.Delete, Key: k})
		}
		if e.key.Kind == kindUnexpected {
			ops = append(ops, ledger.Op[nft.Key, nft.Value]{Verb: ledger.Delete, Key: e.have.foreign})
			continue
		}
		nftObjects(e.key, e.rules, func(k nft.Key, v nft.Value) {
			ops = append(ops, nftOp(e.verb, k, v))
		})
	}
	return ops
}

// nftOp returns the op on an nftables object. Replacing a table deletes its sets, so
// they are created.
func nftOp(verb ledger.Verb, k nft.Key, v nft.Value) ledger.Op[nft.Key, nft.Value] {
	op := ledger.Op[nft.Key, nft.Value]{Verb: verb, Key: k}
	if k.Kind == nft.KindSet {
		op.Verb = ledger.Create
	}
	if verb != ledger.Create {
		op.Old = v // the hook is the same
	}
	if verb != ledger.Delete {
		op.New = v
	}
	return op
}

// Prune: tables of our own go with their last object.
func (d *Driver) Prune(ctx context.Context) error {
	if t, ok := d.table.(natTable); ok {
		return t.commands.DeleteBare(ctx, t.commands.Families, xtables.NAT)
	}
	return nil
}

func (d *Driver) Others(ctx context.Context) ([]string, error) {
	return d.table.Others(ctx)
}
