// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"log/slog"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/linux/conntrack"
	"github.com/tandem-proxy/tandem/linux/host"
)

func thisSystem() system {
	s := portable()
	s.lock = lockNamespace
	s.dialControl = dialNamespace
	s.network = func() (network, error) { return host.OpenNamespace() }
	s.addresses = func() (addresses, error) { return host.OpenAddresses(host.Dummies) }
	s.flows = func() (flowTable, error) { return conntrack.Open() }
	s.facts = linuxFacts
	s.prepare = func(c *config.Config, log *slog.Logger) []error { return host.Prepare("/", c, log) }
	s.limitMemory = limitMemoryToCgroup
	s.releaseText = releaseMappedText
	return s
}
