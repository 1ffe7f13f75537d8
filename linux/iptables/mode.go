package iptables

import (
	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
)

// Name is the name of the mode.
const Name config.Mode = "iptables"

// Mode is the iptables mode. Probe and Open are in mode_linux.go; elsewhere they
// say that they need Linux.
func Mode() dataplane.Mode {
	return dataplane.Mode{
		Name: Name, System: "linux", Conntrack: true,
		Probe: probe, Open: openBackend, Remove: remove, KubeProxy: kubeProxy, Plan: plan,
	}
}

func options(c *config.Config) Options {
	return Options{Mark: 1 << c.MasqueradeBit, Liberal: c.Conntrack.TCPBeLiberal}
}

func plan(c *config.Config, host *model.Host, ports []*model.Port) dataplane.Plan {
	objects, gaps := dataplane.Compile(NewCompiler(options(c)), host, ports)
	return dataplane.Plan{Native: Script(objects), Objects: len(objects), Gaps: gaps}
}
