package ipvs

import (
	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
)

// Name is how --proxy-mode names this mode.
const Name config.Mode = "ipvs"

// Mode is the ipvs mode. Probe and Open are in mode_linux.go; elsewhere they say
// that they need Linux.
func Mode() dataplane.Mode {
	return dataplane.Mode{
		Name: Name, System: "linux", Conntrack: true, OnRequest: true, Fallback: "iptables",
		Probe: probe, Open: openBackend, Plan: plan,
	}
}

func options(c *config.Config) Options {
	return Options{Mark: 1 << c.MasqueradeBit, Scheduler: c.IPVS.Scheduler}
}

func plan(c *config.Config, host *model.Host, ports []*model.Port) dataplane.Plan {
	o := options(c)
	objects, gaps := dataplane.Compile(NewCompiler(o), host, ports)
	return dataplane.Plan{Native: Script(o, objects), Objects: len(objects), Gaps: gaps}
}
