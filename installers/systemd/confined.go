// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Running reports whether systemd manages this machine, as sd_booted(3) does.
func Running() bool {
	info, err := os.Lstat("/run/systemd/system")
	return err == nil && info.IsDir()
}

// Readable reports why the unit's process could not read what this one can. read
// reads the file or folder at a path, and what that refers to. The unit has root's
// files, but not root's right to override the permissions of others' (CapabilityBoundingSet),
// and folders for temporary files of its own (PrivateTmp).
func Readable(path string, read func() error) error {
	const instead = "put it into /etc/tandem, owned by root"
	full, err := filepath.EvalSymlinks(path)
	if err == nil {
		full, err = filepath.Abs(full)
	}
	if err != nil {
		return err
	}
	for _, own := range []string{"/tmp/", "/var/tmp/"} {
		if strings.HasPrefix(full, own) {
			return fmt.Errorf("%s: the service has %s of its own: %s", full, strings.TrimSuffix(own, "/"), instead)
		}
	}
	if err := read(); err != nil {
		return err
	}
	err = confined(read)
	if failed := (*privilegeError)(nil); err == nil || errors.As(err, &failed) {
		return err
	}
	return fmt.Errorf("%w: the service runs as root without CAP_DAC_OVERRIDE: %s", err, instead)
}

// privilegeError is that of a thread whose privileges cannot be changed.
type privilegeError struct{ err error }

func (e *privilegeError) Error() string { return "reading files as the service does: " + e.err.Error() }
func (e *privilegeError) Unwrap() error { return e.err }
