package hns

import (
	"net/netip"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
)

// Name is the mode's name, kube-proxy's for Windows.
const Name config.Mode = "kernelspace"

// Mode is the kernelspace mode. Probe and Open are in mode_windows.go;
// elsewhere they say that they need Windows.
func Mode() dataplane.Mode {
	return dataplane.Mode{Name: Name, System: "windows", Probe: probe, Await: awaitNetwork, Open: openBackend, Remove: remove, Plan: plan}
}

// plan is for a current Windows and an l2bridge network: what the node has is
// not known here.
func plan(c *config.Config, host *model.Host, ports []*model.Port) dataplane.Plan {
	o := Newest()
	o.ClientDSR, o.Probes = c.Windows.DSR, probes(c)
	objects, gaps := dataplane.Compile(NewCompiler(o), host, ports)
	return dataplane.Plan{Native: Script(objects, o.Overlay), Objects: len(objects), Gaps: gaps}
}

// options are what this HNS can do of what the configuration asks for.
func options(v Version, n Network, c *config.Config) Options {
	f := v.Features()
	return Options{
		Overlay: describe(n).overlay, DSR: f.DSR, ClientDSR: c.Windows.DSR,
		Affinity: f.Affinity, DualStack: f.DualStack, Probes: probes(c),
	}
}

// probes are what the configuration says of health checks.
func probes(c *config.Config) Probes {
	p := Probes{Forward: c.Windows.ForwardHealthCheckVIP}
	if a, err := netip.ParseAddrPort(c.HealthAddress); err == nil {
		p.Port = a.Port()
	}
	return p
}
