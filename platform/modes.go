package platform

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/linux/nftables"
)

// Modes lists every mode there is, on whatever system: each can plan
// everywhere, and be opened where it belongs. A new backend is one line here.
func Modes() []dataplane.Mode {
	return []dataplane.Mode{
		nftables.Mode(),
	}
}

// Find returns the mode that a configuration names. For auto that is the first
// of this system's order of preference, whether or not it works here.
func Find(name config.Mode) (dataplane.Mode, error) {
	if name == config.Auto {
		name = preference()[0]
	}
	for _, m := range Modes() {
		if m.Name == name {
			return m, nil
		}
	}
	return dataplane.Mode{}, fmt.Errorf("mode %q is not part of this build", name)
}

// Choose returns the mode to run: the one that is named, or for auto the first
// in order of preference that works on this machine. It says what it tried.
func Choose(ctx context.Context, name config.Mode, log *slog.Logger) (dataplane.Mode, error) {
	names := []config.Mode{name}
	if name == config.Auto {
		names = preference()
	}
	var failed []error
	for _, n := range names {
		m, err := Find(n)
		if err == nil {
			err = m.Probe(ctx)
		}
		if err == nil {
			log.Info("mode chosen", "mode", m.Name, "asked", name)
			return m, nil
		}
		if ctx.Err() != nil {
			return dataplane.Mode{}, ctx.Err()
		}
		log.Warn("mode does not work here", "mode", n, "error", err)
		failed = append(failed, fmt.Errorf("mode %s: %w", n, err))
	}
	return dataplane.Mode{}, errors.Join(failed...)
}
