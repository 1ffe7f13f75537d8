package platform

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/linux/nftables"
)

// Modes lists every mode there is, on whatever system, in the order in which
// auto tries them: each can plan everywhere, and be opened where it belongs. A
// new backend is one line here.
func Modes() []dataplane.Mode {
	return []dataplane.Mode{
		nftables.Mode(),
		userspaceMode(),
	}
}

// Local returns the modes that can serve on this system, in order of preference.
func Local() (here []dataplane.Mode) {
	for _, m := range Modes() {
		if m.System == "" || m.System == runtime.GOOS {
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

// candidates returns the modes that a name can mean. Where no mode serves, auto
// means those that can at least plan.
func candidates(name config.Mode) ([]dataplane.Mode, error) {
	if name == config.Auto {
		if here := Local(); len(here) > 0 {
			return here, nil
		}
		return Modes(), nil
	}
	for _, m := range Modes() {
		if m.Name == name {
			return []dataplane.Mode{m}, nil
		}
	}
	return nil, fmt.Errorf("%q is not a mode of this build: choose %s", name, strings.Join(Names(), " or "))
}

// Find returns the mode that a configuration names. For auto that is the first
// of this system's order of preference, whether or not it works here. The error
// lists the names there are.
func Find(name config.Mode) (dataplane.Mode, error) {
	found, err := candidates(name)
	if err != nil {
		return dataplane.Mode{}, err
	}
	return found[0], nil
}

// Choose returns the mode to run: the one that is named, or for auto the first
// in order of preference that works on this machine. It says what it tried.
func Choose(ctx context.Context, name config.Mode, log *slog.Logger) (dataplane.Mode, error) {
	modes, err := candidates(name)
	if err != nil {
		return dataplane.Mode{}, err
	}
	var failed []error
	for _, m := range modes {
		err := m.Probe(ctx)
		if err == nil {
			log.Info("mode chosen", "mode", m.Name, "asked", name)
			return m, nil
		}
		if ctx.Err() != nil {
			return dataplane.Mode{}, ctx.Err()
		}
		log.Warn("mode does not work here", "mode", m.Name, "error", err)
		failed = append(failed, fmt.Errorf("mode %s: %w", m.Name, err))
	}
	return dataplane.Mode{}, errors.Join(failed...)
}
