// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/suspect"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// Observer looks at the TCP flows of the table that were sent to endpoints. It is used
// by one goroutine at a time.
type Observer struct {
	table Table // for its dumps only
	bits  uint32
	spent time.Duration
}

// Observe opens an Observer of the calling thread's network namespace.
func Observe() (*Observer, error) {
	dumps, err := netlink.Open()
	if err != nil {
		return nil, fmt.Errorf("conntrack: %w", err)
	}
	return &Observer{table: Table{dumps: dumps, canFilter: true, writeFilter: filter.write}, bits: dstNAT}, nil
}

// SetUnmarked sets whether what redirects flows leaves their DNAT bit unset, as IPVS
// does: otherwise the kernel leaves out all flows without it.
func (o *Observer) SetUnmarked(unmarked bool) {
	if o.bits = dstNAT; unmarked {
		o.bits = 0
	}
}

// Close closes the Observer.
func (o *Observer) Close() error { return o.table.dumps.Close() }

// Spent is the CPU time that all looks have taken.
func (o *Observer) Spent() time.Duration { return o.spent }

// Unanswered calls each for the flows without an answer.
func (o *Observer) Unanswered(ctx context.Context, each func(suspect.Flow)) error {
	return o.look(func() error {
		return o.dump(ctx, filter{both: true, status: o.bits, mask: o.bits | seenReply}, each)
	})
}

// Answered calls each for the flows to an address that have an answer. Those to others
// may be among them: see filterable.
func (o *Observer) Answered(ctx context.Context, a netip.Addr, each func(suspect.Flow)) error {
	f := filter{family: model.FamilyOf(a), proto: model.TCP, from: filterable(netip.AddrPortFrom(a, 0)), status: o.bits | seenReply, mask: o.bits | seenReply}
	return o.look(func() error { return o.dump(ctx, f, each) })
}

// AnySeen reports whether any flow has an answer.
func (o *Observer) AnySeen(ctx context.Context) (seen bool, err error) {
	f := filter{both: true, status: o.bits | seenReply, mask: o.bits | seenReply}
	err = o.look(func() error { return o.dump(ctx, f, func(suspect.Flow) { seen = true }) })
	return seen, err
}

// look accounts for what a look costs: the kernel works in this thread's time.
func (o *Observer) look(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadTime()
	defer func() { o.spent += threadTime() - before }()
	return f()
}

func threadTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// dump calls each for the flows that pass a filter. A dump that a change of the
// table has interrupted lacks some, which the next look finds.
func (o *Observer) dump(ctx context.Context, f filter, each func(suspect.Flow)) error {
	if !o.table.canFilter { // then all are sent, and left out here
		f.proto = 0
	}
	err := o.table.dump(ctx, f, func(e *entry) {
		if e.flow.Proto != model.TCP || !e.flow.Translated() || e.status&f.mask != f.status {
			return
		}
		id := uint64(binary.BigEndian.Uint32(e.id[len(e.id)-4:]))
		each(suspect.Flow{ID: id, Client: e.client, Frontend: e.flow.Dst, Endpoint: e.flow.From})
	})
	switch {
	case errors.Is(err, errNoFilter):
		o.table.canFilter = false
		return o.dump(ctx, f, each)
	case errors.Is(err, netlink.ErrInterrupted):
		return nil
	}
	return err
}
