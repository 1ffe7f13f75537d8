// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/suspect"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// Table is the connection tracking table of one network namespace. It is a
// flows.Table: to be used by one goroutine at a time.
type Table struct {
	dumps, deletes *netlink.Socket
	canFilter      bool // until the kernel rejects a filter
	batch          netlink.Batch

	writeFilter func(filter, *netlink.Writer) // tests play older kernels here
}

var _ flows.Table = (*Table)(nil)

// Open opens the table of the calling thread's network namespace. Using it needs
// CAP_NET_ADMIN there.
func Open() (*Table, error) {
	dumps, err := netlink.Open()
	if err != nil {
		return nil, fmt.Errorf("conntrack: %w", err)
	}
	deletes, err := netlink.Open()
	if err != nil {
		return nil, fmt.Errorf("conntrack: %w", errors.Join(err, dumps.Close()))
	}
	return &Table{dumps: dumps, deletes: deletes, canFilter: true, writeFilter: filter.write}, nil
}

// Close closes the table; it must not be in use.
func (t *Table) Close() error {
	return errors.Join(t.dumps.Close(), t.deletes.Close())
}

// Delete is flows.Table's. Entries that another process deletes at the same
// time are not counted. It uses constant memory, whatever the size of the table.
func (t *Table) Delete(ctx context.Context, matches []flows.Match, stale func(flows.Flow) bool) (deleted int, err error) {
	deleted, err = t.deleteAll(ctx, matches, stale)
	if errors.Is(err, errNoFilter) {
		t.canFilter = false
		var more int
		more, err = t.deleteAll(ctx, matches, stale)
		deleted += more
		// If the dump without a filter fails too, the filter was not the cause.
		t.canFilter = err != nil && ctx.Err() == nil && deleted == 0
	}
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		return deleted, fmt.Errorf("conntrack: delete stale flows: %w", err)
	}
	return deleted, nil
}

// DeleteThese deletes the stale ones of some flows. It looks each of them up, and walks nothing.
func (t *Table) DeleteThese(ctx context.Context, all []suspect.Flow, stale func(flows.Flow) bool) (deleted int, err error) {
	var found []entry
	err = lookUp(ctx, t.dumps, &t.batch, all, func(_ int, e *entry) {
		if e != nil && stale(e.flow) {
			found = append(found, e.clone())
		}
	})
	for i := range found {
		t.delete(&found[i])
		if !t.batch.Full() && i != len(found)-1 {
			continue
		}
		n, failed := t.flush(ctx)
		deleted += n
		err = errors.Join(err, failed)
	}
	if err != nil {
		return deleted, fmt.Errorf("conntrack: delete stale flows: %w", err)
	}
	return deleted, nil
}

func (t *Table) deleteAll(ctx context.Context, matches []flows.Match, stale func(flows.Flow) bool) (deleted int, err error) {
	for _, f := range plan(matches, t.canFilter, t.entries(ctx)) {
		n, err := t.sweep(ctx, f, stale)
		deleted += n
		if err != nil {
			return deleted, err
		}
	}
	return deleted, nil
}

// maxInterruptions bounds how often a dump is repeated that the kernel flags as
// inconsistent.
const maxInterruptions = 5

// sweep deletes the stale ones of the entries that pass a filter.
func (t *Table) sweep(ctx context.Context, f filter, stale func(flows.Flow) bool) (deleted int, err error) {
	for range maxInterruptions {
		var n int
		n, err = t.sweepOnce(ctx, f, stale)
		deleted += n
		if ctx.Err() != nil || !errors.Is(err, netlink.ErrInterrupted) {
			break
		}
	}
	return deleted, err
}

func (t *Table) sweepOnce(ctx context.Context, f filter, stale func(flows.Flow) bool) (deleted int, err error) {
	var failed error // the first failure to delete; the other entries are still deleted
	flush := func() {
		n, err := t.flush(ctx)
		deleted += n
		if failed == nil {
			failed = err
		}
	}
	err = t.dump(ctx, f, func(e *entry) {
		if !stale(e.flow) {
			return
		}
		t.delete(e)
		if t.batch.Full() {
			flush()
		}
	})
	flush()
	return deleted, errors.Join(err, failed)
}

// Reader lists the flows of one network namespace, for people. Its socket is opened for the
// first list, in the namespace of the calling thread, and kept, also after a list that failed or
// was given up: when one of netfilter is closed, the kernel waits with the lock of all
// transactions of nf_tables until what the last of them have deleted is freed, some 10 ms
// (nft_rcv_nl_event). A Reader is safe for concurrent use: one list is read at a time, and a caller
// waits for its turn until its own context ends.
type Reader struct {
	turn   chan struct{} // full while it reads; guards what follows
	table  Table         // for its dumps only, nil before the first
	closed bool
}

// NewReader returns a Reader, which has nothing open yet.
func NewReader() *Reader { return &Reader{turn: make(chan struct{}, 1)} }

// Close closes the socket when it is not read from. A later list is an error.
func (r *Reader) Close() error {
	r.turn <- struct{}{}
	defer func() { <-r.turn }()
	r.closed = true
	if r.table.dumps == nil {
		return nil
	}
	err := r.table.dumps.Close()
	r.table.dumps = nil
	return err
}

// Each calls each for all flows.
func (r *Reader) Each(ctx context.Context, each func(flows.Flow)) error {
	return r.list(ctx, func(e *entry) { each(e.flow) })
}

const accounting = "net/netfilter/nf_conntrack_acct"

// Traffic calls each for all flows, with the address that the client asked for, the one that answers, and the bytes so
// far in both directions. It also says why there are no bytes where the kernel does not count them: to do so costs
// every packet, so that it is left to the administrator.
func (r *Reader) Traffic(ctx context.Context, each func(proto model.Proto, dst, from netip.AddrPort, bytes uint64)) (noBytes string, err error) {
	switch on, err := host.Sysctl(accounting); {
	case err != nil:
		return "", err
	case on == "0":
		noBytes = "conntrack accounting is off: sysctl -w net.netfilter.nf_conntrack_acct=1 enables it for new connections"
	}
	return noBytes, r.list(ctx, func(e *entry) { each(e.flow.Proto, e.flow.Dst, e.flow.From, e.bytes) })
}

func (r *Reader) list(ctx context.Context, each func(*entry)) error {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return fmt.Errorf("conntrack: another list is read: %w", ctx.Err())
	}
	if r.closed {
		return fmt.Errorf("conntrack: %w", os.ErrClosed)
	}
	if r.table.dumps == nil {
		dumps, err := netlink.Open()
		if err != nil {
			return fmt.Errorf("conntrack: %w", err)
		}
		r.table = Table{dumps: dumps, writeFilter: filter.write}
	}
	return r.table.dump(ctx, filter{both: true}, each)
}

// errNoFilter means that the kernel does not support the dump filter.
var errNoFilter = errors.New("the kernel does not filter dumps of the table")

// dump calls each for all entries that the kernel sends for a filter. An entry is
// valid during the call.
func (t *Table) dump(ctx context.Context, f filter, each func(*entry)) error {
	var e entry   // here, so that it is allocated once
	var odd error // of the last malformed entry; the others are still used
	fill := func(w *netlink.Writer) { t.writeFilter(f, w) }
	family := netlink.FamilyOf(f.family)
	if f.both {
		family = 0
	}
	err := t.dumps.Request(ctx, msgGet, netlink.FlagDump, family, fill, func(m netlink.Message) error {
		if m.Type != msgNew {
			return nil
		}
		var err error
		if e, err = parseEntry(m.Body); err != nil {
			odd = err
			return nil
		}
		if t.canFilter && !f.fits(e.flow) {
			return errNoFilter // before Linux 5.8 the filter is ignored
		}
		each(&e)
		return nil
	})
	switch {
	case err == nil:
		return odd
	case t.canFilter && (errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)):
		return errNoFilter
	}
	return fmt.Errorf("dump: %w", err)
}

// entries returns how many entries the table has; as many as there can be where that is not known.
func (t *Table) entries(ctx context.Context) int {
	n := math.MaxInt
	err := t.dumps.Request(ctx, msgStats, 0, 0, nil, func(m netlink.Message) error {
		for kind, value := range m.Attrs() {
			if kind == ctaStatsEntries && len(value) == 4 {
				n = int(netlink.Uint32(value))
			}
		}
		return nil
	})
	if err != nil {
		return math.MaxInt
	}
	return n
}

// delete adds a request to delete e to the batch.
func (t *Table) delete(e *entry) {
	w := t.batch.Begin(msgDelete, 0, netlink.FamilyOf(model.FamilyOf(e.flow.Dst.Addr())))
	e.identify(w)
	w.End()
}

// flush deletes the entries of the batch and empties it. A failed delete does not
// stop the others.
func (t *Table) flush(ctx context.Context) (deleted int, err error) {
	deleted = t.batch.Len()
	sent := t.deletes.Exchange(ctx, &t.batch, func(_ int, e error) {
		deleted--
		if !errors.Is(e, unix.ENOENT) { // else it is already deleted or replaced
			err = fmt.Errorf("delete entry: %w", e)
		}
	})
	if sent != nil {
		return 0, fmt.Errorf("send delete requests: %w", sent)
	}
	return deleted, err
}
