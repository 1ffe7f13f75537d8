// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
)

// Labels of kube-proxy's metrics.
const (
	familyLabel = "ip_family" // "IPv4" or "IPv6"
	policyLabel = "traffic_policy"
)

// kubeProxySet are the metrics that kube-proxy has in every mode, as of 1.37, but
// for those that scrapeCollector reads from the engine.
type kubeProxySet struct {
	syncTook           *prometheus.HistogramVec
	fullTook, partTook *prometheus.HistogramVec
	programming        *prometheus.HistogramVec
	noLocal            *prometheus.GaugeVec
	healthz, livez     *prometheus.CounterVec
	flowsTook          *prometheus.HistogramVec
	flowsDeleted       *prometheus.CounterVec
}

func newKubeProxySet() kubeProxySet {
	sync := prometheus.ExponentialBuckets(0.001, 2, 15)
	return kubeProxySet{
		syncTook:    histogram("sync_proxy_rules_duration_seconds", "Duration of a sync, for each IP family it changed.", sync),
		fullTook:    histogram("sync_full_proxy_rules_duration_seconds", "Duration of a full sync: at the start, and after a change of the node.", sync),
		partTook:    histogram("sync_partial_proxy_rules_duration_seconds", "Duration of a partial sync.", sync),
		programming: histogram("network_programming_duration_seconds", "Time from a change of a Service or pod in the cluster until it was programmed on this node.", programmingBuckets()),
		noLocal: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
			Help: "Service ports with traffic policy Local that have endpoints, but none on this node.",
		}, []string{policyLabel, familyLabel}),
		healthz:      counterVec("proxy_healthz_total", "Responses of /healthz by HTTP status.", "code"),
		livez:        counterVec("proxy_livez_total", "Responses of /livez by HTTP status.", "code"),
		flowsTook:    histogram("conntrack_reconciler_sync_duration_seconds", "Duration of a cleanup of stale conntrack entries.", sync),
		flowsDeleted: counterVec("conntrack_reconciler_deleted_entries_total", "Stale conntrack entries deleted.", familyLabel),
	}
}

func (p *kubeProxySet) all() []prometheus.Collector {
	for _, f := range model.Families() { // there from the start: rates need a first value
		for _, policy := range []string{"internal", "external"} {
			p.noLocal.WithLabelValues(policy, f.String())
		}
		for _, h := range []*prometheus.HistogramVec{p.syncTook, p.fullTook, p.partTook, p.programming, p.flowsTook} {
			h.WithLabelValues(f.String())
		}
		p.flowsDeleted.WithLabelValues(f.String())
	}
	return []prometheus.Collector{p.syncTook, p.fullTook, p.partTook, p.programming, p.noLocal, p.healthz, p.livez, p.flowsTook, p.flowsDeleted}
}

func (p *kubeProxySet) synced(s engine.Sync) {
	for f, is := range changedFamilies(s) {
		if !is {
			continue
		}
		f := model.Family(f)
		p.syncTook.WithLabelValues(f.String()).Observe(s.Took.Seconds())
		kind := p.partTook
		if s.Full {
			kind = p.fullTook
		}
		kind.WithLabelValues(f.String()).Observe(s.Took.Seconds())
	}
	for _, t := range s.Triggered {
		p.programming.WithLabelValues(t.Family.String()).Observe(since(t.At))
	}
	for _, d := range s.Applied {
		p.count(d.Old, -1)
		p.count(d.New, 1)
	}
}

// changedFamilies reports which families a sync changed: both where it repaired or
// retried, which is not known by family.
func changedFamilies(s engine.Sync) [2]bool {
	if s.Ports == [2]int{} {
		return [2]bool{true, true}
	}
	return [2]bool{s.Ports[model.IPv4] > 0, s.Ports[model.IPv6] > 0}
}

// count adds or removes a port from the number of ports without local endpoints.
func (p *kubeProxySet) count(port *model.Port, n float64) {
	if port == nil {
		return
	}
	for _, policy := range withoutLocal(port) {
		p.noLocal.WithLabelValues(policy, port.ID.Family.String()).Add(n)
	}
}

// withoutLocal reports for which of its traffic policies a port has no endpoint here.
func withoutLocal(port *model.Port) (policies []string) {
	for i := range port.Frontends {
		f := &port.Frontends[i]
		policy := "external"
		if f.Kind == model.KindClusterIP {
			policy = "internal"
		}
		if f.On[model.FromOutside].Why == model.WhyNoLocalEndpoints && !slices.Contains(policies, policy) {
			policies = append(policies, policy)
		}
	}
	return policies
}

// programmingBuckets are those of the network programming latency SLI: 0, 0.25 s,
// 0.5 s, each second up to 59 s, each 5 s up to 115 s, each 30 s up to 5 min.
func programmingBuckets() []float64 {
	return slices.Concat(
		prometheus.LinearBuckets(0, 0.25, 3), prometheus.LinearBuckets(1, 1, 59),
		prometheus.LinearBuckets(60, 5, 12), prometheus.LinearBuckets(120, 30, 7))
}

// histogram has kube-proxy's buckets, and is a native histogram for those who read that, with its resolution.
func histogram(name, help string, buckets []float64) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "kubeproxy_" + name, Help: help, Buckets: buckets, NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160,
	}, []string{familyLabel})
}

func counterVec(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubeproxy_" + name, Help: help}, labels)
}

// slis are the outcomes of the health checks on the metrics address, in a
// registry of their own as in all of Kubernetes' components (KEP-3466).
type slis struct {
	registry *prometheus.Registry
	latest   *prometheus.GaugeVec
	total    *prometheus.CounterVec
}

func newSLIs() slis {
	s := slis{
		registry: prometheus.NewRegistry(),
		latest: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubernetes_healthcheck", Help: "Result of a health check: 1 for success, 0 for failure.",
		}, []string{"name", "type"}),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubernetes_healthchecks_total", Help: "Number of health check results.",
		}, []string{"name", "type", "status"}),
	}
	start := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "process_start_time_seconds", Help: "Start time of the process since Unix epoch in seconds.",
	})
	start.Set(epoch(time.Now()))
	s.registry.MustRegister(s.latest, s.total, start)
	return s
}

// Kubernetes is the release whose kube-proxy Tandem replaces.
const Kubernetes = "1.37.2"

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
// the gates of kube-proxy whose features are always on, and how many metrics are
// registered, hidden and disabled, for dashboards of all components.
func componentMetrics(registered func() float64) []prometheus.Collector {
	features := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kubernetes_feature_enabled", Help: "Feature gates of kube-proxy whose features are always on.",
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
