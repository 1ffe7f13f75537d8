// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Groups of notices of netfilter (enum nfnetlink_groups).
const (
	GroupNewFlows = 1 // NFNLGRP_CONNTRACK_NEW
	GroupNFTrace  = 9 // NFNLGRP_NFTRACE
)

// Listener receives the notices of one multicast group.
type Listener struct{ file *os.File }

// Listen joins a group, in the network namespace of the calling thread. From then on its
// notices are kept for Each.
func Listen(group int) (*Listener, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen to netlink group %d: %w", group, err), unix.Close(fd))
	}
	return &Listener{os.NewFile(uintptr(fd), "netlink notices")}, nil
}

// Close leaves the group.
func (l *Listener) Close() error { return l.file.Close() }

// Each calls handle for all notices until ctx ends, which is no error, or handle returns
// done. Notices that did not fit into the socket's memory are lost. It is
// called once.
func (l *Listener) Each(ctx context.Context, handle func(Message) (done bool)) error {
	stop := context.AfterFunc(ctx, func() { _ = l.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, chunk)
	for {
		n, err := l.file.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			continue
		case err != nil:
			return fmt.Errorf("netlink notices: %w", err)
		}
		for m, err := range Messages(buf[:n]) {
			if err == nil && handle(m) {
				return nil
			}
		}
	}
}
