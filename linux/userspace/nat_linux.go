// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"fmt"
	"runtime"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

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

// Families implements table.
func (t natTable) Families() []model.Family { return t.commands.Families }

// Reading implements table.
func (t natTable) Reading() { t.watch.BeforeRead() }

// Disturbed implements table.
func (t natTable) Disturbed() (bool, error) { return t.watch.Disturbed() }

// Most implements table.
func (t natTable) Most() int { return 0 }

// Close implements table.
func (t natTable) Close() error { return t.watch.Close() }

// Read implements table.
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

// Write implements table.
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

// restore runs a transaction. Others may hold the lock for a while; that they still
// do is a failure like others, and never busy: without its chains a mode serves
// nothing.
func (t natTable) restore(ctx context.Context, f model.Family, b *batch) error {
	t.watch.BeforeWrite()
	if err := t.commands.RestoreWait(ctx, f, b.Text(xtables.NAT)); err != nil {
		t.watch.Invalidate()
		return fmt.Errorf("%s tables: %w", f, err)
	}
	t.watch.AfterWrite(1)
	return nil
}
