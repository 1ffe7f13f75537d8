// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
)

// reconfigurable is a running proxy.
type reconfigurable interface {
	Reconfigure(next *config.Config, where string) (live *config.Config, restart []config.Change)
	Misconfigured(problems []config.Finding, where string)
}

// reloader applies what it can of a configuration file that has changed. It belongs
// to one goroutine.
//
// kube-proxy exits when it notices a change, and relies on being restarted. Here a
// running proxy continues, also with --compat=lenient: what it can apply is in
// effect at once, and the rest is shown by the log and `tandem status`.
type reloader struct {
	flags   *configFlags
	running *config.Config // the configuration in effect
	proxy   reconfigurable
	log     *logger
}

// changed takes the new content of the file. An invalid one changes nothing.
func (r *reloader) changed(text []byte) {
	where := r.flags.file
	next, report := r.flags.build(text)
	if len(report.Problems) > 0 {
		r.log.Error("invalid configuration ignored", "file", where, "problems", len(report.Problems))
		r.proxy.Misconfigured(report.Problems, where)
		return
	}
	live, restart := r.proxy.Reconfigure(next, where)
	r.log.set(live)
	changed, mode := config.Diff(r.running, live) // all of it was applied: the second list has a mode that was switched
	r.running = live
	r.log.Info("configuration reloaded", "file", where, "applied", names(append(changed, mode...)), "restart", names(restart))
}

func names(cs []config.Change) string {
	var all []string
	for _, c := range cs {
		all = append(all, c.Name)
	}
	return strings.Join(all, " ")
}
