package platform

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
)

// lockName is an abstract unix socket. Its name belongs to the network
// namespace, as the rules do that it guards, and is free again when the process
// that holds it is gone, however it went: unix(7).
const lockName = "@tandem-proxy"

// Lock makes the caller the only tandem that writes in the network namespace of
// the calling thread, until it closes what it got or dies.
func Lock() (io.Closer, error) {
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
