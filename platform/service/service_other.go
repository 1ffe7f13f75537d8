//go:build !windows

package service

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// unitFile is what kardianos/service writes.
const unitFile = "/etc/systemd/system/" + Name + ".service"

// privileged returns an error where services cannot be changed.
func privileged() error {
	if os.Geteuid() != 0 {
		return os.ErrPermission
	}
	return nil
}

// undo takes away what an installation that failed may have left.
func undo() error {
	if err := os.Remove(unitFile); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// removable returns an error for a service that a package brought.
func removable() error {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return nil // not systemd
	}
	if _, err := os.Stat(unitFile); err != nil {
		return fmt.Errorf("tandem install did not make it (%w): remove the package that did", err)
	}
	return nil
}

// prepare makes what the service needs besides itself.
func prepare() error { return nil }

// refine sets what kardianos/service does not.
func refine() error { return nil }

// arguments returns those by which the service manager starts the program.
func arguments(args []string) []string { return args }

// guarded reports whether a program may become a service: whoever can write to
// /usr/bin is root already.
func guarded(string) error { return nil }

// Serve runs a program as it is: no service manager here wants to be talked to.
func Serve(ctx context.Context, p Program) error {
	return p.Work(ctx, os.Stderr, func() {})
}
