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
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/core/relay/direct"
	"github.com/tandem-proxy/tandem/core/sleep"
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

// firstWorking chooses the first mode that works.
func firstWorking(ctx context.Context, modes []dataplane.Mode) (choice Choice, err error) {
	best, err := dataplane.FirstWorking(ctx, modes, func(ctx context.Context, m dataplane.Mode) error {
		err := Probe(ctx, m)
		choice.Trials = append(choice.Trials, Trial{m.Name, err})
		if err != nil {
			return fmt.Errorf("mode %s: %w", m.Name, err)
		}
		return nil
	})
	switch {
	case ctx.Err() != nil:
		return Choice{}, ctx.Err()
	case best == nil:
		return choice, err
	}
	choice.Mode = *best
	return choice, nil
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

// Switched is what a switch of modes did.
type Switched struct {
	From    config.Mode   `json:"from"`
	To      config.Mode   `json:"to"`
	Took    time.Duration `json:"took"`    // until the new mode served; in nanoseconds
	Objects int           `json:"objects"` // in the new data plane
	Gaps    []string      `json:"gaps,omitempty"`
	// Draining means that the old mode still has connections. It is
	// removed when they have ended.
	Draining bool `json:"draining,omitempty"`
}

// removalWait is how long a switch waits for the old mode to be removed before it
// reports that it drains.
const removalWait = 5 * time.Second

// switcher replaces the engine's data plane by one of another mode, and removes
// the old one when its connections have ended.
type switcher struct {
	engine     *engine.Engine
	network    network
	log        *slog.Logger
	modes      []dataplane.Mode // all there are
	privileged func() string    // as in system
	switched   func(from, to config.Mode)
	running    context.Context // ends with the proxy
	group      *sync.WaitGroup // of the proxy

	clean    chan struct{} // closed when leftovers of earlier runs were looked for
	turn     sleep.Turn    // of the one switch at a time; guards retiring
	retiring map[config.Mode]retirement
}

// switchTo changes the mode while Services are in use: the new one is programmed
// in parallel to the old one, becomes the one in use, and then the old one is removed. When
// ctx ends before that, or the new mode cannot program everything, everything stays
// as it was.
func (s *switcher) switchTo(ctx context.Context, to config.Mode, c *config.Config, phase func(string)) (Switched, error) {
	if !s.engine.Status().Synced { // leftovers of an earlier run in that mode may be the only rules that serve
		return Switched{}, engine.ErrNotReady
	}
	select { // that is soon done
	case <-s.clean:
	case <-ctx.Done():
		return Switched{}, ctx.Err()
	}
	if !s.turn.Try() {
		return Switched{}, errors.New("another switch is under way")
	}
	defer s.turn.Give()
	start := time.Now()
	from := s.engine.Current().Mode.Name
	mode, err := named(s.modes, to)
	if err != nil {
		return Switched{}, err
	}
	if mode.Name == from {
		return Switched{}, fmt.Errorf("the mode is %s already", to)
	}
	if err := s.cancelRetirement(ctx, mode.Name); err != nil {
		return Switched{}, err
	}
	phase(fmt.Sprintf("opening mode %s", to))
	next, err := s.open(ctx, mode, c)
	if err != nil {
		return Switched{}, fmt.Errorf("mode %s: %w", to, err)
	}
	phase(fmt.Sprintf("programming all Services in mode %s; %s serves until then", to, from))
	old, err := s.engine.Switch(ctx, next)
	if err != nil {
		err = fmt.Errorf("mode %s stays in use: mode %s: %w", from, to, err)
		return Switched{}, errors.Join(err, s.remove(context.WithoutCancel(ctx), next))
	}
	s.switched(from, to)
	done := Switched{From: from, To: to, Took: time.Since(start)}
	s.log.Info("mode switched", "from", from, "to", to, "took", done.Took)
	if snapshot, err := s.engine.Snapshot(ctx); err == nil {
		done.Objects, done.Gaps = snapshot.Backend.Objects, gapTexts(snapshot)
	}
	phase(fmt.Sprintf("mode %s in use; removing mode %s", to, from))
	done.Draining = s.retire(ctx, old)
	return done, nil
}

// gapTexts lists the texts of the gaps of a mode, each once: most are of many ports.
func gapTexts(s *engine.Snapshot) (texts []string) {
	for _, gaps := range s.Backend.Gaps {
		for _, g := range gaps {
			texts = append(texts, g.Detail)
		}
	}
	slices.Sort(texts)
	return slices.Compact(texts)
}

// open opens another mode in addition to the one in use.
func (s *switcher) open(ctx context.Context, mode dataplane.Mode, c *config.Config) (plane engine.DataPlane, err error) {
	plane.Mode = mode
	err = s.network.Do(func() (err error) {
		if err := Probe(ctx, mode); err != nil {
			return err
		}
		plane.Backend, err = mode.OpenWhenReady(ctx, c, s.log)
		return err
	})
	return plane, err
}

// retirement is an old mode that drains and is removed then.
type retirement struct {
	stop context.CancelFunc
	done chan struct{} // closed when it is over
}

// retire drains and removes an old mode in the background, and reports whether
// that takes longer than removalWait.
func (s *switcher) retire(waiting context.Context, old engine.DataPlane) (draining bool) {
	ctx, stop := context.WithCancel(s.running)
	r := retirement{stop, make(chan struct{})}
	s.retiring[old.Mode.Name] = r
	s.group.Go(func() {
		defer close(r.done)
		defer stop()
		switch err := s.drain(ctx, old); {
		case ctx.Err() != nil && s.running.Err() == nil:
			s.log.Info("old mode kept: switching back", "mode", old.Mode.Name)
		case ctx.Err() != nil:
			s.log.Info("old mode still has connections and was not removed; run tandem cleanup while no tandem runs", "mode", old.Mode.Name)
		case err != nil:
			s.log.Warn("removing old mode failed; run tandem cleanup while no tandem runs", "mode", old.Mode.Name, "err", err)
		}
	})
	select {
	case <-r.done:
		return false
	case <-time.After(removalWait):
	case <-waiting.Done():
	}
	return true
}

// cancelRetirement ends the retirement of a mode that is to be used again. What is
// left of it is adopted when it is opened again.
func (s *switcher) cancelRetirement(ctx context.Context, name config.Mode) error {
	r, ok := s.retiring[name]
	if !ok {
		return nil
	}
	r.stop()
	select {
	case <-r.done:
		delete(s.retiring, name)
		return nil
	case <-ctx.Done():
		return fmt.Errorf("mode %s is still being removed: %w", name, ctx.Err())
	}
}

// drain waits for the connections of a data plane, removes its objects and
// closes it. When ctx ends before, they stay.
func (s *switcher) drain(ctx context.Context, old engine.DataPlane) error {
	if err := old.Drain(ctx); err != nil {
		return errors.Join(fmt.Errorf("mode %s: drain: %w", old.Mode.Name, err), old.Close())
	}
	return s.remove(ctx, old)
}

// remove removes the objects of a data plane and closes it.
func (s *switcher) remove(ctx context.Context, plane engine.DataPlane) error {
	err := errors.Join(plane.Remove(ctx), plane.Close())
	if err != nil {
		return fmt.Errorf("remove mode %s: %w", plane.Mode.Name, err)
	}
	s.log.Debug("mode removed", "mode", plane.Mode.Name)
	return nil
}

// removeLeftovers waits until everything is programmed and then removes the objects that were
// there before in other modes. Objects of an earlier tandem, after another
// configuration or an interrupted switch, are removed at once, or with their last connection;
// kube-proxy's are removed with --takeover.
func (s *switcher) removeLeftovers(ctx context.Context, c *config.Config) {
	defer close(s.clean)
	if s.privileged() != "" { // nothing can be removed, or looked for
		return
	}
	select {
	case <-s.engine.Programmed():
	case <-ctx.Done():
		return
	}
	if s.turn.Take(ctx) != nil {
		return
	}
	defer s.turn.Give()
	err := s.network.Do(func() error {
		for _, m := range local(s.modes) {
			if m.Name != s.engine.Current().Mode.Name {
				s.removeEarlier(ctx, m, c)
			}
		}
		s.checkKubeProxy(ctx, c)
		return nil
	})
	if err != nil {
		s.log.Warn("removing leftovers of other modes failed; run tandem cleanup while no tandem runs", "err", err)
	}
}

// removeEarlier removes what an earlier run has left in a mode, when the connections
// that depend on it have ended. In a mode with Remove none outlives the process.
func (s *switcher) removeEarlier(ctx context.Context, m dataplane.Mode, c *config.Config) {
	var left dataplane.Backend
	var err error
	if m.Remove != nil {
		err = m.Remove(ctx, c)
	} else {
		left, err = m.OpenLeftovers(ctx, c, s.log)
	}
	switch {
	case left != nil:
		s.retire(ctx, engine.DataPlane{Mode: m, Backend: left})
	case err != nil && !errors.Is(err, dataplane.ErrAbsent) && ctx.Err() == nil:
		s.log.Warn("removing leftovers of an earlier run failed", "mode", m.Name, "err", err)
	}
}

// checkKubeProxy removes kube-proxy's leftovers, or reports them.
func (s *switcher) checkKubeProxy(ctx context.Context, c *config.Config) {
	if c.TakeOver {
		if !slices.ContainsFunc(local(s.modes), func(m dataplane.Mode) bool { return m.KubeProxy != nil }) {
			s.log.Warn("--takeover has no effect on this system: kube-proxy's objects cannot be told from other programs'; a reboot clears it")
			return
		}
		found, err := takeOver(ctx, local(s.modes))
		if err != nil && ctx.Err() == nil {
			s.log.Warn("removing kube-proxy's rules failed in part", "err", err)
		}
		if len(found) > 0 {
			s.log.Info("kube-proxy's rules removed", "removed", strings.Join(found, ", "))
		}
		return
	}
	var problems []model.Problem
	for _, m := range local(s.modes) {
		if m.KubeProxy == nil {
			continue
		}
		left, err := m.KubeProxy(ctx)
		if err != nil && !errors.Is(err, dataplane.ErrAbsent) && ctx.Err() == nil {
			s.log.Warn("checking for kube-proxy's rules failed", "mode", m.Name, "err", err)
		}
		if err != nil || len(left.Found) == 0 {
			continue
		}
		problems = append(problems, model.Problem{
			Object: "kube-proxy", Why: model.WhyOtherProxy,
			Detail: strings.Join(left.Found, ", ") + "; stop kube-proxy and start tandem with --takeover",
		})
	}
	s.engine.Problems("kube-proxy", problems)
}

// takeOver removes kube-proxy's leftovers of the given modes.
func takeOver(ctx context.Context, modes []dataplane.Mode) (found []string, err error) {
	for _, m := range modes {
		if m.KubeProxy == nil {
			continue
		}
		left, failed := m.KubeProxy(ctx)
		if failed == nil && len(left.Found) > 0 {
			found = append(found, left.Found...)
			failed = left.Remove(ctx)
		}
		if failed != nil && !errors.Is(failed, dataplane.ErrAbsent) {
			err = errors.Join(err, fmt.Errorf("mode %s: %w", m.Name, failed))
		}
	}
	return found, err
}
