// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/core/relay/direct"
	"github.com/tandem-proxy/tandem/linux/iptables"
	"github.com/tandem-proxy/tandem/linux/ipvs"
	"github.com/tandem-proxy/tandem/linux/nftables"
	linux "github.com/tandem-proxy/tandem/linux/userspace"
	"github.com/tandem-proxy/tandem/windows/hns"
	windows "github.com/tandem-proxy/tandem/windows/userspace"
)

// Modes lists every mode, whatever its system, in the order in which auto tries
// them: each can plan everywhere, and be opened where it belongs. A new backend is
// one line here. Node ports on loopback addresses are served by relays, but where a
// mode does that itself.
func Modes() []dataplane.Mode { return modesOn(runtime.GOOS, noHandover) }

// noHandover passes no sockets on.
func noHandover() relay.Handover { return nil }

// modesOn are the same with the relays of a system, whose sockets are handed over.
func modesOn(system string, handover func() relay.Handover) []dataplane.Mode {
	return []dataplane.Mode{
		direct.ServeLoopback(nftables.Mode(), handover),
		direct.ServeLoopback(iptables.Mode(), handover),
		hns.Mode(),
		userspaceMode(system, handover),
		direct.ServeLoopback(ipvs.Mode(), handover),
	}
}

// userspaceMode is relays, and a system's ways to redirect connections to them.
func userspaceMode(system string, handover func() relay.Handover) dataplane.Mode {
	ways := []dataplane.Mode{linux.Mode(handover), windows.Mode(), direct.LoopbackMode()}
	here := slices.DeleteFunc(ways, func(m dataplane.Mode) bool { return !serves(m, system) })
	return dataplane.FirstOf(relay.Mode, here...)
}

// all returns the modes that can be configured on a system, in the order of auto.
func (s system) all() []dataplane.Mode {
	if s.modes != nil {
		return s.modes()
	}
	return Modes()
}

// Local returns the modes that can serve on this system, in order of preference.
func Local() []dataplane.Mode { return local(Modes()) }

func local(all []dataplane.Mode) (here []dataplane.Mode) {
	for _, m := range all {
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

// Trial is the result of probing a mode: nil, or the missing parts and how to get
// it.
type Trial struct {
	Mode config.Mode
	Err  error
}

// Choice is the mode to run, and the trials that led to it, its own last.
type Choice struct {
	dataplane.Mode
	Trials []Trial
	Lacks  string // the privilege without which only loopback addresses are served; else empty
}

// choose returns the mode to run: the named one, or its fallback; for auto the first in
// order of preference that works on this machine. Each trial is logged once.
func (s system) choose(ctx context.Context, c *config.Config, log *slog.Logger) (Choice, error) {
	modes, err := s.candidates(c)
	if err != nil {
		return Choice{}, err
	}
	lacks := s.loopbackOnly(c)
	if lacks != "" {
		log.Warn("unprivileged; Services are served on loopback addresses only", "lacks", lacks)
	}
	choice, err := firstWorking(ctx, modes)
	choice.Lacks = lacks
	for _, t := range choice.Trials {
		if t.Err != nil {
			log.Warn("mode unavailable", "mode", t.Mode, "err", t.Err)
		}
	}
	if err == nil {
		log.Info("mode chosen", "mode", choice.Name, "configured", c.Mode)
	}
	return choice, err
}

// firstWorking tries modes until one works, or until whether one works cannot be found
// out: another mode would remove what that one has programmed.
func firstWorking(ctx context.Context, modes []dataplane.Mode) (choice Choice, err error) {
	var failed []error
	for _, m := range modes {
		err := Probe(ctx, m)
		if ctx.Err() != nil {
			return Choice{}, ctx.Err()
		}
		choice.Trials = append(choice.Trials, Trial{m.Name, err})
		if err == nil {
			choice.Mode = m
			return choice, nil
		}
		failed = append(failed, fmt.Errorf("mode %s: %w", m.Name, err))
		if errors.Is(err, dataplane.ErrUndecided) {
			break
		}
	}
	return choice, errors.Join(failed...)
}

// Fallback is why the first of the configured modes is not the one that was
// chosen; empty when it is.
func (c Choice) Fallback() string {
	if c.Lacks != "" {
		return "this process lacks " + c.Lacks + "; Services are served on loopback addresses only"
	}
	if len(c.Trials) == 0 || c.Trials[0].Err == nil {
		return ""
	}
	return fmt.Sprintf("%s is unavailable: %v", c.Trials[0].Mode, c.Trials[0].Err)
}

// loopbackOnly returns the missing privilege without which auto can only mean relays on
// loopback addresses; empty if auto means all modes. In a pod that watches its cluster
// a missing privilege is a mistake: there auto fails.
func (s system) loopbackOnly(c *config.Config) (lacks string) {
	inCluster := os.Getenv("KUBERNETES_SERVICE_HOST") != "" && c.Source() == config.InCluster
	if c.Mode != config.Auto || inCluster {
		return ""
	}
	return s.privileged()
}

// Probe returns nil when a mode works on this machine.
func Probe(ctx context.Context, m dataplane.Mode) error {
	if !serves(m, runtime.GOOS) {
		return fmt.Errorf("requires %s, not %s", m.System, runtime.GOOS)
	}
	return m.Probe(ctx)
}

// candidates returns the modes that a configuration can mean, the best first.
func (s system) candidates(c *config.Config) ([]dataplane.Mode, error) {
	all := s.all()
	if s.loopbackOnly(c) != "" {
		m, err := named(all, relay.Mode)
		return []dataplane.Mode{m}, err
	}
	if c.Mode == config.Auto {
		modes := slices.Clone(automatic(all, runtime.GOOS))
		for i := range modes {
			if auto := modes[i].Auto; auto != nil {
				modes[i].Probe = auto
			}
		}
		return modes, nil
	}
	m, err := named(all, c.Mode)
	if err != nil {
		return nil, err
	}
	modes := []dataplane.Mode{m}
	for !c.Strict && m.Fallback != "" && len(modes) < len(all) { // bounded even if fallbacks form a circle
		if m, err = named(all, m.Fallback); err != nil {
			return nil, fmt.Errorf("fallback of mode %s: %w", modes[len(modes)-1].Name, err)
		}
		modes = append(modes, m)
	}
	return modes, nil
}
