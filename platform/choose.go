package platform

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
)

// Trial is whether a mode works on this machine: nil, or what is missing and
// how to get it.
type Trial struct {
	Mode config.Mode
	Err  error
}

// Choice is the mode to run and how it was come by. The last Trial is its own.
type Choice struct {
	dataplane.Mode
	Trials []Trial
}

// Choose returns the mode to run: the one that is named, or what it falls back
// to; for auto the first in order of preference that works on this machine. Each
// trial is logged once.
func Choose(ctx context.Context, c *config.Config, log *slog.Logger) (Choice, error) {
	modes, err := candidates(Modes(), c)
	if err != nil {
		return Choice{}, err
	}
	var choice Choice
	var failed []error
	for _, m := range modes {
		if c.Mode == config.Auto && m.Auto != nil {
			m.Probe = m.Auto
		}
		err := Probe(ctx, m)
		if ctx.Err() != nil {
			return Choice{}, ctx.Err()
		}
		choice.Trials = append(choice.Trials, Trial{m.Name, err})
		if err == nil {
			choice.Mode = m
			log.Info("mode chosen", "mode", m.Name, "asked", c.Mode)
			return choice, nil
		}
		log.Warn("mode does not work here", "mode", m.Name, "error", err)
		failed = append(failed, fmt.Errorf("mode %s: %w", m.Name, err))
	}
	return choice, errors.Join(failed...)
}

// Probe tells whether a mode works on this machine.
func Probe(ctx context.Context, m dataplane.Mode) error {
	if !serves(m, runtime.GOOS) {
		return fmt.Errorf("it is for %s, and this is %s", m.System, runtime.GOOS)
	}
	return m.Probe(ctx)
}

// candidates returns the modes that a configuration can mean, the best first.
func candidates(all []dataplane.Mode, c *config.Config) ([]dataplane.Mode, error) {
	if c.Mode == config.Auto {
		return automatic(all, runtime.GOOS), nil
	}
	m, err := named(all, c.Mode)
	if err != nil {
		return nil, err
	}
	modes := []dataplane.Mode{m}
	for !c.Strict && m.Fallback != "" && len(modes) < len(all) { // however they point at each other, it ends
		if m, err = named(all, m.Fallback); err != nil {
			return nil, fmt.Errorf("fallback of mode %s: %w", modes[len(modes)-1].Name, err)
		}
		modes = append(modes, m)
	}
	return modes, nil
}
