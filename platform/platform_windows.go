// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"

	"golang.org/x/sys/windows"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/diagnosis"
	"github.com/tandem-proxy/tandem/windows/host"
)

func thisSystem() system {
	s := portable()
	s.harden = func() { _ = windows.SetDefaultDllDirectories(windows.LOAD_LIBRARY_SEARCH_SYSTEM32) }
	s.lock = lockMachine
	s.dialControl = dialPipe
	s.addresses = func() (addresses, error) { return &host.Addresses{}, nil }
	s.facts = func(context.Context, *config.Config) *diagnosis.Facts { return host.Facts() }
	return s
}
