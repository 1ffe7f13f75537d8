package platform

import (
	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
)

// Reconfigure takes over what a running proxy can of a new configuration:
// config.Diff says what that is. The rest is told as problems, until a restart or
// until the configuration is as it was. Where is the file that says so. It is
// safe for concurrent use with all but itself.
func (p *Proxy) Reconfigure(next *config.Config, where string) {
	_, restart := config.Diff(p.config, next)
	waiting := make([]model.Problem, len(restart))
	for i, c := range restart {
		waiting[i] = model.Problem{
			Object: "configuration " + c.Name, Where: where, Why: model.WhyRestart,
			Detail: "from " + shown(c.Old) + " to " + shown(c.New) + ", and " + c.Restart,
		}
	}
	p.Problems("configuration", waiting)
	merged := config.Merge(p.config, next)
	p.live.Store(merged)
	p.Retune(merged.AuditPeriod, merged.MinSyncPeriod)
	Prepare(merged, p.log)
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
