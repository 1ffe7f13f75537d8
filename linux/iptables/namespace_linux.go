package iptables

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// namespace is a network namespace, held by a file. Commands work in that of
// the thread that starts them, and goroutines may be on any thread.
type namespace struct{ file *os.File }

const threadNamespace = "/proc/thread-self/ns/net"

// currentNamespace is that of the calling thread.
func currentNamespace() (*namespace, error) {
	f, err := os.Open(threadNamespace)
	if err != nil {
		return nil, fmt.Errorf("this thread's network namespace: %w", err)
	}
	return &namespace{f}, nil
}

func (n *namespace) close() error { return n.file.Close() }

// do runs f on a thread in the namespace. In a process that is as a whole in the
// namespace, as a proxy is, that takes no privileges.
func (n *namespace) do(f func() error) error {
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
		// Never unlocked: the thread ends with this goroutine, as nobody else
		// should get one that is elsewhere.
		runtime.LockOSThread()
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter the network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

func (n *namespace) isHere() (bool, error) {
	var mine, current unix.Stat_t
	if err := unix.Fstat(int(n.file.Fd()), &mine); err != nil {
		return false, fmt.Errorf("the network namespace: %w", err)
	}
	if err := unix.Stat(threadNamespace, &current); err != nil {
		return false, fmt.Errorf("this thread's network namespace: %w", err)
	}
	return mine.Dev == current.Dev && mine.Ino == current.Ino, nil
}
