// SPDX-License-Identifier: Apache-2.0

// Package service installs and removes tandem as a service of the system: a systemd
// unit on Linux, a service of the service control manager on Windows, through
// kardianos/service.
//
//	tandem install ──▶ Install ──▶ unit file, or service + recovery + event source
//	service manager ─▶ tandem run ... --windows-service ──▶ Serve ──▶ Program
//	                                                          │
//	                  %ProgramData%\Tandem\logs, Event Log ◀───┘
//
// Under systemd the program runs as it does in a shell. On Windows Serve talks to the
// service control manager: it reports the progress of a start or stop, has recovery
// actions follow failures other than crashes too, and logs where it hangs.
package service

import (
	"context"
	"io"
)

// Name is the service's name, on every system.
const Name = "tandem"

// Spec describes the service to install.
type Spec struct {
	Arguments []string // of the program, "run" first
	// Unit returns the systemd unit for the program at a path. Nil is a plain
	// one.
	Unit func(program string) string

	// OpenRC returns the script of OpenRC for it. Nil is a plain one.
	OpenRC func(program string) string
}

// Program is what a service does.
type Program struct {
	// Work runs until ctx ends. It calls ready once it is, and writes its log to
	// log.
	Work func(ctx context.Context, log io.Writer, ready func()) error
	// Code is the exit code for an error that Work returned.
	Code func(error) int
}

// State is the service's state as the system reports it.
type State string

const (
	Absent  State = "not installed"
	Stopped State = "stopped"
	Running State = "running"
)
