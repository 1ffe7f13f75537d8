// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"errors"
	"io/fs"
	"log/slog"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
)

// Harden makes the process load libraries from the system's folder only, never
// from its own or the one it was started from. It is for the first line of a
// program; systems that cannot do it do not need it.
func Harden() { thisSystem().harden() }

// Lock makes the caller the only tandem that writes on this machine, or in the
// network namespace of the calling thread, until it closes the lock or exits.
// On systems without data planes to share it does nothing.
func Lock() (Held, error) { return thisSystem().lock() }

// Prepare sets what a configuration asks of the system besides Services, and
// settings that stay when the process ends: only they need more privileges than
// CAP_NET_ADMIN, and what `--init-only` does. What cannot be set is logged with
// what to do, and returned where the system has such a parameter: in a container it
// often is right already, and a proxy serves without it.
func Prepare(c *config.Config, log *slog.Logger) error { return thisSystem().set(c, log) }

func (s system) set(c *config.Config, log *slog.Logger) error {
	var failed []error
	for _, err := range s.prepare(c, log) {
		log.Warn("setting system parameter failed", "err", err)
		if !errors.Is(err, fs.ErrNotExist) { // of connection tracking that is not loaded yet
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// Listeners tells which processes of this machine listen. It is an error where the system cannot
// tell. Close it after use.
func Listeners() (Listening, error) {
	open := thisSystem().listeners
	if open == nil {
		return nil, errors.New("this system does not tell which processes listen")
	}
	return open()
}

// LocalAddresses returns the addresses of this machine, read once.
func LocalAddresses() ([]model.LocalAddress, error) {
	a, err := thisSystem().addresses()
	if err != nil {
		return nil, err
	}
	defer a.Close()
	return a.List()
}
