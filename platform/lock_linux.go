package platform

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// lockName is an abstract unix socket. Its name belongs to the network
// namespace, as the rules do that it guards, and is free again when the process
// that holds it is gone, however it went: unix(7).
const lockName = "@tandem-proxy"

// Lock makes the caller the only tandem that writes in the network namespace of
// the calling thread, until it closes what it got or dies.
//
// The lock is a listener: what comes in are orders (control.go).
func Lock() (net.Listener, error) {
	l, err := net.Listen("unix", lockName)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, errors.New("another tandem works in this network namespace, and two would fight: " +
			"stop that one first (ss -xlp src " + lockName + " shows its process)")
	}
	if err != nil {
		return nil, fmt.Errorf("the lock of this network namespace, socket %s: %w", lockName, err)
	}
	return l, nil
}

func dialLock(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", lockName)
}

// trusted reports whether a connection is from root or from our own user.
func trusted(c net.Conn) (ok bool) {
	unixConn, isUnix := c.(*net.UnixConn)
	if !isUnix {
		return false
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) {
		peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		ok = err == nil && (peer.Uid == 0 || int(peer.Uid) == os.Geteuid())
	})
	return ok && err == nil
}

// place names the network namespace of the calling thread.
func place() (string, error) { return os.Readlink("/proc/thread-self/ns/net") }
