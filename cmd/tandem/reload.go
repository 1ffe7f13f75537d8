package main

import (
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
)

// reconfigurable is a running proxy, as its configuration sees it.
type reconfigurable interface {
	Reconfigure(next *config.Config, where string) (live *config.Config, restart []config.Change)
	Misconfigured(problems []config.Finding, where string)
}

// reloader takes over what it can of a configuration file that has changed. It
// belongs to one goroutine.
//
// kube-proxy ends itself when it notices a change, and relies on being started
// again. Here a running proxy goes on, also with --compat=lenient: what it can
// take over is in effect at once, and the rest is told in the log and in `tandem
// status`.
type reloader struct {
	flags   *configFlags
	running *config.Config // what is in effect
	proxy   reconfigurable
	log     *logger
}

// changed is told the new content of the file. One with mistakes changes
// nothing.
func (r *reloader) changed(text []byte) {
	where := r.flags.file
	next, report := r.flags.judge(text)
	if len(report.Problems) > 0 {
		r.log.Error("configuration not taken over, the last one stands", "file", where, "problems", len(report.Problems))
		r.proxy.Misconfigured(report.Problems, where)
		return
	}
	live, restart := r.proxy.Reconfigure(next, where)
	r.log.set(live)
	changed, others := config.Diff(r.running, live) // a mode that was changed is among the others
	r.running = live
	r.log.Info("configuration read again", "file", where, "live", names(append(changed, others...)), "restart", names(restart))
}

func names(cs []config.Change) string {
	var all []string
	for _, c := range cs {
		all = append(all, c.Name)
	}
	return strings.Join(all, " ")
}
