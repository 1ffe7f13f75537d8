package platform

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/Microsoft/go-winio"
	"golang.org/x/sys/windows"
)

// systemPipe is a named pipe that only administrators and the system can make:
// the prefix is protected by the kernel. A pipe elsewhere belongs to whoever
// makes it first.
const systemPipe = `\\.\pipe\ProtectedPrefix\Administrators\tandem-proxy`

// pipe returns the pipe of a process with these rights, and who may open it. One
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

// Held is the lock of this machine: a pipe that the first to make it has, and
// that nobody connects to.
type Held struct{ pipe net.Listener }

// Lock makes the caller the only tandem that writes on this machine, until it
// closes what it got or dies.
func Lock() (*Held, error) {
	l, err := listen("-lock")
	if errors.Is(err, windows.ERROR_ACCESS_DENIED) {
		return nil, fmt.Errorf("another tandem works on this machine, and two would fight: stop that one first: %w", err)
	}
	if err != nil {
		return nil, err
	}
	return &Held{l}, nil
}

// Close gives the lock up.
func (h *Held) Close() error { return h.pipe.Close() }

// Listen opens the control pipe.
func (*Held) Listen() (net.Listener, error) { return listen("") }

func listen(suffix string) (net.Listener, error) {
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

func dialControl(ctx context.Context) (net.Conn, error) {
	name, _, err := pipe()
	if err != nil {
		return nil, err
	}
	return winio.DialPipeContext(ctx, name)
}

// place: this system has one network namespace that matters.
func place() (string, error) { return "", nil }
