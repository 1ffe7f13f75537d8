// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// Driver applies objects to the kernel (dataplane.Driver). It
// changes only owned tables, and writes nothing if a foreign table has their
// name. One goroutine may use it at a time, from any thread; a second
// one may call Observe or Others.
type Driver struct {
	dataplane.SimpleDriver[Key, Value]
	table    *Table
	families []model.Family
	readers  [2]*netlink.Socket // of Observe and Others
	many     int                // a set with more elements is read by its keys
	byKeys   atomic.Int64       // number of sets read by their keys

	mu    sync.Mutex // guards the fields below; held during a transaction
	sock  *netlink.Socket
	batch *batch

	// generation is the kernel's count of transactions if no other program has made any
	// since the last reading.
	generation uint32
	lost       bool   // generation is unknown
	commits    uint32 // transactions made

	budget budget
}

var _ dataplane.Driver[Key, Value] = (*Driver)(nil)

// Open returns a driver for the tables of some families, or all if none are given,
// in the network namespace of the calling thread. Close it after use; programmed objects
// stay.
func Open(t *Table, families ...model.Family) (*Driver, error) {
	sock, err := openSocket()
	if err != nil {
		return nil, err
	}
	d := &Driver{table: t, families: model.FamiliesOr(families), many: manyElements - 1, sock: sock, batch: newBatch(t), lost: true}
	for i := range d.readers {
		if d.readers[i], err = openSocket(); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	return d, nil
}

// The sizes of socket buffers that are requested, in bytes.
const (
	sendBuffer    = 64 << 20
	receiveBuffer = 8 << 20
)

func openSocket() (*netlink.Socket, error) {
	s, err := netlink.Open()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", absent(err))
	}
	s.SetBuffers(sendBuffer, receiveBuffer)
	return s, nil
}

// request sends one request to nf_tables.
func request(ctx context.Context, sock *netlink.Socket, kind, flags uint16, family byte, fill func(*netlink.Writer), each func(netlink.Message) error) error {
	err := sock.Request(ctx, subsystem<<8|kind, flags, family, fill, each)
	if errors.Is(err, netlink.ErrInterrupted) {
		return dataplane.ErrInterrupted
	}
	return err
}

func (d *Driver) Close() error {
	err := d.sock.Close()
	for _, r := range d.readers {
		if r != nil { // else opening it failed
			err = errors.Join(err, r.Close())
		}
	}
	return err
}

// MaxOps bounds the ops of a transaction, but for those of a large start (ledger.Plan): the kernel holds a lock over all
// tables of the namespace for some 2 microseconds per op.
const MaxOps = 12000

// roughOp is more bytes than most ops take on the wire.
const roughOp = 512

// Transactions returns the number of transactions that the driver has made.
func (d *Driver) Transactions() uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.commits
}

// SetSendBuffer requests a send buffer of that many bytes, which bounds the bytes sent
// as one transaction, and returns the size granted.
func (d *Driver) SetSendBuffer(size int) (got int) {
	d.sock.SetBuffers(size, receiveBuffer)
	return d.sock.Limit()
}

// readLimit bounds the time of a reading. The kernel lists a set in parts, and skips from its beginning for each: for the largest
// set of a node that takes some minutes, and at the start nothing is written before it is read.
const readLimit = 20 * time.Minute

// Limits: Commit splits transactions that exceed the socket's send buffer, which is small
// without privileges. Batch is chosen so that only large ports are split.
func (d *Driver) Limits() dataplane.Limits {
	return dataplane.Limits{Atomic: true, Get: true, Certain: true, Batch: min(MaxOps, max(d.sock.Limit()/roughOp, 64)), Read: readLimit}
}

// Commit applies all ops in one transaction where possible. If
// that fails, the rejected ops get the kernel's error, and all others an error that
// names the first rejected one.
//
// A new chain becomes visible before its rules: packets in flight would fall through
// an empty chain. So new chains are created in a transaction of their own, before
// anything refers to them.
func (d *Driver) Commit(ctx context.Context, ops []Op) []error {
	errs := make([]error, len(ops))
	if len(ops) == 0 {
		return errs
	}
	if err := ctx.Err(); err != nil {
		return all(errs, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.checkOwner(ctx, ops); err != nil {
		return all(errs, err)
	}
	sent := d.budget.admit(ops)
	d.keepCounts(ctx, sent)
	_ = d.inTwo(ctx, sent, errs, unreachable(sent)) // the error is in errs
	d.budget.applied(ops, sent, errs)
	return errs
}

// inTwo applies the first n ops and then, if that succeeded, the others. It returns
// the first error.
func (d *Driver) inTwo(ctx context.Context, ops []Op, errs []error, n int) error {
	if err := d.transact(ctx, ops[:n], errs[:n]); err != nil {
		all(errs[n:], err)
		return err
	}
	return d.transact(ctx, ops[n:], errs[n:])
}

// unreachable returns how many of the first ops create sets and chains that no packet
// can reach before the later ops are applied; 0 if there are no chains among them.
func unreachable(ops []Op) (n int) {
	for i, o := range ops {
		chain := o.Key.Kind == KindChain
		if o.Verb != ledger.Create || !chain && o.Key.Kind != KindSet || chain && o.New.Body.Chain.Hook.Type != "" {
			break
		}
		if chain {
			n = i + 1
		}
	}
	return n
}

// inParts applies ops that are too large for one transaction.
func (d *Driver) inParts(ctx context.Context, ops []Op, errs []error) error {
	order := gathered(ops)
	sorted, results := make([]Op, len(ops)), make([]error, len(ops))
	for i, at := range order {
		sorted[i] = ops[at]
	}
	err := d.inTwo(ctx, sorted, results, cut(sorted))
	for i, at := range order {
		errs[at] = results[i]
	}
	return err
}

// transact applies ops and returns the first error: in one transaction if it fits into the
// send buffer, else in several.
func (d *Driver) transact(ctx context.Context, ops []Op, errs []error) error {
	if len(ops) == 0 {
		return nil
	}
	msgs := d.batch.encode(ops, d.sock.Next())
	if len(ops) > 1 && len(msgs) > d.sock.Limit() {
		return d.inParts(ctx, ops, errs)
	}
	d.sock.Reserve(d.batch.next - d.batch.seq)
	if err := d.sock.Send(ctx, msgs); err != nil {
		err = fmt.Errorf("nftables: send %d ops in %d bytes: %w", len(ops), len(msgs), err)
		all(errs, err)
		return err
	}
	if err := d.outcome(ctx, ops, errs); err != nil {
		if errors.Is(err, ledger.ErrUnknown) {
			d.lost = true
		}
		for i := range errs {
			if errs[i] == nil {
				errs[i] = err
			}
		}
		return err
	}
	d.generation = after(d.generation, 1)
	d.commits++
	return nil
}

// after returns the generation after n more transactions; the kernel skips 0.
func after(generation, n uint32) uint32 {
	sum := generation + n
	if sum < generation {
		sum++
	}
	return sum
}

func all(errs []error, err error) []error {
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// outcome reads the kernel's answers to the batch, assigns errors to ops and returns
// the first error. Only the acknowledgement of the last message means success.
func (d *Driver) outcome(ctx context.Context, ops []Op, errs []error) error {
	var failed error
	done := false
	for {
		buf, err := d.sock.Receive()
		switch {
		case errors.Is(err, netlink.ErrNoAnswer) && failed != nil:
			return fmt.Errorf("transaction not applied: %w", failed)
		case errors.Is(err, netlink.ErrNoAnswer) && done:
			return nil
		case err != nil: // such as ENOBUFS: answers were lost
			_ = d.sock.Drain(ctx) // if it fails, the next request drains
			return fmt.Errorf("nftables: read the answer: %w: %w", err, ledger.ErrUnknown)
		}
		for m, err := range netlink.Messages(buf) {
			if err != nil {
				return fmt.Errorf("nftables: %w: %w", err, ledger.ErrUnknown)
			}
			seq, errno, ok := d.answer(m)
			switch {
			case !ok:
			case errno != 0:
				err := d.blame(ops, errs, seq, errno, m)
				failed = cmp.Or(failed, err)
			case seq == d.batch.last():
				done = true
			}
		}
	}
}

// answer reads an NLMSG_ERROR for a message of the batch.
func (d *Driver) answer(m netlink.Message) (seq uint32, errno unix.Errno, ok bool) {
	if m.Type != netlink.TypeError || len(m.Body) < unix.SizeofNlMsgerr {
		return 0, 0, false
	}
	seq = binary.NativeEndian.Uint32(m.Body[12:]) // nlmsgerr.msg.nlmsg_seq
	n, _ := m.Errno()
	return seq, unix.Errno(n), seq-d.batch.seq < d.batch.next-d.batch.seq
}

// blame assigns the error of a failed message to its op.
func (d *Driver) blame(ops []Op, errs []error, seq uint32, errno unix.Errno, m netlink.Message) error {
	hint, offset := details(m)
	if name := d.batch.expression(seq, offset); name != "" {
		hint = fmt.Sprintf(" (expression %q)", name)
	}
	i, ok := d.batch.culprit(seq, offset)
	if !ok {
		return fmt.Errorf("nftables: transaction of %d ops: %w%s", len(ops), errno, hint)
	}
	err := fmt.Errorf("nftables: %s %s: %w%s", ops[i].Verb, ops[i].Key.in(d.table.Name), errno, hint)
	errs[i] = err
	switch errno {
	case unix.EEXIST, unix.ENOENT, unix.EBUSY: // EBUSY: an existing element has another value
		errs[i] = ledger.ConflictError{Err: err}
	}
	return err
}

// details reads the kernel's extended error message.
func details(m netlink.Message) (hint string, offset uint32) {
	if m.Flags&netlink.FlagAckTLVs == 0 {
		return "", 0
	}
	rest := m.Body[unix.SizeofNlMsgerr:]
	if m.Flags&netlink.FlagCapped == 0 {
		failed := int(binary.NativeEndian.Uint32(m.Body[4:]))
		rest = m.Body[min((4+failed+3)&^3, len(m.Body)):]
	}
	for kind, v := range netlink.Attrs(rest) {
		switch {
		case kind == unix.NLMSGERR_ATTR_MSG:
			hint = " (" + netlink.Text(v) + ")"
		case kind == unix.NLMSGERR_ATTR_OFFS && len(v) == 4:
			offset = binary.NativeEndian.Uint32(v)
		}
	}
	return hint, offset
}

// A table is owned not by its name, since any program may call one "tandem", but by its
// comment, which begins with Table.Owner. The kernel keeps comments since Linux 5.10.

// ErrForeign means that a table with the name of an owned one is not owned.
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

// look returns a snapshot of a family's table, with only the table itself read; if it does not
// exist, hasTable is false. A foreign table is an error.
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

// Has reports whether the driver's table of a family exists.
func (d *Driver) Has(ctx context.Context, f model.Family) (bool, error) {
	s, err := d.look(ctx, d.readers[0], f, nil)
	return err == nil && s.hasTable, err
}

// checkOwner returns an error if a table of the ops is foreign: another program may have
// created it since the last reading.
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

// Remove deletes the driver's tables, each in its own transaction: the kernel may lack a
// family.
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

// absent adds dataplane.ErrAbsent to an error of a kernel without nf_tables (EINVAL, for an
// unknown subsystem) or without nfnetlink.
func absent(err error) error {
	for _, missing := range []error{unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EINVAL} {
		if errors.Is(err, missing) {
			return fmt.Errorf("%w: nf_tables %w in the kernel", err, dataplane.ErrAbsent)
		}
	}
	return err
}

// Try returns an error if this kernel does not support the objects of a table: it creates them
// in a scratch table that no packet reaches. The error states what is missing and what
// to do about it; a foreign table of the name is an error, too. Any number of
// processes may try at once. If the process is killed, the kernel deletes the scratch table,
// or before Linux 5.12 the next Sweep.
func Try(ctx context.Context, t *Table, objects map[Key]Value, families ...model.Family) error {
	if err := Check(ctx, t, families...); err != nil {
		return Advise(err)
	}
	if err := Sweep(ctx); err != nil {
		return Advise(err)
	}
	return Advise(withOwner(func(flags uint32) error { return try(ctx, t, flags, objects, families) }))
}

func try(ctx context.Context, t *Table, flags uint32, objects map[Key]Value, families []model.Family) error {
	scratch := *t
	scratch.flags = flags
	d, err := Open(&scratch, families...)
	if err != nil {
		return err
	}
	defer d.Close()
	if scratch.Name, err = temporaryName(probeTable, d.sock); err != nil {
		return err
	}
	ops := t.probeOps(objects)
	for _, err := range d.Commit(ctx, ops) {
		if err != nil {
			return err
		}
	}
	have, err := d.Objects(ctx)
	if removed := d.Remove(context.WithoutCancel(ctx)); removed != nil || err != nil {
		return errors.Join(err, removed)
	}
	for _, op := range ops {
		if v, ok := have[op.Key]; !ok || !v.Equal(op.New) {
			return fmt.Errorf("nftables: %s: %w: Linux 5.10 or later is needed", op.Key.in(t.Name), ErrAltered)
		}
	}
	return nil
}

// ErrAltered means that the kernel accepted objects without an error, but not as
// written.
var ErrAltered = errors.New("read back differs from what was written")

// probeOps returns ops that create objects, with rules that no packet passes.
func (t *Table) probeOps(objects map[Key]Value) (ops []Op) {
	for _, k := range t.Sorted(objects) {
		v := objects[k]
		if v.Body != nil && v.Body.Chain != nil && v.Body.Chain.Hook.Type != "" {
			v = Value{Body: &Body{Chain: t.shut(k.Family, v.Body.Chain)}}
		}
		ops = append(ops, Op{Verb: ledger.Create, Key: k, New: v})
	}
	return ops
}

// shut returns a chain whose rules begin with a match that no packet satisfies: protocol 255
// is reserved.
func (t *Table) shut(f model.Family, c *Chain) *Chain {
	var rules []Rule
	for _, r := range c.Rules {
		rules = append(rules, NewRule(append([]Statement{L4ProtoIs{255}}, r.Statements...)...))
	}
	return t.newChain(f, c.Hook, rules)
}

// Advise adds to an error what can be done about it.
func Advise(err error) error {
	advice := ""
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		advice = "run as root or with CAP_NET_ADMIN"
	case errors.Is(err, dataplane.ErrAbsent), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT):
		advice = "the kernel has no nf_tables: load it with \"modprobe nf_tables\", or use a kernel built with CONFIG_NF_TABLES"
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP):
		advice = "a kernel module is missing: Linux 5.10 or later is needed, with nft_chain_nat, nft_nat, nft_masq, nft_reject, nft_fib, nft_numgen, nft_ct"
	default:
		return err
	}
	return fmt.Errorf("%w; %s", err, advice)
}
