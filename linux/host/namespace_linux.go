// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Namespace is a network namespace, kept to work in it from any goroutine.
// Its methods are safe for concurrent use.
type Namespace struct{ file *os.File }

// ownNamespace leads to the network namespace of the thread that opens it.
const ownNamespace = "/proc/thread-self/ns/net"

// OpenNamespace returns the network namespace of the calling thread. Close it.
func OpenNamespace() (*Namespace, error) {
	f, err := os.Open(ownNamespace)
	if err != nil {
		return nil, fmt.Errorf("current network namespace: %w", err)
	}
	return &Namespace{f}, nil
}

// Close releases the namespace. Sockets opened in it stay open.
func (n *Namespace) Close() error { return n.file.Close() }

// Do runs f on a thread in the namespace. It needs no privileges if the caller is
// already in it.
func (n *Namespace) Do(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, err := n.isHere()
	if err != nil {
		return err
	}
	if here {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with this goroutine, since no other
		// goroutine may run on a thread in another namespace.
		runtime.LockOSThread()
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter the network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// Listen listens in the namespace, as net.ListenConfig.Listen does for IP
// addresses.
func (n *Namespace) Listen(ctx context.Context, network, address string) (l net.Listener, err error) {
	err = n.Do(func() (err error) {
		l, err = new(net.ListenConfig).Listen(ctx, network, address)
		return err
	})
	return l, err
}

func (n *Namespace) isHere() (bool, error) {
	kept, errKept := n.file.Stat()
	current, errCurrent := os.Stat(ownNamespace)
	if err := errors.Join(errKept, errCurrent); err != nil {
		return false, fmt.Errorf("current network namespace: %w", err)
	}
	return os.SameFile(kept, current), nil
}
