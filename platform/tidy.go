package platform

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
)

// Removal is what became of one mode's objects.
type Removal struct {
	Mode config.Mode
	// Absent says why there can be none; Err that they could not all be removed.
	Absent, Err error
}

// RemoveAll deletes what tandem has programmed on this machine in each of some
// modes, and nothing else. One that fails keeps none of the others from it.
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

// tidy waits until everything is programmed and then removes what was there
// before in other modes: first serve, then clear away. What an earlier tandem
// has left, after another configuration or a switch that was cut short, goes at
// once, or with its last connection; what kube-proxy has left, when the user asked
// for it.
func (p *Proxy) tidy(ctx context.Context) {
	defer close(p.tidied)
	if !p.Ready(ctx) {
		return
	}
	if err := p.here(); err != nil {
		p.log.Warn("what was there before in other modes stays", "error", err)
		return
	}
	if p.switching.take(ctx) != nil {
		return
	}
	defer p.switching.give()
	for _, m := range Local() {
		if m.Name != p.current().Name {
			p.clear(ctx, m)
		}
	}
	p.inherit(ctx)
}

// clear removes what an earlier run has left in a mode, when the connections that
// live in it have ended. In one that can be cleared without being opened none
// lives longer than the process did.
func (p *Proxy) clear(ctx context.Context, m dataplane.Mode) {
	var left dataplane.Backend
	var err error
	if m.Remove != nil {
		err = m.Remove(ctx, p.config)
	} else {
		left, err = m.OpenWhenReady(ctx, p.config)
	}
	switch {
	case left != nil:
		p.retireSoon(m, left)
	case err == nil:
	case !errors.Is(err, dataplane.ErrAbsent):
		p.log.Warn("what an earlier run may have left in another mode was not removed", "mode", m.Name, "error", err)
	}
}

// inherit removes what kube-proxy has left, or tells of it.
func (p *Proxy) inherit(ctx context.Context) {
	if p.config.TakeOver {
		found, err := takeOver(ctx)
		if err != nil {
			p.log.Warn("not all that kube-proxy has left was removed", "error", err)
		}
		if len(found) > 0 {
			p.log.Info("kube-proxy's rules are replaced", "removed", strings.Join(found, ", "))
		}
		return
	}
	var problems []model.Problem
	for _, m := range Local() {
		if m.KubeProxy == nil {
			continue
		}
		left, err := m.KubeProxy(ctx)
		if err != nil && !errors.Is(err, dataplane.ErrAbsent) && ctx.Err() == nil {
			p.log.Warn("cannot look for what kube-proxy has left", "mode", m.Name, "error", err)
		}
		if err != nil || len(left.Found) == 0 {
			continue
		}
		problems = append(problems, model.Problem{
			Object: "kube-proxy", Why: model.WhyOtherProxy,
			Detail: strings.Join(left.Found, ", ") + "; stop kube-proxy and start tandem with --takeover",
		})
	}
	p.Problems("kube-proxy", problems)
}

// takeOver removes what kube-proxy has left in any mode.
func takeOver(ctx context.Context) (found []string, err error) {
	for _, m := range Local() {
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
