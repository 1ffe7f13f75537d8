//go:build !windows

package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// Serve is for Windows.
func Serve(*slog.Logger, func(ctx context.Context, ready func()) error) error {
	return errors.New("--windows-service is for Windows; on this system the service manager runs the program as it is")
}
