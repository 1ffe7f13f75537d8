// SPDX-License-Identifier: Apache-2.0

// Package metrics holds Tandem's Prometheus metrics. Metrics that kube-proxy has
// too carry its names, types, labels and buckets, so that its dashboards and
// alerts go on working; the rest is called tandem_*.
//
//	engine.Sync ──Synced──▶ histograms, counters ┐
//	engine.Status ◀──asked at each scrape────────┤ registry ──▶ /metrics
//	probes, flows, problems ──▶ counters ────────┘
//
// The number of series is bounded whatever the cluster: no label holds the name
// of a Service, a namespace or an address of a pod, but for the connections of
// Services, up to the number that a user asks for (services.go).
package metrics

import (
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/model"
)

// Metrics is a registry of its own with everything Tandem counts. Its methods
// are safe for concurrent use, except Synced.
type Metrics struct {
	registry  *prometheus.Registry
	count     atomic.Int64 // of what is registered
	kubeProxy kubeProxySet
	tandem    tandemSet
	mode      atomic.Pointer[modeSet]
	packets   func() dataplane.Packets
	slis      slis
}

// New returns metrics that start at zero.
func New(s Sources) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), kubeProxy: newKubeProxySet(), tandem: newTandemSet(), slis: newSLIs(), packets: s.Packets}
	m.Register(collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collectors.MetricsAll)))
	m.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.Register(buildInfo(s.Version)...)
	m.Register(componentMetrics(func() float64 { return float64(m.count.Load()) })...)
	m.Register(m.kubeProxy.all()...)
	m.Register(m.tandem.all()...)
	m.Register(scrapeCollector{s})
	return m
}

// Register adds what other packages count. It panics where two have one name,
// which is a mistake in the program.
func (m *Metrics) Register(cs ...prometheus.Collector) {
	m.registry.MustRegister(cs...)
	m.count.Add(int64(len(cs)))
}

// Mode adds the metrics that kube-proxy has only in this mode, in place of those
// of the mode before.
func (m *Metrics) Mode(name string) {
	now := newModeSet(name, m.packets)
	if old := m.mode.Swap(now); old != nil {
		for _, c := range old.all {
			m.registry.Unregister(c)
			m.count.Add(-1)
		}
	}
	m.Register(now.all...)
}

// Synced counts a sync. It is called by one goroutine.
func (m *Metrics) Synced(s engine.Sync) {
	m.kubeProxy.synced(s)
	m.tandem.synced(s)
	if mode := m.mode.Load(); mode != nil {
		mode.synced(s)
	}
}

// Problem counts something that was rejected, skipped or is impossible.
func (m *Metrics) Problem(p model.Problem) { m.tandem.problems.WithLabelValues(p.Why.String()).Inc() }

// FlowsCleaned counts an attempt to delete stale conntrack entries.
func (m *Metrics) FlowsCleaned(r flows.Report) {
	m.kubeProxy.flowsTook.WithLabelValues(r.Family.String()).Observe(r.Took.Seconds())
	m.kubeProxy.flowsDeleted.WithLabelValues(r.Family.String()).Add(float64(r.Deleted))
}

// Probed counts an answer of /healthz or /livez on the health address.
func (m *Metrics) Probed(probe string, code int) {
	c := m.kubeProxy.healthz
	if probe == "livez" {
		c = m.kubeProxy.livez
	}
	c.WithLabelValues(strconv.Itoa(code)).Inc()
}

// Checked counts an answer of a health check on the metrics address, for
// /metrics/slis (KEP-3466).
func (m *Metrics) Checked(probe string, ok bool) { m.slis.checked(probe, ok) }

// EventWritten counts an Event that was written, dropped by the rate limit, or given up after errors.
func (m *Metrics) EventWritten(outcome string) { m.tandem.events.WithLabelValues(outcome).Inc() }

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes})
}

// SLIs serves the outcomes of health checks.
func (m *Metrics) SLIs() http.Handler { return m.slis.handler() }

// Rules sets how many of our iptables rules a table has, and how many the last
// sync wrote. Table is "filter" or "nat". In other modes it does nothing.
func (m *Metrics) Rules(table string, f model.Family, total, written int) {
	if mode := m.mode.Load(); mode != nil && mode.rules != nil {
		mode.rules.WithLabelValues(table, f.String()).Set(float64(total))
		mode.rulesLatest.WithLabelValues(table, f.String()).Set(float64(written))
	}
}
