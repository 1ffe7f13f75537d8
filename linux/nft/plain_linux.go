// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/linux/netlink"
)

// commit sends a transaction and returns its result.
func (b *plainBatch) commit(ctx context.Context, sock *netlink.Socket) error {
	text, last := b.end()
	sock.Reserve(b.n)
	if err := sock.Send(ctx, text); err != nil {
		return err
	}
	for {
		answer, err := sock.Receive()
		if err != nil {
			return err
		}
		for m, err := range netlink.Messages(answer) {
			if err != nil {
				return err
			}
			if errno, ok := m.Errno(); ok && m.Type == netlink.TypeError && (errno != 0 || m.Seq == last) {
				if errno != 0 {
					return errors.Join(fmt.Errorf("table %s: %w", b.table, unix.Errno(errno)), sock.Drain(ctx))
				}
				return nil
			}
		}
	}
}
