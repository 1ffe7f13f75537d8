// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
)

// Mode is the userspace mode with redirect rules.
func Mode() dataplane.Mode {
	return dataplane.Mode{
		Name: relay.Mode, System: "linux",
		Probe: probe, Open: openBackend, Remove: remove, Plan: plan,
	}
}

func plan(c *config.Config, host *model.Host, ports []*model.Port) dataplane.Plan {
	objects, gaps := dataplane.Compile(NewCompiler(markOf(c)), host, ports)
	return dataplane.Plan{Native: Script(objects), Objects: len(objects), Gaps: gaps}
}
