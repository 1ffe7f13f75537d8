// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"golang.org/x/sys/windows"

	"github.com/tandem-proxy/tandem/windows/host"
)

func thisSystem() system {
	s := portable()
	s.harden = func() { _ = windows.SetDefaultDllDirectories(windows.LOAD_LIBRARY_SEARCH_SYSTEM32) }
	s.lock = lockMachine
	s.dialControl = dialPipe
	s.addresses = func() (addresses, error) { return &host.Addresses{}, nil }
	return s
}
