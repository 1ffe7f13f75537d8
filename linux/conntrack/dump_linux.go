// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

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
