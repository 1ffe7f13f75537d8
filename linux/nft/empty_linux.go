// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

const tableName = 1 // NFTA_TABLE_NAME

// KeepTables notes which of some tables are there, and returns a function that deletes
// those that have come since and are empty: the iptables command of nftables makes
// the tables that it looks at, and leaves them. A table with anything in it stays
// (NLM_F_NONREC), whoever has put it there.
func KeepTables(ctx context.Context, f model.Family, names ...string) (deleteNew func(context.Context) error, err error) {
	sock, err := openSocket()
	if err != nil {
		return nil, err
	}
	family := netlink.FamilyOf(f)
	var absent []string
	for _, name := range names {
		err := request(ctx, sock, msgGetTable, 0, family, func(w *netlink.Writer) { w.Text(tableName, name) }, func(netlink.Message) error { return nil })
		if errors.Is(err, unix.ENOENT) {
			absent = append(absent, name)
		} else if err != nil {
			return nil, errors.Join(fmt.Errorf("nftables: table %s: %w", name, err), sock.Close())
		}
	}
	return func(ctx context.Context) error {
		var errs []error
		for _, name := range absent {
			errs = append(errs, deleteEmpty(ctx, sock, family, name))
		}
		return errors.Join(append(errs, sock.Close())...)
	}, nil
}

// deleteEmpty deletes a table that is there and empty.
func deleteEmpty(ctx context.Context, sock *netlink.Socket, family byte, name string) error {
	const nonRecursive = 0x100 // NLM_F_NONREC (netlink.h)
	first := sock.Reserve(3)
	var w netlink.Writer
	w.Begin(batchBegin, 0, first, 0, subsystem)
	w.End()
	w.Begin(subsystem<<8|msgDelTable, nonRecursive|netlink.FlagAck, first+1, family, 0)
	w.Text(tableName, name)
	w.End()
	w.Begin(batchEnd, 0, first+2, 0, subsystem)
	w.End()
	if err := sock.Send(ctx, w.Buf); err != nil {
		return err
	}
	for {
		b, err := sock.Receive()
		if err != nil {
			return err
		}
		for m, err := range netlink.Messages(b) {
			if err != nil {
				return err
			}
			if m.Seq != first+1 {
				continue
			}
			if err := m.Result(); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EBUSY) {
				return fmt.Errorf("nftables: delete empty table %s: %w", name, err)
			}
			return nil
		}
	}
}
