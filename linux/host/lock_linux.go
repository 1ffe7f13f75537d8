// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/sleep"
)

// LockQueue is the number of the netfilter queue used as the lock of a proxy, and
// probeQueue that of a probe. No rule sends packets to them, so they stay empty.
const (
	LockQueue  = 64210
	probeQueue = LockQueue + 1
)

// The errors of Lock.
var (
	ErrLocked       = errors.New("locked by another process")
	ErrNoLock       = errors.New("locking the network namespace failed")
	errLockProtocol = errors.New("unexpected response from nfnetlink_queue")
)

// Lock binds a netfilter queue, which only one process can do in a network namespace,
// and only with CAP_NET_ADMIN there. It works in the namespace of the calling thread.
// The lock ends when it is closed or when the process ends, however that happens.
//
// It needs no shared file system, so it also works between containers that share only
// the network namespace. Unlike an abstract socket, it cannot be taken by a process
// without the privilege to program rules. ErrLocked: another process holds it.
// ErrNoLock: the privilege or nfnetlink_queue is missing.
func Lock() (io.Closer, error) { return lock(LockQueue) }

// LockProbe is the lock of probes, whose scratch objects have fixed names, so that the
// next probe deletes what one that was killed has left. It waits for the lock until ctx
// ends. Where there is none (ErrNoLock), probes at the same time may fail.
func LockProbe(ctx context.Context) (io.Closer, error) {
	for {
		c, err := lock(probeQueue)
		switch {
		case errors.Is(err, ErrNoLock):
			return io.NopCloser(nil), nil
		case !errors.Is(err, ErrLocked):
			return c, err
		}
		if !sleep.For(ctx, 10*time.Millisecond) {
			return nil, fmt.Errorf("waiting for another probe: %w", ctx.Err())
		}
	}
}

func lock(queue uint16) (io.Closer, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("%w: netlink socket: %w", ErrNoLock, err)
	}
	socket := os.NewFile(uintptr(fd), "netlink")
	if err := bindQueue(fd, queue); err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return socket, nil
}

func bindQueue(fd int, queue uint16) error {
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("%w: netlink socket: %w", ErrNoLock, err)
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return fmt.Errorf("%w: netlink socket: %w", ErrNoLock, err)
	}
	// The kernel answers EPERM both without the privilege and if the queue is taken.
	// A command that does nothing since Linux 3.8 distinguishes these cases.
	const bind, unbindFamily = 1, 4 // enum nfqnl_msg_config_cmds
	if err := queueCommand(fd, queue, unbindFamily); err != nil {
		return fmt.Errorf("%w: %w", ErrNoLock, err)
	}
	switch err := queueCommand(fd, queue, bind); {
	case errors.Is(err, unix.EPERM):
		return ErrLocked
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNoLock, err)
	}
	return nil
}

// queueCommand sends a command about a queue and returns its errno
// (nfnetlink_queue.h).
func queueCommand(fd int, queue uint16, command byte) error {
	const message, attribute = 2, 1 // NFQNL_MSG_CONFIG, NFQA_CFG_CMD
	b := make([]byte, 0, 28)
	b = binary.NativeEndian.AppendUint32(b, 28)
	b = binary.NativeEndian.AppendUint16(b, unix.NFNL_SUBSYS_QUEUE<<8|message)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	b = append(b, make([]byte, 8)...) // sequence and port
	b = append(b, unix.AF_UNSPEC, unix.NFNETLINK_V0)
	b = binary.BigEndian.AppendUint16(b, queue)
	b = binary.NativeEndian.AppendUint16(b, 8)
	b = binary.NativeEndian.AppendUint16(b, attribute)
	b = append(b, command, 0, 0, 0)
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	answer := make([]byte, 256)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return fmt.Errorf("receive: %w", err)
	}
	if n < 20 || binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return errLockProtocol
	}
	if errno := int32(binary.NativeEndian.Uint32(answer[16:])); errno != 0 {
		return syscall.Errno(-errno)
	}
	return nil
}
