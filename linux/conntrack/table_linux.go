package conntrack

import (
	"context"
	"errors"
	"fmt"

	"github.com/tandem-proxy/tandem/core/flows"
)

// Table is the connection tracking table of one network namespace. It is a
// flows.Table: to be used by one goroutine at a time.
type Table struct {
	dumps, deletes *socket
	canFilter      bool // no kernel was found wanting yet
	unfinished     bool // the last dump was given up before its end
	batch          batch

	dumpRequest func(b []byte, seq uint32, f filter) []byte // tests play older kernels here
}

var _ flows.Table = (*Table)(nil)

// Open opens the table of the calling thread's network namespace. Using it needs
// CAP_NET_ADMIN there.
func Open() (*Table, error) {
	dumps, err := dial()
	if err != nil {
		return nil, err
	}
	deletes, err := dial()
	if err != nil {
		return nil, errors.Join(err, dumps.close())
	}
	return &Table{dumps: dumps, deletes: deletes, canFilter: true, dumpRequest: appendDump}, nil
}

// Close closes the table; it must not be in use.
func (t *Table) Close() error {
	return errors.Join(t.dumps.close(), t.deletes.close())
}

// Delete implements flows.Table. Entries that somebody else deletes at the same
// time are not counted. It uses constant memory, whatever the size of the table.
func (t *Table) Delete(ctx context.Context, stale []flows.Match) (deleted int, err error) {
	defer t.dumps.bound(ctx)()
	defer t.deletes.bound(ctx)()
	index := flows.IndexOf(stale)
	deleted, err = t.deleteAll(ctx, index)
	if errors.Is(err, errNoFilter) {
		t.canFilter = false
		var more int
		more, err = t.deleteAll(ctx, index)
		deleted += more
		// When nothing works the filter was not to blame.
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

func (t *Table) deleteAll(ctx context.Context, index *flows.Index) (deleted int, err error) {
	for _, f := range plan(index.Matches(), t.canFilter) {
		n, err := t.sweep(ctx, f, index)
		deleted += n
		if err != nil {
			return deleted, err
		}
	}
	return deleted, nil
}

// maxInterruptions bounds how often a dump is repeated that the kernel calls
// inconsistent, because its table changed in a way that may hide entries.
const maxInterruptions = 5

// sweep deletes the stale ones of the entries that pass a filter.
func (t *Table) sweep(ctx context.Context, f filter, index *flows.Index) (deleted int, err error) {
	for range maxInterruptions {
		var n int
		n, err = t.sweepOnce(f, index)
		deleted += n
		if ctx.Err() != nil || !errors.Is(err, errInterrupted) {
			break
		}
	}
	return deleted, err
}

func (t *Table) sweepOnce(f filter, index *flows.Index) (deleted int, err error) {
	var failed error // the first failure to delete: it does not keep the other entries
	flush := func() {
		n, err := t.flush()
		deleted += n
		if failed == nil {
			failed = err
		}
	}
	err = t.dump(f, func(e *entry) {
		if !index.Stale(e.flow) {
			return
		}
		t.batch.add(t.deletes.next(), e)
		if t.batch.n == maxBatch {
			flush()
		}
	})
	flush()
	return deleted, errors.Join(err, failed)
}
