// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// Ownership is not by name, since any program may call a table "tandem". Owned tables
// have a comment that begins with Table.Owner; the kernel keeps comments since Linux
// 5.10.

// ErrForeign means that a table with the name is not owned by Tandem.
var ErrForeign = errors.New("is not owned by Tandem and left unchanged")

func (t *Table) foreign(f model.Family) error {
	name := FamilyName(f) + " " + t.Name
	return fmt.Errorf("table %s %w: its comment does not begin with %q. If another program uses it, rename it; "+
		"otherwise, or if it was Tandem's and has lost its comment, delete it with \"nft delete table %s\"",
		name, ErrForeign, t.Owner, name)
}

// Check returns nil if the tables are owned or absent, else ErrForeign or why they
// cannot be read.
func Check(ctx context.Context, t *Table, families ...model.Family) error {
	d, err := Open(t, families...)
	if err != nil {
		return err
	}
	defer d.Close()
	for _, f := range d.families {
		if _, err := d.look(ctx, d.sock, f, nil); err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
	}
	return nil
}

// look begins a snapshot of a family's table by reading the table itself, if it
// exists. A foreign table is an error.
func (d *Driver) look(ctx context.Context, sock *netlink.Socket, f model.Family, found func(Key, Value)) (*snapshot, error) {
	s := newSnapshot(d.table, f, found)
	err := request(ctx, sock, msgGetTable, 0, netlink.FamilyOf(f), func(w *netlink.Writer) { w.Text(attrTable, d.table.Name) }, s.add)
	switch {
	case errors.Is(err, unix.ENOENT):
		return s, nil
	case err != nil:
		return nil, fmt.Errorf("table %s %s: %w", FamilyName(f), d.table.Name, absent(err))
	case s.foreign:
		return nil, d.table.foreign(f)
	}
	return s, nil
}

// Has reports whether there is the driver's table of a family.
func (d *Driver) Has(ctx context.Context, f model.Family) (bool, error) {
	s, err := d.look(ctx, d.readers[0], f, nil)
	return err == nil && s.hasTable, err
}

// checkOwner makes sure that the tables of ops are owned or absent. Another program may
// have created one since it was read.
func (d *Driver) checkOwner(ctx context.Context, ops []Op) error {
	var seen [2]bool
	for _, o := range ops {
		if seen[o.Key.Family] {
			continue
		}
		seen[o.Key.Family] = true
		if _, err := d.look(ctx, d.sock, o.Key.Family, nil); err != nil {
			return fmt.Errorf("nftables: nothing written: %w", err)
		}
	}
	return nil
}

// Remove deletes the driver's tables, each on its own: the kernel may lack a family.
func (d *Driver) Remove(ctx context.Context) error {
	var failed error
	for _, f := range d.families {
		s, err := d.look(ctx, d.readers[0], f, nil)
		switch {
		case err != nil:
			failed = errors.Join(failed, fmt.Errorf("nftables: remove owned tables: %w", err))
			continue
		case !s.hasTable:
			continue
		}
		gone := d.Commit(ctx, []Op{{Verb: ledger.Delete, Key: TableKey(f)}})[0]
		if !errors.Is(gone, unix.ENOENT) { // else another process has deleted it
			failed = errors.Join(failed, gone)
		}
	}
	return failed
}

// absent adds dataplane.ErrAbsent to an error that means that the kernel has no
// nf_tables: nfnetlink returns EINVAL for an unknown subsystem; the others come from
// a kernel without nfnetlink.
func absent(err error) error {
	for _, missing := range []error{unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EINVAL} {
		if errors.Is(err, missing) {
			return fmt.Errorf("%w: nf_tables %w in the kernel", err, dataplane.ErrAbsent)
		}
	}
	return err
}
