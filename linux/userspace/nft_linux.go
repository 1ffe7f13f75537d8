// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"errors"
	"sync"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// ownTables are the tables of our own in nftables.
type ownTables struct {
	driver   *nft.Driver
	families []model.Family
	reading  sync.Mutex
}

// openNFT finds out which families the kernel has, and writes nothing.
func openNFT(context.Context) (table, error) {
	var families []model.Family
	for _, f := range model.Families() {
		err := nft.Check(nftTable, f)
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

// Families implements table.
func (t *ownTables) Families() []model.Family { return t.families }

// Reading implements table: the driver sees to it.
func (t *ownTables) Reading() {}

// Read implements table.
func (t *ownTables) Read(ctx context.Context) (map[Key]found, error) {
	t.reading.Lock()
	defer t.reading.Unlock()
	have, err := t.driver.Objects(ctx)
	if err != nil {
		return nil, err
	}
	return nftFound(have), nil
}

// Write implements table.
func (t *ownTables) Write(ctx context.Context, _ model.Family, edits []edit) error {
	for _, err := range t.driver.Commit(ctx, nftOps(edits)) {
		if err != nil {
			return err
		}
	}
	return nil
}

// Disturbed implements table.
func (t *ownTables) Disturbed() (bool, error) { return t.driver.Disturbed(context.Background()) }

// Most implements table. A table comes with its sets, and entries of an earlier
// run may have to be rewritten with others.
func (t *ownTables) Most() int { return t.driver.Limits().Batch / 2 }

// Close implements table.
func (t *ownTables) Close() error { return t.driver.Close() }

// nftOps returns changes of one family as those of nftables' objects. A table that
// goes takes with it what is in it.
func nftOps(edits []edit) (ops []ledger.Op[nft.Key, nft.Value]) {
	for _, e := range edits {
		if e.key.Kind == KindTable && e.verb == ledger.Delete {
			k, _ := nftTable.Object(e.key.Family)
			return append(ops[:0], ledger.Op[nft.Key, nft.Value]{Verb: ledger.Delete, Key: k})
		}
		if e.key.Kind == KindUnexpected {
			ops = append(ops, ledger.Op[nft.Key, nft.Value]{Verb: ledger.Delete, Key: e.have.foreign})
			continue
		}
		nftObjects(e.key, e.rules, func(k nft.Key, v nft.Value) {
			ops = append(ops, nftOp(e.verb, k, v))
		})
	}
	return ops
}

// nftOp returns a change of an object. With a table that is replaced its sets go,
// so they are created.
func nftOp(verb ledger.Verb, k nft.Key, v nft.Value) ledger.Op[nft.Key, nft.Value] {
	op := ledger.Op[nft.Key, nft.Value]{Verb: verb, Key: k}
	if k.Kind == nft.KindSet {
		op.Verb = ledger.Create
	}
	if verb != ledger.Create {
		op.Old = v // in place: what tells a chain's hook
	}
	if verb != ledger.Delete {
		op.New = v
	}
	return op
}
