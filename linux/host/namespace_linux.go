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

// Namespace is a network namespace, kept to listen in it from any goroutine.
// Its methods are safe for concurrent use.
type Namespace struct{ file *os.File }

// ownNamespace leads to the network namespace of the thread that opens it.
const ownNamespace = "/proc/thread-self/ns/net"

// Here returns the network namespace of the calling thread. Close it.
func Here() (*Namespace, error) {
	f, err := os.Open(ownNamespace)
	if err != nil {
		return nil, fmt.Errorf("this network namespace: %w", err)
	}
	return &Namespace{f}, nil
}

// Close lets go of the namespace. What listens in it goes on.
func (n *Namespace) Close() error { return n.file.Close() }

// Listen listens in the namespace, as net.ListenConfig.Listen does for IP
// addresses. Where the caller is in it already, as in a process that never left
// its namespace, that takes no privileges.
func (n *Namespace) Listen(ctx context.Context, network, address string) (l net.Listener, err error) {
	// A goroutine of its own: a thread that cannot be led back ends with it.
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		var back bool
		l, back, err = n.listen(ctx, network, address)
		if back {
			runtime.UnlockOSThread()
		}
	}()
	<-done
	return l, err
}

// listen runs on a locked thread and says whether that is back where it was.
func (n *Namespace) listen(ctx context.Context, network, address string) (l net.Listener, back bool, err error) {
	own, err := os.Open(ownNamespace)
	if err != nil {
		return nil, true, fmt.Errorf("this network namespace: %w", err)
	}
	defer own.Close()
	same, err := sameFile(own, n.file)
	if err != nil {
		return nil, true, err
	}
	if !same {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return nil, true, fmt.Errorf("enter the proxy's network namespace: %w", err)
		}
	}
	l, err = new(net.ListenConfig).Listen(ctx, network, address)
	if same {
		return l, true, err
	}
	if errBack := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); errBack != nil {
		return l, false, err
	}
	return l, true, err
}

func sameFile(a, b *os.File) (bool, error) {
	x, errA := a.Stat()
	y, errB := b.Stat()
	if err := errors.Join(errA, errB); err != nil {
		return false, err
	}
	return os.SameFile(x, y), nil
}
