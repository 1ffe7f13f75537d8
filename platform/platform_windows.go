// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/Microsoft/go-winio"
	"golang.org/x/sys/windows"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/diagnosis"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/windows/host"
)

func thisSystem() system {
	s := portable()
	s.harden = func() { _ = windows.SetDefaultDllDirectories(windows.LOAD_LIBRARY_SEARCH_SYSTEM32) }
	s.lock = lockMachine
	s.dialControl = dialPipe
	s.addresses = func() (addresses, error) { return &host.Addresses{}, nil }
	s.facts = func(context.Context, *config.Config) *diagnosis.Facts { return host.Facts() }
	s.usage = usage
	return s
}

// usage reads what this process has used, and the memory that Go has of the system.
func usage() (u history.Usage) {
	var created, exited, kernel, user windows.Filetime
	if err := windows.GetProcessTimes(windows.CurrentProcess(), &created, &exited, &kernel, &user); err == nil {
		for _, of := range []windows.Filetime{kernel, user} { // durations, in units of 100 ns
			u.CPU += time.Duration(int64(of.HighDateTime)<<32|int64(of.LowDateTime)) * 100
		}
	}
	u.Memory = heap("/memory/classes/total:bytes") - heap("/memory/classes/heap/released:bytes")
	return u
}

// systemPipe is a named pipe that only administrators and the system can make:
// the prefix is protected by the kernel. A pipe elsewhere belongs to its
// first creator.
const systemPipe = `\\.\pipe\ProtectedPrefix\Administrators\tandem-proxy`

// pipe returns the pipe of a process with these rights, and its access rights. One
// without administrator's rights programs nothing and has a pipe of its own.
func pipe() (name, access string, err error) {
	token := windows.GetCurrentProcessToken()
	if token.IsElevated() {
		return systemPipe, "D:P(A;;GA;;;BA)(A;;GA;;;SY)", nil
	}
	user, err := token.GetTokenUser()
	if err != nil {
		return "", "", fmt.Errorf("the user of this process: %w", err)
	}
	sid := user.User.Sid.String()
	return `\\.\pipe\tandem-proxy-` + sid, "D:P(A;;GA;;;" + sid + ")", nil
}

// pipeLock is the lock of this machine: a pipe that the first to make it has, and
// that no client connects to.
type pipeLock struct{ pipe net.Listener }

// lockMachine implements Lock.
func lockMachine() (Held, error) {
	l, err := listenPipe("-lock")
	if errors.Is(err, windows.ERROR_ACCESS_DENIED) {
		return nil, fmt.Errorf("another tandem runs on this machine; stop that one first: %w", err)
	}
	if err != nil {
		return nil, err
	}
	return &pipeLock{l}, nil
}

var _ Held = (*pipeLock)(nil)

func (h *pipeLock) Close() error { return h.pipe.Close() }

func (*pipeLock) Listen() (net.Listener, error) { return listenPipe("") }

func listenPipe(suffix string) (net.Listener, error) {
	name, access, err := pipe()
	if err != nil {
		return nil, err
	}
	l, err := winio.ListenPipe(name+suffix, &winio.PipeConfig{SecurityDescriptor: access})
	if err != nil {
		return nil, fmt.Errorf("pipe %s: %w", name+suffix, err)
	}
	return l, nil
}

func dialPipe(ctx context.Context) (net.Conn, error) {
	name, _, err := pipe()
	if err != nil {
		return nil, err
	}
	return winio.DialPipeContext(ctx, name)
}
