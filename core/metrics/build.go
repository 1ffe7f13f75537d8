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

// componentMetrics are what the framework of Kubernetes' components says of itself:
// the gates of kube-proxy whose features Tandem always has, and how many metrics are
// registered, hidden and disabled, for dashboards of all components.
func componentMetrics(registered func() float64) []prometheus.Collector {
	features := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kubernetes_feature_enabled", Help: "Feature gates of kube-proxy whose features are there; Tandem has no gates.",
	}, []string{"name", "stage"})
	for _, name := range []string{"MultiCIDRServiceAllocator", "NFTablesProxyMode", "PreferSameTrafficDistribution", "WinDSR", "WinOverlay"} {
		features.WithLabelValues(name, "").Set(1) // GA has no stage
	}
	for _, name := range []string{"ComponentFlagz", "ComponentStatusz"} {
		features.WithLabelValues(name, "BETA").Set(1)
	}
	none := func(name, help string) prometheus.Collector {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	return []prometheus.Collector{
		features,
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "registered_metrics_total", Help: "Registered metrics; none has a stability level or is deprecated.",
			ConstLabels: prometheus.Labels{"stability_level": "", "deprecated_version": ""},
		}, registered),
		none("disabled_metrics_total", "Disabled metrics: none."),
		none("hidden_metrics_total", "Hidden metrics: none."),
	}
}

func constant(name, help string, labels prometheus.Labels) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels})
	g.Set(1)
	return g
}
