// Package metrics is what Tandem tells Prometheus. Metrics that kube-proxy has
// too carry its names, so that its dashboards and alerts go on working; the rest
// is called tandem_*.
package metrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics is a registry of its own with everything Tandem counts. Its methods
// are safe for use by many goroutines.
type Metrics struct {
	registry *prometheus.Registry

	syncSeconds  prometheus.Histogram
	syncLast     prometheus.Gauge
	syncFailures prometheus.Counter
	waitSeconds  prometheus.Histogram
	ops          prometheus.Counter
	opFailures   prometheus.Counter
	drift        prometheus.Counter
	flows        prometheus.Counter
	problems     *prometheus.CounterVec
}

// New returns metrics that start at zero.
func New() *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		syncSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "kubeproxy_sync_proxy_rules_duration_seconds",
			Help:    "Time that one sync took.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}),
		syncLast: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
			Help: "When the last successful sync ended, in seconds since the epoch.",
		}),
		syncFailures: counter("tandem_sync_failures_total", "Syncs in which something could not be programmed."),
		waitSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "tandem_event_wait_seconds",
			Help:    "Time from the arrival of an event to the start of the sync that applied it.",
			Buckets: prometheus.ExponentialBuckets(0.00001, 4, 12),
		}),
		ops:        counter("tandem_dataplane_ops_total", "Objects created, replaced or deleted in the data plane."),
		opFailures: counter("tandem_dataplane_op_failures_total", "Operations that the data plane refused."),
		drift:      counter("tandem_dataplane_drift_objects_total", "Objects that others had changed, and that were repaired."),
		flows:      counter("kubeproxy_conntrack_reconciler_deleted_entries_total", "Stale conntrack entries that were deleted."),
	}
	m.problems = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tandem_problems_total",
		Help: "Things refused, skipped or impossible that came up, by reason.",
	}, []string{"reason"})
	m.registry.MustRegister(
		m.problems,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.syncSeconds, m.syncLast, m.syncFailures, m.waitSeconds, m.ops, m.opFailures, m.drift, m.flows,
	)
	return m
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

// Synced counts a sync: how long its oldest event had waited (0 if there was
// none), how long it took, the operations done and failed, and whether all went
// well.
func (m *Metrics) Synced(waited, took time.Duration, ops, failed int, err error, end time.Time) {
	if waited > 0 {
		m.waitSeconds.Observe(waited.Seconds())
	}
	m.syncSeconds.Observe(took.Seconds())
	m.ops.Add(float64(ops))
	m.opFailures.Add(float64(failed))
	if err != nil {
		m.syncFailures.Inc()
		return
	}
	m.syncLast.Set(float64(end.UnixNano()) / 1e9)
}

// Problem counts something that was refused, skipped or is impossible.
func (m *Metrics) Problem(reason string) { m.problems.WithLabelValues(reason).Inc() }

// Drifted counts objects that were found changed by others.
func (m *Metrics) Drifted(objects int) { m.drift.Add(float64(objects)) }

// FlowsDeleted counts conntrack entries that were deleted.
func (m *Metrics) FlowsDeleted(n int) { m.flows.Add(float64(n)) }

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}
