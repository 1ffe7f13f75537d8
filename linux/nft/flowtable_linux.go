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

// A flowtable forwards packets of connections that it knows before the stack sees
// them. Ours is in a table of its own, for both families:
//
//	table inet tandem-offload {
//	  flowtable services { hook ingress priority 0; devices = { ... }; counter }
//	  chain forward { type filter hook forward priority 0; ct status dnat flow add @services counter }
//	}
//
// The kernel looks a connection up for each packet: one that was deleted from
// connection tracking leaves the flowtable at once, and one whose flowtable is deleted with
// its next packet. Only TCP and UDP are taken, and TCP once it is
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

// maxDevices is how many devices go into one message; the kernel takes 256
// (NFT_NETDEVICE_MAX).
const maxDevices = 200

// offloadComment is that of our table.
func offloadComment() []byte {
	var n notes
	n.comment(Owner + " (offload 1)")
	return n
}

// offloadBatch writes a transaction.
type offloadBatch struct{ plainBatch }

// create makes the table with a flowtable of no device.
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

// addDevices adds devices to the flowtable, and makes it if there is none.
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

// Set makes the devices whose packets the flowtable takes those given. If another agent has
// a flowtable it does nothing: connections would be in either of them, invisibly to both
// agents.
//
// Before Linux 6.16 a device that is deleted leaves the flowtable, too. Since then its name stays, in case
// another device of that name appears: pods have ever new ones, and some 1,800 fit into no message of the
// kernel any more, which then lists no flowtable at all and makes every "nft list ruleset" fail. One that
// is not listed is made anew.
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
		// On its own: after this, an object that does not exist is a device.
		if err := o.transact(ctx, (*offloadBatch).create); err != nil {
			return adviseOffload(err)
		}
	}
	err = o.each(ctx, without(have, devices), (*offloadBatch).removeDevices)
	if err != nil && !errors.Is(err, unix.ENOENT) { // else one has left by itself: its notice brings the next call
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

// adviseOffload adds to the error of a flowtable that could not be made what can be done
// about it.
func adviseOffload(err error) error {
	if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	return fmt.Errorf("this kernel has no flowtables: %w; nf_flow_table_inet and nft_flow_offload are needed: load them, or use a kernel built with them", err)
}

// Remove deletes the flowtable, if it is there. Connections go on.
func (o *Offload) Remove(ctx context.Context) error {
	exists, err := o.owned(ctx)
	if err != nil || !exists {
		return err
	}
	return o.transact(ctx, (*offloadBatch).remove)
}

// Devices reports whether our table is there, and the devices of its flowtable.
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

// Flowtables lists those of all tables in the network namespace of the calling thread.
func Flowtables(ctx context.Context) ([]diagnosis.Flowtable, error) { return once(ctx, flowtables) }

// maxFlowtables bounds how many are listed: they are other programs'.
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

// owned reports whether our table is there; a foreign one of its name is an error.
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
