// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"fmt"

	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/suspect"
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

// Delete implements flows.Table. Entries that another process deletes at the same
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
