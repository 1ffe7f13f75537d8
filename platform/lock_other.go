//go:build !linux && !windows

package platform

import (
	"context"
	"errors"
	"net"
)

var errNoControl = errors.New("there is no control socket on this system")

// Held is the lock of this machine.
type Held struct{}

// Lock does nothing on this system: the only mode it has keeps to itself.
func Lock() (*Held, error) { return &Held{}, nil }

// Close gives the lock up.
func (*Held) Close() error { return nil }

// Listen would open the control socket.
func (*Held) Listen() (net.Listener, error) { return nil, errNoControl }

func dialControl(context.Context) (net.Conn, error) { return nil, errNoControl }

func place() (string, error) { return "", nil }
