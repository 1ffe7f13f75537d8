package platform

import (
	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
)

// Reconfigure takes over what a running proxy can of a new configuration:
// config.Diff says what that is. The rest is told as problems, until a restart or
// until the configuration is as it was. Where is the file that says so. It
// returns the configuration that is in effect then, and what waits for a restart.
// It is safe for concurrent use with all but itself.
func (p *Proxy) Reconfigure(next *config.Config, where string) (live *config.Config, restart []config.Change) {
	if next.Mode != p.base.Mode {
		p.changeMode(next)
	}
	_, restart = config.Diff(p.base, next)
	waiting := make([]model.Problem, len(restart))
	for i, c := range restart {
		waiting[i] = model.Problem{
			Object: "configuration " + c.Name, Where: where, Why: model.WhyRestart,
			Detail: "from " + shown(c.Old) + " to " + shown(c.New) + ", and " + c.Restart,
		}
	}
	p.Problems("configuration", waiting)
	live = config.Merge(p.base, next)
	p.live.Store(live)
	p.Retune(live.AuditPeriod, live.MinSyncPeriod)
	Prepare(live, p.log)
	return live, restart
}

// changeMode switches to the mode that a configuration asks for. Where that
// fails the mode waits for a restart, like what else cannot be taken over.
func (p *Proxy) changeMode(next *config.Config) {
	choice, err := Choose(p.running, next, p.log)
	if err == nil && choice.Name != p.current().Name {
		_, err = p.switchTo(p.running, choice.Name, next)
	}
	if err != nil {
		p.log.Error("the mode was not changed", "mode", next.Mode, "error", err)
		return
	}
	// The new mode was opened with these; everything else is as it was.
	base := *p.base
	base.Mode, base.MasqueradeBit, base.NodePorts = next.Mode, next.MasqueradeBit, next.NodePorts
	base.IPVS, base.Windows, base.Conntrack.TCPBeLiberal = next.IPVS, next.Windows, next.Conntrack.TCPBeLiberal
	p.base = &base
}

// Misconfigured tells what is wrong with a configuration that is not taken over.
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
		problems[i] = model.Problem{Object: object, Where: f.Where, Why: model.WhyInvalid, Detail: f.Text + "; what was there stands"}
	}
	p.Problems("configuration", problems)
}

func shown(s string) string {
	if s == "" {
		return "nothing"
	}
	return s
}
