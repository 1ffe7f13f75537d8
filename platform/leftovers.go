// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
)

// Removal is what became of one mode's objects.
type Removal struct {
	Mode config.Mode
	// Absent is why there can be none; Err means that they could not all be removed.
	Absent, Err error
}

// RemoveAll deletes what tandem has programmed on this machine in each of some
// modes, and nothing else. A mode that fails does not stop the others.
func RemoveAll(ctx context.Context, c *config.Config, modes []dataplane.Mode) (done []Removal) {
	for _, m := range modes {
		r := Removal{Mode: m.Name}
		if err := m.Clear(ctx, c); errors.Is(err, dataplane.ErrAbsent) {
			r.Absent = err
		} else {
			r.Err = err
		}
		done = append(done, r)
	}
	return done
}

// removeLeftovers waits until everything is programmed and then removes the objects that were
// there before in other modes. What an earlier tandem has left, after another
// configuration or an interrupted switch, goes at once, or with its last connection;
// what kube-proxy has left, with --takeover.
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
	if s.turn.take(ctx) != nil {
		return
	}
	defer s.turn.give()
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

// checkKubeProxy removes what kube-proxy has left, or reports it.
func (s *switcher) checkKubeProxy(ctx context.Context, c *config.Config) {
	if c.TakeOver {
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

// takeOver removes what kube-proxy has left in any of some modes.
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
