// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"context"
	"errors"
	"fmt"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
)

// Driver reads and writes tables of one variant in one network namespace, from any
// thread: the common part of the drivers of modes with iptables rules. One
// goroutine may write at a time, another one may read.
type Driver struct {
	Tools     Tools
	Families  []model.Family
	Namespace *host.Namespace
	Watch     *Watch

	// Existing restricts reading to existing tables: in the legacy variant reading creates others.
	Existing bool

	tables []Table
}

// Open returns a driver for some tables in the network namespace of the calling thread, and
// watches them. Close it after use.
func Open(t Tools, families []model.Family, tables ...Table) (*Driver, error) {
	ns, err := host.OpenNamespace()
	if err != nil {
		return nil, err
	}
	w, err := OpenWatch(t.Variant, families)
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return &Driver{Tools: t, Families: families, Namespace: ns, Watch: w, tables: tables}, nil
}

// OpenIn returns a driver that does not watch the tables. It owns ns.
func OpenIn(ns *host.Namespace, t Tools, families []model.Family, tables ...Table) *Driver {
	return &Driver{Tools: t, Families: families, Namespace: ns, Watch: noWatch(), tables: tables}
}

// Close releases the namespace and the watch; the rules stay.
func (d *Driver) Close() error { return errors.Join(d.Watch.Close(), d.Namespace.Close()) }

// Read calls found for each family with the output of iptables-save.
func (d *Driver) Read(ctx context.Context, found func(f model.Family, text string) error) error {
	d.Watch.BeforeRead()
	for _, f := range d.Families {
		var text string
		err := d.Namespace.Do(func() (err error) {
			which := d.tables
			if d.Existing {
				if which, err = d.Tools.Present(f, which...); err != nil {
					return err
				}
			}
			text, err = d.Tools.Save(ctx, f, which...)
			return err
		})
		if err == nil {
			err = found(f, text)
		}
		if err != nil {
			return fmt.Errorf("%s tables: %w", f, err)
		}
	}
	d.Watch.AfterRead()
	return nil
}

// Restore is Tools.Restore in the driver's namespace. The caller calls Watch's BeforeWrite
// and AfterWrite.
func (d *Driver) Restore(ctx context.Context, f model.Family, text []byte) error {
	return d.Namespace.Do(func() error { return d.Tools.Restore(ctx, f, text) })
}

// Write writes one table, and waits for the lock. A lock held for too long is an ordinary
// failure (host.ErrLocked), not ledger.BusyError.
func (d *Driver) Write(ctx context.Context, f model.Family, text []byte) error {
	d.Watch.BeforeWrite()
	if err := d.Namespace.Do(func() error { return d.Tools.RestoreWait(ctx, f, text) }); err != nil {
		d.Watch.Invalidate()
		return fmt.Errorf("%s tables: %w", f, err)
	}
	d.Watch.AfterWrite(1)
	return nil
}

// Disturbed is dataplane.Driver's.
func (d *Driver) Disturbed(context.Context) (bool, error) { return d.Watch.Disturbed() }

// Others is dataplane.Driver's, for a mode that owns some chains.
func (d *Driver) Others(ctx context.Context, owned func(chain string) bool) (texts []string, err error) {
	err = d.Namespace.Do(func() error {
		texts, err = d.Tools.Others(ctx, d.Families, owned)
		return err
	})
	return texts, err
}

// Prune deletes the driver's tables that are empty (Tools.DeleteBare).
func (d *Driver) Prune(ctx context.Context) error {
	return d.Namespace.Do(func() error { return d.Tools.DeleteBare(ctx, d.Families, d.tables...) })
}
