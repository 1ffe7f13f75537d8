// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

const accounting = "net/netfilter/nf_conntrack_acct"

// Traffic calls each for all flows of the calling thread's network namespace, with the
// address that the client asked for and the bytes so far in both directions. It is an error
// where the kernel does not count them: to do so costs every packet, so that it is left to
// the administrator.
func Traffic(ctx context.Context, each func(proto model.Proto, dst netip.AddrPort, bytes uint64)) (err error) {
	switch on, err := host.Sysctl(accounting); {
	case err != nil:
		return err
	case on == "0":
		return errors.New("connection tracking counts no bytes: sysctl -w net.netfilter.nf_conntrack_acct=1 has it count those of connections that begin afterwards")
	}
	dumps, err := netlink.Open()
	if err != nil {
		return fmt.Errorf("conntrack: %w", err)
	}
	defer func() { err = errors.Join(err, dumps.Close()) }()
	t := Table{dumps: dumps, writeFilter: filter.write}
	return t.dump(ctx, filter{both: true}, func(e *entry) { each(e.flow.Proto, e.flow.Dst, e.bytes) })
}
