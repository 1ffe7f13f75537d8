package platform

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/linux/iptables"
	"github.com/tandem-proxy/tandem/linux/ipvs"
	"github.com/tandem-proxy/tandem/linux/nftables"
	"github.com/tandem-proxy/tandem/windows/hns"
)

// Modes lists every mode there is, on whatever system, in the order in which
// auto tries them: each can plan everywhere, and be opened where it belongs. A
// new backend is one line here.
func Modes() []dataplane.Mode {
	return []dataplane.Mode{
		nftables.Mode(),
		iptables.Mode(),
		hns.Mode(),
		userspaceMode(),
		ipvs.Mode(),
	}
}

// Local returns the modes that can serve on this system, in order of preference.
func Local() (here []dataplane.Mode) {
	for _, m := range Modes() {
		if serves(m, runtime.GOOS) {
			here = append(here, m)
		}
	}
	return here
}

// Names returns what a configuration can name, auto first.
func Names() []string {
	names := []string{string(config.Auto)}
	for _, m := range Modes() {
		names = append(names, string(m.Name))
	}
	return names
}

// Find returns the mode that a configuration names. For auto that is the first
// of this system's order of preference, whether or not it works here. The error
// lists the names there are.
func Find(name config.Mode) (dataplane.Mode, error) {
	if name == config.Auto {
		return automatic(Modes(), runtime.GOOS)[0], nil
	}
	return named(Modes(), name)
}

// automatic returns the modes that auto can mean. Where no mode serves those
// are the ones that can at least plan.
func automatic(all []dataplane.Mode, system string) (modes []dataplane.Mode) {
	for _, m := range all {
		if !m.OnRequest && serves(m, system) {
			modes = append(modes, m)
		}
	}
	if len(modes) == 0 {
		return all
	}
	return modes
}

func serves(m dataplane.Mode, system string) bool { return m.System == "" || m.System == system }

func named(all []dataplane.Mode, name config.Mode) (dataplane.Mode, error) {
	for _, m := range all {
		if m.Name == name {
			return m, nil
		}
	}
	return dataplane.Mode{}, fmt.Errorf("%q is not a mode of this build: choose %s", name, strings.Join(Names(), " or "))
}
