// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Sysctl returns a kernel parameter by its name with slashes, such as
// "net/ipv4/ip_forward".
func Sysctl(name string) (string, error) {
	b, err := os.ReadFile(path(name))
	if err != nil {
		return "", explain(name, err)
	}
	return strings.TrimSpace(string(b)), nil
}

// EnsureSysctl sets a kernel parameter unless it has the value already. The
// error states what to set by hand where writing is not allowed.
func EnsureSysctl(name, value string) error {
	have, err := Sysctl(name)
	if err != nil {
		return err
	}
	if strings.Join(strings.Fields(have), " ") == strings.Join(strings.Fields(value), " ") {
		return nil
	}
	if err := os.WriteFile(path(name), []byte(value), 0); err != nil {
		return fmt.Errorf("it is %s and should be %s: %w", have, value, explain(name, err))
	}
	return nil
}

func path(name string) string { return filepath.Join("/proc/sys", name) }

func explain(name string, err error) error {
	var cause string
	switch {
	case errors.Is(err, fs.ErrNotExist):
		cause = "this kernel does not have it, or its module is not loaded"
	case errors.Is(err, syscall.EROFS):
		cause = "it is read-only here: set it on the host"
	case errors.Is(err, fs.ErrPermission):
		cause = "no permission: set it on the host, or run with the capability to"
	default:
		return fmt.Errorf("sysctl %s: %w", strings.ReplaceAll(name, "/", "."), err)
	}
	return fmt.Errorf("sysctl %s: %s: %w", strings.ReplaceAll(name, "/", "."), cause, err)
}
