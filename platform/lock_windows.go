package platform

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/Microsoft/go-winio"
	"golang.org/x/sys/windows"
)

// lockName is a named pipe. The first to make it is the one that works here.
const lockName = `\\.\pipe\tandem-proxy`

// Administrators and the system itself may open it.
const lockAccess = "D:P(A;;GA;;;BA)(A;;GA;;;SY)"

// Lock makes the caller the only tandem that writes on this machine, until it
// closes what it got or dies.
//
// The lock is a listener: what comes in are orders (control.go).
func Lock() (net.Listener, error) {
	l, err := winio.ListenPipe(lockName, &winio.PipeConfig{SecurityDescriptor: lockAccess})
	if errors.Is(err, windows.ERROR_ACCESS_DENIED) {
		return nil, fmt.Errorf("another tandem works on this machine, and two would fight: stop that one first (or run this one as an administrator): %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("the lock of this machine, pipe %s: %w", lockName, err)
	}
	return l, nil
}

func dialLock(ctx context.Context) (net.Conn, error) { return winio.DialPipeContext(ctx, lockName) }

// trusted: the pipe itself lets nobody else in.
func trusted(net.Conn) bool { return true }

// place: this system has one network namespace that matters.
func place() (string, error) { return "", nil }
