package nftables

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// Driver applies objects to the kernel (dataplane.Driver and
// dataplane.Sentinel). It touches nothing but its own two tables, and refuses to
// work where somebody else's has the name of one (owner_linux.go). One goroutine
// may use it at a time, from any thread, and another one Observe.
type Driver struct {
	table    string
	owner    string // what the comments of its tables begin with
	families []model.Family
	reader   *socket // Observe's own

	mu    sync.Mutex // guards what follows, for as long as a transaction takes
	sock  *socket
	batch *batch

	// generation is what the kernel's count of transactions must be if nobody
	// else made any.
	generation uint32
	lost       bool   // generation is not known
	commits    uint32 // transactions made

	full [2]bool // by family: clients found no room in Affinity of late
}

var (
	_ dataplane.Driver[Key, Value]   = (*Driver)(nil)
	_ dataplane.Getter[Key, Value]   = (*Driver)(nil)
	_ dataplane.Sentinel             = (*Driver)(nil)
	_ dataplane.Bounded              = (*Driver)(nil)
	_ dataplane.Compiler[Key, Value] = (*Compiler)(nil)
	_ dataplane.Slotter[Key, Value]  = (*Compiler)(nil)
)

// Open returns a driver for the network namespace that the calling thread is
// in. Close it after use; what it has programmed stays.
func Open(o Options) (*Driver, error) { return open(Table, o) }

// OpenTable is Open for the tables of another mode, one for each family: their
// name is its own.
func OpenTable(name string, families ...model.Family) (*Driver, error) {
	return open(name, Options{Families: families})
}

func open(table string, o Options) (*Driver, error) {
	sock, err := openSocket()
	if err != nil {
		return nil, err
	}
	reader, err := openSocket()
	if err != nil {
		return nil, errors.Join(err, sock.close())
	}
	return &Driver{table: table, owner: tableOwner, families: o.families(), reader: reader, sock: sock, batch: newBatch(table), lost: true}, nil
}

// Close implements dataplane.Driver.
func (d *Driver) Close() error { return errors.Join(d.sock.close(), d.reader.close()) }

// maxOps keeps a transaction short: the kernel holds a lock over all tables of
// the namespace, some 2 microseconds for each op.
const maxOps = 12000

// roughOp is more than what most ops take on the wire.
const roughOp = 512

// Limits implements dataplane.Driver. What does not fit into the socket's send
// buffer, which is small without privileges, Commit cuts; batches are sized so
// that this concerns large ports only.
func (d *Driver) Limits() dataplane.Limits {
	return dataplane.Limits{Atomic: true, Batch: min(maxOps, max(d.sock.send/roughOp, 64))}
}

// Commit implements dataplane.Driver: all ops in one transaction where possible.
// When that fails, the ops that the kernel did not like have its error, and all
// others one that names the first of those.
//
// A chain that is new, and whatever else is, becomes visible before its rules do:
// packets on their way would leave it by its end. So chains come in a transaction
// of their own, before what refers to them.
func (d *Driver) Commit(ctx context.Context, ops []op) []error {
	errs := make([]error, len(ops))
	if len(ops) == 0 {
		return errs
	}
	if err := ctx.Err(); err != nil {
		return all(errs, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.ours(ops); err != nil {
		return all(errs, err)
	}
	_ = d.inTwo(ops, errs, unreachable(ops)) // in errs
	return errs
}

// inTwo applies the first n ops and then, if that was done, the others. It returns
// the first error.
func (d *Driver) inTwo(ops []op, errs []error, n int) error {
	if err := d.transact(ops[:n], errs[:n]); err != nil {
		all(errs[n:], err)
		return err
	}
	return d.transact(ops[n:], errs[n:])
}

// unreachable returns how many ops, from the first on, make sets and chains that
// no packet meets before the ops behind them are done; 0 if there are no chains
// among them.
func unreachable(ops []op) (n int) {
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

// inParts applies what is too large for one transaction.
func (d *Driver) inParts(ops []op, errs []error) error {
	order := gathered(ops)
	sorted, results := make([]op, len(ops)), make([]error, len(ops))
	for i, at := range order {
		sorted[i] = ops[at]
	}
	err := d.inTwo(sorted, results, cut(sorted))
	for i, at := range order {
		errs[at] = results[i]
	}
	return err
}

// transact applies ops, and returns the first error. It is one transaction if the
// socket takes it in one message, else several.
func (d *Driver) transact(ops []op, errs []error) error {
	if len(ops) == 0 {
		return nil
	}
	msgs := d.batch.encode(ops, d.sock.seq+1)
	if len(ops) > 1 && len(msgs) > d.sock.most() {
		return d.inParts(ops, errs)
	}
	d.sock.seq = d.batch.next
	if err := d.sock.write(msgs); err != nil {
		err = fmt.Errorf("nftables: send %d ops in %d bytes: %w", len(ops), len(msgs), err)
		all(errs, err)
		return err
	}
	if err := d.outcome(ops, errs); err != nil {
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

// after is the generation after n more transactions; 0 is left out.
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

// outcome reads what the kernel answered to the batch. It puts errors where
// they belong and returns the first; that it is done, only the acknowledgement
// of the last message says.
func (d *Driver) outcome(ops []op, errs []error) error {
	var failed error
	done := false
	for {
		buf, err := d.sock.read()
		switch {
		case errors.Is(err, errSilent) && failed != nil:
			return fmt.Errorf("nothing of this transaction was done: %w", failed)
		case errors.Is(err, errSilent) && done:
			return nil
		case err != nil: // ENOBUFS: answers were lost
			d.sock.drain()
			return fmt.Errorf("nftables: read the answer: %w: %w", err, ledger.ErrUnknown)
		}
		for m, err := range messages(buf) {
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
func (d *Driver) answer(m message) (seq uint32, errno unix.Errno, ok bool) {
	if m.kind != nlmsgError || len(m.body) < 20 {
		return 0, 0, false
	}
	seq = binary.NativeEndian.Uint32(m.body[12:]) // of the message that it is about
	return seq, result(m), seq-d.batch.seq < d.batch.next-d.batch.seq
}

// blame makes the error for a message that failed and gives it to its op.
func (d *Driver) blame(ops []op, errs []error, seq uint32, errno unix.Errno, m message) error {
	hint, offset := details(m)
	if name := d.batch.expression(seq, offset); name != "" {
		hint = fmt.Sprintf(" (expression %q)", name)
	}
	i, ok := d.batch.culprit(seq, offset)
	if !ok {
		return fmt.Errorf("nftables: transaction of %d ops: %w%s", len(ops), errno, hint)
	}
	err := fmt.Errorf("nftables: %s %s: %w%s", ops[i].Verb, ops[i].Key.in(d.table), errno, hint)
	errs[i] = err
	switch errno {
	case unix.EEXIST, unix.ENOENT, unix.EBUSY: // EBUSY: an element that is there has another value
		errs[i] = ledger.ErrConflict{Err: err}
	}
	return err
}

// details reads what else the kernel says of an error.
func details(m message) (hint string, offset uint32) {
	if m.flags&flagAckTLVs == 0 {
		return "", 0
	}
	rest := m.body[20:]
	if m.flags&flagCapped == 0 {
		failed := int(binary.NativeEndian.Uint32(m.body[4:]))
		rest = m.body[min((4+failed+3)&^3, len(m.body)):]
	}
	for kind, v := range attrs(rest) {
		switch {
		case kind == 1:
			hint = " (" + text(v) + ")"
		case kind == 2 && len(v) == 4:
			offset = binary.NativeEndian.Uint32(v)
		}
	}
	return hint, offset
}
