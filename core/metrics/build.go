// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Kubernetes is the release whose kube-proxy Tandem replaces.
const Kubernetes = "1.36.3"

// buildInfo are two constants about this build. kubernetes_build_info names
// the release that we replace, since alerts compare its git_version between
// all components of a cluster; tandem_build_info names our own.
func buildInfo(version string) []prometheus.Collector {
	part := strings.SplitN(Kubernetes, ".", 3)
	commit, tree, date := "", "", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				commit = s.Value
			case "vcs.time":
				date = s.Value
			case "vcs.modified":
				tree = map[string]string{"true": "dirty", "false": "clean"}[s.Value]
			}
		}
	}
	return []prometheus.Collector{
		constant("kubernetes_build_info", "Always 1; labeled with the Kubernetes version whose kube-proxy this replaces.", prometheus.Labels{
			"major": part[0], "minor": part[1], "git_version": "v" + Kubernetes + "+tandem",
			"git_commit": commit, "git_tree_state": tree, "build_date": date,
			"go_version": runtime.Version(), "compiler": runtime.Compiler, "platform": runtime.GOOS + "/" + runtime.GOARCH,
		}),
		constant("tandem_build_info", "Always 1; labeled with the version.", prometheus.Labels{"version": version}),
	}
}

func constant(name, help string, labels prometheus.Labels) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels})
	g.Set(1)
	return g
}
