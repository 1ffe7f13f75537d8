// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"reflect"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
)

// Reconfigure applies what a running proxy can of a new configuration: config.Diff
// decides which part that is. The rest is reported as problems, until a restart or until the
// configuration is as it was. Where is the file it comes from. It returns the
// configuration that is in effect then, and what needs a restart. It is safe for
// concurrent use with all but itself.
func (p *Proxy) Reconfigure(next *config.Config, where string) (live *config.Config, restart []config.Change) {
	if next.Mode != p.base.Mode {
		p.changeMode(next)
	}
	_, restart = config.Diff(p.base, next)
	pending := make([]model.Problem, len(restart))
	for i, c := range restart {
		pending[i] = model.Problem{
			Object: "configuration " + c.Name, Where: where, Why: model.WhyRestart,
			Detail: "from " + shown(c.Old) + " to " + shown(c.New) + ", and " + c.Restart,
		}
	}
	p.engine.Problems("configuration", pending)
	live = config.Merge(p.base, next)
	before := p.live.Swap(live)
	p.engine.SetTiming(live.AuditPeriod, live.MinSyncPeriod)
	p.prepare(before, live)
	return live, restart
}

// prepare sets what has changed of what Prepare sets.
func (p *Proxy) prepare(before, live *config.Config) {
	changed := *live
	if reflect.DeepEqual(before.Conntrack, live.Conntrack) {
		changed.Conntrack = config.Conntrack{}
	}
	if reflect.DeepEqual(before.OOMScoreAdj, live.OOMScoreAdj) {
		changed.OOMScoreAdj = nil
	}
	err := p.network.Do(func() error {
		p.system.set(&changed, p.log)
		return nil
	})
	if err != nil {
		p.log.Warn("setting system parameters failed", "err", err)
	}
}

// changeMode switches to the mode of a configuration. Where that
// fails the mode waits for a restart, like what else needs one.
func (p *Proxy) changeMode(next *config.Config) {
	var choice Choice
	err := p.network.Do(func() (err error) {
		choice, err = p.system.choose(p.running, next, p.log)
		return err
	})
	if err == nil && choice.Name != p.engine.Current().Mode.Name {
		_, err = p.switcher.switchTo(p.running, choice.Name, next, func(string) {})
	}
	if err != nil {
		p.log.Error("changing the mode failed; restart to retry", "mode", next.Mode, "err", err)
		return
	}
	// The new mode was opened with these; everything else is as it was.
	base := *p.base
	base.Mode, base.MasqueradeBit, base.NodePorts = next.Mode, next.MasqueradeBit, next.NodePorts
	base.IPVS, base.Windows, base.Conntrack.TCPBeLiberal = next.IPVS, next.Windows, next.Conntrack.TCPBeLiberal
	p.base = &base
}

// Misconfigured reports the problems of a configuration that was ignored.
func (p *Proxy) Misconfigured(ps []config.Finding, where string) {
	problems := make([]model.Problem, len(ps))
	for i, f := range ps {
		object := "configuration"
		if f.Name != "" {
			object += " " + f.Name
		}
		if f.Where == "" {
			f.Where = where
		}
		problems[i] = model.Problem{Object: object, Where: f.Where, Why: model.WhyInvalid, Detail: f.Text + "; keeping the configuration in effect"}
	}
	p.engine.Problems("configuration", problems)
}

func shown(s string) string {
	if s == "" {
		return "nothing"
	}
	return s
}
