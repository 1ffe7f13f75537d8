// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
)

// Mode is the ipvs mode. Probe and Open are in mode_linux.go; elsewhere they say
// that they need Linux.
func Mode() dataplane.Mode {
	return dataplane.Mode{
		Name: Name, System: "linux", Conntrack: true, OnRequest: true, Fallback: "iptables",
		Probe: probe, Open: openBackend, Plan: plan,
	}
}

func plan(c *config.Config, host *model.Host, ports []*model.Port) dataplane.Plan {
	o := optionsOf(c)
	return dataplane.PlanOf(NewCompiler(o), host, ports, func(objects map[Key]Value) string { return Script(o, objects) })
}
