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

// A name alone makes no table ours: anybody may call a table "tandem". Ours say
// so in their comments, which the kernel keeps since Linux 5.10.

// ErrForeign says that a table has our name and is not ours.
var ErrForeign = errors.New("is not Tandem's and is left alone")

func (t *Table) foreign(f model.Family) error {
	name := FamilyName(f) + " " + t.Name
	return fmt.Errorf("table %s %w: its comment does not begin with %q. If somebody uses it, give it another name; "+
		"otherwise, or if it was Tandem's and has lost its comment, delete it with \"nft delete table %s\"",
		name, ErrForeign, t.Owner, name)
}

// Check reads whether the tables are ours or not there. Else the error
// is ErrForeign, or why they cannot be read.
func Check(t *Table, families ...model.Family) error {
	d, err := Open(t, families...)
	if err != nil {
		return err
	}
	defer d.Close()
	for _, f := range d.families {
		if _, err := d.look(context.Background(), d.sock, f, nil); err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
	}
	return nil
}

// look begins a snapshot of the table of a family, over a socket: it has the table if there is
// one. A table that is not ours is an error.
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
	s, err := d.look(ctx, d.reader, f, nil)
	return err == nil && s.hasTable, err
}

// ours makes sure that the tables which ops are for are ours, or not there.
// Another may have taken its place since it was read.
func (d *Driver) ours(ctx context.Context, ops []Op) error {
	var seen [2]bool
	for _, o := range ops {
		if seen[o.Key.Family] {
			continue
		}
		seen[o.Key.Family] = true
		if _, err := d.look(ctx, d.sock, o.Key.Family, nil); err != nil {
			return fmt.Errorf("nftables: nothing is written: %w", err)
		}
	}
	return nil
}

// Remove deletes the driver's tables, each on its own: one may be
// impossible on a kernel without that family.
func (d *Driver) Remove(ctx context.Context) error {
	var failed error
	for _, f := range d.families {
		s, err := d.look(ctx, d.reader, f, nil)
		switch {
		case err != nil:
			failed = errors.Join(failed, fmt.Errorf("nftables: remove our tables: %w", err))
			continue
		case !s.hasTable:
			continue
		}
		gone := d.Commit(ctx, []Op{{Verb: ledger.Delete, Key: TableKey(f)}})[0]
		if !errors.Is(gone, unix.ENOENT) { // else another process was faster
			failed = errors.Join(failed, gone)
		}
	}
	return failed
}

// absent adds dataplane.ErrAbsent to what a question to nf_tables came to, where
// that says that the kernel has no nf_tables: EINVAL is how nfnetlink calls a
// subsystem that it does not know, and the others are from a kernel without any
// nfnetlink.
func absent(err error) error {
	for _, missing := range []error{unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EINVAL} {
		if errors.Is(err, missing) {
			return fmt.Errorf("%w: nf_tables %w in the kernel", err, dataplane.ErrAbsent)
		}
	}
	return err
}
