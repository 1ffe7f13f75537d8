// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// unitFile is what kardianos/service writes.
const unitFile = "/etc/systemd/system/" + Name + ".service"

// checkPrivileges returns an error where services cannot be changed.
func checkPrivileges() error {
	if os.Geteuid() != 0 {
		return os.ErrPermission
	}
	return nil
}

// installedUnit returns the file of a unit of systemd, ours or a package's; empty where there is none, or no systemd.
func installedUnit() string {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return ""
	}
	for _, path := range []string{unitFile, "/usr/lib/systemd/system/" + Name + ".service", "/lib/systemd/system/" + Name + ".service"} {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// removeUnit removes what an installation that failed may have left below a root: the file that kardianos/service
// writes first for a service manager.
func removeUnit(root, manager string) error {
	file, known := map[string]string{"linux-systemd": unitFile, "linux-openrc": "/etc/init.d/" + Name}[manager]
	if !known {
		return nil
	}
	if err := os.Remove(filepath.Join(root, file)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// checkRemovable returns an error for a service that a package installed.
func checkRemovable() error {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return nil // not systemd
	}
	if _, err := os.Stat(unitFile); err != nil {
		return fmt.Errorf("not installed by tandem install (%w): remove the package that installed it", err)
	}
	return nil
}

// CreateFolders makes the folders of the service: there are none here.
func CreateFolders() error { return nil }

// setServiceOptions sets what kardianos/service does not.
func setServiceOptions() error { return nil }

// arguments returns those by which the service manager starts the program.
func arguments(args []string) []string { return args }

// checkPermissions has nothing to check: only root can write to /usr/bin
// already.
func checkPermissions(string) error { return nil }

// CheckInput has nothing to check: the folders that services are configured in are root's,
// and a configuration that others may write is noted where it is read.
func CheckInput(string) error { return nil }

// Serve runs a program unchanged: systemd needs nothing more.
func Serve(ctx context.Context, p Program) error {
	return p.Work(ctx, os.Stderr, func() {})
}
