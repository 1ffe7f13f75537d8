// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
)

// Mode is the nftables mode. Probe and Open are in mode_linux.go; elsewhere
// they say that they need Linux.
func Mode() dataplane.Mode {
	return dataplane.Mode{
		Name: config.NFTables, System: "linux", Conntrack: true,
		Probe: probe, Open: openBackend, KubeProxy: kubeProxy, Plan: plan,
	}
}

func options(c *config.Config) Options {
	return Options{Mark: 1 << c.MasqueradeBit, Liberal: c.Conntrack.TCPBeLiberal}
}

func plan(c *config.Config, host *model.Host, ports []*model.Port) dataplane.Plan {
	return dataplane.PlanOf(NewCompiler(options(c)), host, ports, table.Script)
}
