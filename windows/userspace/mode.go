package userspace

import (
	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/core/relay/direct"
)

// Mode is the userspace mode by addresses on an adapter.
func Mode() dataplane.Mode {
	return dataplane.Mode{Name: relay.Mode, System: "windows", Probe: probe, Open: open, Plan: plan}
}

func plan(_ *config.Config, host *model.Host, ports []*model.Port) dataplane.Plan {
	objects, gaps := dataplane.Compile(direct.NewCompiler(direct.Adapter{}), host, ports)
	return dataplane.Plan{Native: direct.Table(objects), Objects: len(objects), Gaps: gaps}
}

// place is where Services are put.
func place(loopback bool) direct.Placing {
	if loopback {
		return private{}
	}
	return direct.Adapter{}
}

// private is the adapter of a machine that has none for containers.
type private struct{ direct.Adapter }

// Note implements direct.Placing.
func (private) Note() string {
	return "but for node ports only this machine is served: it has no adapter for containers, so the addresses are on its loopback adapter"
}
