// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/diagnosis"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// A flowtable forwards packets of its connections before the network stack sees
// them. Tandem's is in a table of its own, for both families:
//
//	table inet tandem-offload {
//	  flowtable services { hook ingress priority 0; devices = { ... }; counter }
//	  chain forward { type filter hook forward priority 0; ct status dnat flow add @services counter }
//	}
//
// The kernel checks the connection for each packet: one deleted from connection tracking
// leaves the flowtable at once; if the flowtable is deleted, connections return to the stack with
// their next packet. Only UDP is offloaded, and TCP once it is
// established in both directions.
const (
	offloadTable = "tandem-offload"
	flowtable    = "services"
	offloadChain = "forward"
)

// Messages and attributes of flowtables.
const (
	msgNewFlowtable = 22
	msgGetFlowtable = 23
	msgDelFlowtable = 24

	attrFlowtableName  = 2
	attrFlowtableHook  = 3
	attrFlowtableFlags = 7

	attrFlowtableHookPoint    = 1 // in attrFlowtableHook
	attrFlowtableHookPriority = 2
	attrFlowtableDevices      = 3
	attrFlowtableDevice       = 1 // in attrFlowtableDevices

	netdevIngress    = 0 // NF_NETDEV_INGRESS, of attrFlowtableHookPoint
	flowtableCounter = 2 // NFT_FLOWTABLE_COUNTER: connections' counters stay exact
)

// maxDevices bounds the devices in one message; the kernel accepts 256
// (NFT_NETDEVICE_MAX).
const maxDevices = 200

// offloadComment is the user data of the table, by which it is owned.
func offloadComment() []byte {
	var n notes
	n.comment(Owner + " (offload 1)")
	return n
}

// offloadBatch writes a transaction.
type offloadBatch struct{ plainBatch }

// create creates the table with a flowtable without devices.
func (b *offloadBatch) create() {
	b.message(msgNewTable, netlink.FlagCreate|netlink.FlagExclusive)
	b.Bytes(attrTableUserdata, offloadComment())
	b.End()
	b.addDevices(nil)
	b.chain(offloadChain, Hook{Type: "filter", Point: Forward})
	b.rule(offloadChain, func() {
		CtDNAT{}.encode(&b.encoder)
		b.expr("flow_offload", func() { b.Text(offloadTableName, flowtable) })
		b.expr("counter", func() {})
	})
}

// addDevices adds devices to the flowtable, which it creates if necessary.
func (b *offloadBatch) addDevices(names []string) {
	b.devices(msgNewFlowtable, netlink.FlagCreate, names)
	b.Uint32(attrFlowtableFlags, flowtableCounter)
	b.End()
}

// removeDevices takes devices out of the flowtable.
func (b *offloadBatch) removeDevices(names []string) {
	b.devices(msgDelFlowtable, 0, names)
	b.End()
}

// devices opens a message about devices of the flowtable.
func (b *offloadBatch) devices(kind, flags uint16, names []string) {
	b.message(kind, flags)
	b.Text(attrFlowtableName, flowtable)
	hook := b.Nest(attrFlowtableHook)
	b.Uint32(attrFlowtableHookPoint, netdevIngress)
	b.Uint32(attrFlowtableHookPriority, 0)
	if len(names) > 0 {
		devices := b.Nest(attrFlowtableDevices)
		for _, name := range names {
			b.Text(attrFlowtableDevice, name)
		}
		b.NestEnd(devices)
	}
	b.NestEnd(hook)
}

// Offload programs Tandem's flowtable in the network namespace that it was opened in. It is
// used by one goroutine at a time.
type Offload struct{ sock *netlink.Socket }

// OpenOffload returns an Offload for the network namespace of the calling thread. The flowtable
// stays when it is closed.
func OpenOffload() (*Offload, error) {
	s, err := openSocket()
	return &Offload{s}, err
}

// Close closes the socket.
func (o *Offload) Close() error { return o.sock.Close() }

// Set sets the devices of the flowtable, and creates it if necessary. If another program has
// a flowtable, Set returns an error and does nothing: connections would be in either of them.
//
// Before Linux 6.16 a deleted device leaves the flowtable. Since then its name stays, for a later device
// of that name: pods bring ever new names, and some 1,800 do not fit into a message of the
// kernel, which then lists no flowtable at all and makes every "nft list ruleset" fail. A flowtable that
// is not listed is re-created.
func (o *Offload) Set(ctx context.Context, devices []string) error {
	exists, listed, have, err := o.look(ctx)
	if err != nil {
		return err
	}
	if exists && !listed {
		if err := o.transact(ctx, (*offloadBatch).remove); err != nil {
			return err
		}
		exists = false
	}
	if !exists {
		// In its own transaction: ENOENT of later ones can only mean a device.
		if err := o.transact(ctx, (*offloadBatch).create); err != nil {
			return adviseOffload(err)
		}
	}
	err = o.each(ctx, without(have, devices), (*offloadBatch).removeDevices)
	if err != nil && !errors.Is(err, unix.ENOENT) { // ENOENT: a device was deleted; its notice causes the next call
		return err
	}
	return o.each(ctx, without(devices, have), (*offloadBatch).addDevices)
}

// without returns the names that are not among others.
func without(names, others []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(others, name) })
}

// each changes devices of the flowtable in one transaction.
func (o *Offload) each(ctx context.Context, devices []string, change func(*offloadBatch, []string)) error {
	if len(devices) == 0 {
		return nil
	}
	return o.transact(ctx, func(b *offloadBatch) {
		for chunk := range slices.Chunk(devices, maxDevices) {
			change(b, chunk)
		}
	})
}

// adviseOffload adds advice to the error of a flowtable that could not be created.
func adviseOffload(err error) error {
	if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	return fmt.Errorf("this kernel has no flowtables: %w; load the modules nf_flow_table_inet and nft_flow_offload, or use a kernel built with them", err)
}

// Remove deletes the flowtable, if it exists. Connections continue without it.
func (o *Offload) Remove(ctx context.Context) error {
	exists, err := o.owned(ctx)
	if err != nil || !exists {
		return err
	}
	return o.transact(ctx, (*offloadBatch).remove)
}

// Devices reports whether Tandem's table exists, and the devices of its flowtable.
func (o *Offload) Devices(ctx context.Context) (exists bool, devices []string, err error) {
	exists, _, devices, err = o.look(ctx)
	return exists, devices, err
}

// look is Devices, and reports whether the kernel lists the flowtable.
func (o *Offload) look(ctx context.Context) (exists, listed bool, devices []string, err error) {
	if exists, err = o.owned(ctx); err != nil {
		return exists, false, nil, err
	}
	all, err := flowtables(ctx, o.sock)
	for _, f := range all {
		if !f.Own {
			return exists, listed, devices, fmt.Errorf("flowtable %s belongs to another agent: turn one of them off", f)
		}
		listed, devices = true, append(devices, f.Devices...)
	}
	return exists, listed, devices, err
}

// Flowtables lists the flowtables of all tables in the network namespace of the calling thread.
func Flowtables(ctx context.Context) ([]diagnosis.Flowtable, error) { return once(ctx, flowtables) }

// maxFlowtables bounds the list, since other programs create flowtables, too.
const maxFlowtables = 100

func flowtables(ctx context.Context, sock *netlink.Socket) (all []diagnosis.Flowtable, err error) {
	err = dataplane.RetryInterrupted(func() error {
		all = []diagnosis.Flowtable{}
		return request(ctx, sock, msgGetFlowtable, netlink.FlagDump, unix.AF_UNSPEC, nil, func(m netlink.Message) error {
			if messageOf(m) == msgNewFlowtable && len(all) < maxFlowtables {
				all = append(all, flowtableOf(m))
			}
			return nil
		})
	})
	return all, err
}

func flowtableOf(m netlink.Message) diagnosis.Flowtable {
	f := diagnosis.Flowtable{Family: netfilterName(m.Family())}
	for kind, b := range m.Attrs() {
		switch kind {
		case attrTable:
			f.Table = netlink.Text(b)
		case attrFlowtableName:
			f.Name = netlink.Text(b)
		case attrFlowtableHook:
			f.Devices = devicesOf(b)
		}
	}
	f.Own = m.Family() == unix.NFPROTO_INET && f.Table == offloadTable
	return f
}

func devicesOf(hook []byte) (names []string) {
	for kind, b := range netlink.Attrs(hook) {
		if kind != attrFlowtableDevices {
			continue
		}
		for _, name := range netlink.Attrs(b) {
			names = append(names, netlink.Text(name))
		}
	}
	return names
}

// owned reports whether Tandem's table exists; a foreign one of its name is an error.
func (o *Offload) owned(ctx context.Context) (exists bool, err error) {
	var comment []byte
	err = request(ctx, o.sock, msgGetTable, 0, unix.NFPROTO_INET, func(w *netlink.Writer) { w.Text(attrTable, offloadTable) }, func(m netlink.Message) error {
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
	b := &offloadBatch{newPlainBatch(o.sock.Next(), unix.NFPROTO_INET, offloadTable)}
	fill(b)
	return b.commit(ctx, o.sock)
}
