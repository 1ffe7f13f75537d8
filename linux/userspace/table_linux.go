// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"errors"
	"runtime"
	"slices"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/nft"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// table holds the rules: the nat table of iptables, or Tandem's tables in nftables.
// One goroutine may use it at a time, and another one Read or Others.
type table interface {
	// Served are the families that the table serves.
	Served() []model.Family

	// Read returns the objects of all families. It covers all external changes until it begins.
	Read(context.Context) (map[Key]found, error)

	// Edit applies edits of one family, all or none. After some errors it is unknown
	// whether they were applied.
	Edit(context.Context, model.Family, []edit) error

	// MaxEdits is the largest number of edits at once; 0 is no limit.
	MaxEdits() int

	// These are dataplane.Driver's. Disturbed reports changes since Read.
	Disturbed(context.Context) (bool, error)
	Others(context.Context) ([]string, error)
	Prune(context.Context) error
	Close() error
}

var (
	_ table = natTable{}
	_ table = ownTables{}
)

// natTable is the nat table of iptables, in the variant that this host uses.
type natTable struct {
	*xtables.Driver
	commands *xtables.Commands
}

func openNAT(ctx context.Context) (table, error) {
	runtime.LockOSThread() // commands belong to the namespace of this thread
	defer runtime.UnlockOSThread()
	c, _, err := xtables.Find(ctx)
	if err != nil {
		return nil, err
	}
	d, err := xtables.Open(c.Tools, c.Families, xtables.NAT)
	return natTable{d, c}, err
}

func (t natTable) Served() []model.Family { return t.Families }

func (t natTable) MaxEdits() int { return 0 }

func (t natTable) Others(ctx context.Context) ([]string, error) {
	return t.Driver.Others(ctx, func(chain string) bool { return slices.Contains(ownedChains(), chain) })
}

func (t natTable) Read(ctx context.Context) (map[Key]found, error) {
	objects := map[Key]found{}
	err := t.Driver.Read(ctx, func(f model.Family, text string) error { return natObjects(f, text, objects) })
	return objects, err
}

// Edit waits for the xtables lock: without its chains the mode serves nothing.
func (t natTable) Edit(ctx context.Context, f model.Family, edits []edit) error {
	b := &batch{}
	for _, e := range withoutImplied(edits) {
		b.edit(e)
	}
	if b.Empty() {
		return nil
	}
	return t.Write(ctx, f, b.Text(xtables.NAT))
}

// ownTables are Tandem's tables in nftables.
type ownTables struct {
	*nft.Driver
	families []model.Family
}

// openNFT opens the tables of the families that the kernel supports, and writes nothing.
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
	return ownTables{d, families}, err
}

func (t ownTables) Served() []model.Family { return t.families }

func (t ownTables) Read(ctx context.Context) (map[Key]found, error) {
	have, err := t.Objects(ctx)
	if err != nil {
		return nil, err
	}
	return nftFound(have), nil
}

func (t ownTables) Edit(ctx context.Context, _ model.Family, edits []edit) error {
	for _, err := range t.Commit(ctx, nftOps(edits)) {
		if err != nil {
			return err
		}
	}
	return nil
}

// MaxEdits is half a batch: the edit of a table also creates its sets, and redirect may rewrite
// more entries.
func (t ownTables) MaxEdits() int { return t.Limits().Batch / 2 }

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
