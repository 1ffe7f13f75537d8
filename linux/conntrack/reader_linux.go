// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// Reader lists the flows of one network namespace, for people. Its socket is opened for the
// first list, in the namespace of the calling thread, and kept, also after a list that failed or
// was given up: when one of netfilter is closed, the kernel waits with the lock of all
// transactions of nf_tables until what the last of them have deleted is freed, some 10 ms
// (nft_rcv_nl_event). A Reader is safe for concurrent use: one list is read at a time, and whoever
// waits for another one does so no longer than its own context lasts.
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

// Traffic calls each for all flows, with the address that the client asked for and the bytes so
// far in both directions. It is an error where the kernel does not count them: to do so costs
// every packet, so that it is left to the administrator.
func (r *Reader) Traffic(ctx context.Context, each func(proto model.Proto, dst netip.AddrPort, bytes uint64)) error {
	switch on, err := host.Sysctl(accounting); {
	case err != nil:
		return err
	case on == "0":
		return errors.New("connection tracking counts no bytes: sysctl -w net.netfilter.nf_conntrack_acct=1 has it count those of connections that begin afterwards")
	}
	return r.list(ctx, func(e *entry) { each(e.flow.Proto, e.flow.Dst, e.bytes) })
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
