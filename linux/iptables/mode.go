// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
)

// Mode is the iptables mode. Probe and Open are in mode_linux.go; elsewhere they
// say that they need Linux.
func Mode() dataplane.Mode {
	return dataplane.Mode{
		Name: Name, System: "linux", Conntrack: true,
		Probe: probe, Open: openBackend, Remove: remove, KubeProxy: kubeProxy, Plan: plan,
	}
}

func plan(c *config.Config, host *model.Host, ports []*model.Port) dataplane.Plan {
	return dataplane.PlanOf(NewCompiler(optionsOf(c)), host, ports, Script)
}
