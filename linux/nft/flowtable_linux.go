// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/linux/netlink"
)

// Offload keeps our flowtable in the network namespace that it was opened in. It is
// used by one goroutine at a time.
type Offload struct{ sock *netlink.Socket }

// OpenOffload returns one. What it has programmed stays when it is closed.
func OpenOffload() (*Offload, error) {
	s, err := openSocket()
	return &Offload{s}, err
}

// Close closes the socket.
func (o *Offload) Close() error { return o.sock.Close() }

// Set adds devices whose packets the flowtable takes to those that it has
// already. If another agent has a flowtable it does nothing: connections would be
// in either of them, invisibly to both agents.
func (o *Offload) Set(ctx context.Context, devices []string) error {
	exists, have, err := o.Devices(ctx)
	if err != nil {
		return err
	}
	missing := slices.DeleteFunc(slices.Clone(devices), func(name string) bool { return slices.Contains(have, name) })
	if exists && len(missing) == 0 {
		return nil
	}
	return o.transact(ctx, func(b *offloadBatch) {
		if !exists {
			b.create()
		}
		for chunk := range slices.Chunk(missing, maxDevices) {
			b.addDevices(chunk)
		}
	})
}

// Remove deletes the flowtable, if it is there. Connections go on.
func (o *Offload) Remove(ctx context.Context) error {
	exists, err := o.ours(ctx)
	if err != nil || !exists {
		return err
	}
	return o.transact(ctx, (*offloadBatch).remove)
}

// Devices reports whether our table is there, and the devices of its flowtable.
func (o *Offload) Devices(ctx context.Context) (exists bool, devices []string, err error) {
	if exists, err = o.ours(ctx); err != nil {
		return exists, nil, err
	}
	err = request(ctx, o.sock, msgGetFlowtable, netlink.FlagDump, unix.AF_UNSPEC, nil, func(m netlink.Message) error {
		if messageOf(m) != msgNewFlowtable {
			return nil
		}
		var table, name string
		var hook []byte
		for kind, b := range m.Attrs() {
			switch kind {
			case attrTable:
				table = zeroEnded(b)
			case attrFlowtableName:
				name = zeroEnded(b)
			case attrFlowtableHook:
				hook = b
			}
		}
		if m.Family() != familyInet || table != offloadTable {
			return fmt.Errorf("flowtable %s of table %s belongs to another agent: turn one of them off", name, table)
		}
		devices = append(devices, devicesOf(hook)...)
		return nil
	})
	return exists, devices, err
}

func zeroEnded(b []byte) string { return strings.TrimRight(string(b), "\x00") }

func devicesOf(hook []byte) (names []string) {
	for kind, b := range netlink.Attrs(hook) {
		if kind != attrFlowtableDevices {
			continue
		}
		for _, name := range netlink.Attrs(b) {
			names = append(names, zeroEnded(name))
		}
	}
	return names
}

// ours reports whether our table is there; a foreign one of its name is an error.
func (o *Offload) ours(ctx context.Context) (exists bool, err error) {
	var comment []byte
	err = request(ctx, o.sock, msgGetTable, 0, familyInet, func(w *netlink.Writer) { w.Text(attrTable, offloadTable) }, func(m netlink.Message) error {
		for kind, b := range m.Attrs() {
			if kind == attrTableUserdata {
				comment = bytes.Clone(b)
			}
		}
		return nil
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("table inet %s: %w", offloadTable, err)
	case !bytes.Equal(comment, offloadComment()):
		return true, fmt.Errorf("table inet %s: %w", offloadTable, ErrForeign)
	}
	return true, nil
}

// transact writes one transaction.
func (o *Offload) transact(ctx context.Context, fill func(*offloadBatch)) error {
	b := &offloadBatch{newPlainBatch(o.sock.Next(), familyInet, offloadTable)}
	fill(b)
	return b.commit(ctx, o.sock)
}

// Bypassed reports which rules of others no longer see the packets of established
// connections while there is a flowtable of ours; empty without one. It is for
// checks of a node.
func (o *Offload) Bypassed(ctx context.Context) (string, error) {
	exists, devices, err := o.Devices(ctx)
	if err != nil || !exists {
		return "", err
	}
	return fmt.Sprintf("flow offload on %s: rules in the forward and postrouting hooks see only the first packets of connections to Services", strings.Join(devices, ", ")), nil
}
