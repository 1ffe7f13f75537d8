// Package metrics is what Tandem tells Prometheus. Metrics that kube-proxy has
// too carry its names, types, labels and buckets, so that its dashboards and
// alerts go on working; the rest is called tandem_*.
//
//	engine.Sync ──Synced──▶ histograms, counters ┐
//	engine.Status ◀──asked at each scrape────────┤ registry ──▶ /metrics
//	probes, flows, problems ──▶ counters ────────┘
//
// The number of series is bounded whatever the cluster: no label holds the name
// of a Service, a namespace or an address of a pod.
package metrics

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
)

// Sources are asked at each scrape. They are safe for concurrent use.
type Sources struct {
	Version string
	Status  func() engine.Status
	// Ages tells how long ago each kind of input was last known to be up to date;
	// nil where nothing is watched.
	Ages func() map[string]time.Duration
	// Packets are those that the iptables mode counts; nil where nothing does.
	Packets func() dataplane.Packets
	// Relays are the counters of the userspace mode; it is false in other modes.
	// Nil is no such mode.
	Relays func() (relay.Stats, bool)
}

// Metrics is a registry of its own with everything Tandem counts. Its methods
// are safe for use by many goroutines, but for Synced.
type Metrics struct {
	registry *prometheus.Registry
	proxy    proxySet
	own      ownSet
	mode     atomic.Pointer[modeSet]
	packets  func() dataplane.Packets
	slis     slis
}

// New returns metrics that start at zero.
func New(s Sources) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), proxy: newProxySet(), own: newOwnSet(), slis: newSLIs(), packets: s.Packets}
	m.Register(collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collectors.MetricsAll)))
	m.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.Register(buildInfo(s.Version)...)
	m.Register(m.proxy.all()...)
	m.Register(m.own.all()...)
	m.Register(inquiry{s})
	return m
}

// Register adds what other packages count. It panics where two have one name,
// which is a mistake in the program.
func (m *Metrics) Register(cs ...prometheus.Collector) { m.registry.MustRegister(cs...) }

// Mode adds the metrics that kube-proxy has only in this mode, in place of those
// of the mode before.
func (m *Metrics) Mode(name string) {
	now := newModeSet(name, m.packets)
	if old := m.mode.Swap(now); old != nil {
		for _, c := range old.all {
			m.registry.Unregister(c)
		}
	}
	m.Register(now.all...)
}

// Synced counts a sync. It is called by one goroutine.
func (m *Metrics) Synced(s engine.Sync) {
	m.proxy.synced(s)
	m.own.synced(s)
	if mode := m.mode.Load(); mode != nil {
		mode.synced(s)
	}
}

// Problem counts something that was refused, skipped or is impossible.
func (m *Metrics) Problem(p model.Problem) { m.own.problems.WithLabelValues(p.Why.String()).Inc() }

// FlowsCleaned counts an attempt to delete stale conntrack entries.
func (m *Metrics) FlowsCleaned(r flows.Report) {
	m.proxy.flowsTook.WithLabelValues(r.Family.String()).Observe(r.Took.Seconds())
	m.proxy.flowsDeleted.WithLabelValues(r.Family.String()).Add(float64(r.Deleted))
}

// Probed counts an answer of /healthz or /livez on the health address.
func (m *Metrics) Probed(probe string, code int) {
	c := m.proxy.healthz
	if probe == "livez" {
		c = m.proxy.livez
	}
	c.WithLabelValues(strconv.Itoa(code)).Inc()
}

// Checked counts an answer of a health check on the metrics address, for
// /metrics/slis (KEP-3466).
func (m *Metrics) Checked(probe string, ok bool) { m.slis.checked(probe, ok) }

// EventWritten counts an Event that was written, dropped or given up.
func (m *Metrics) EventWritten(outcome string) { m.own.events.WithLabelValues(outcome).Inc() }

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes})
}

// SLIs serves the outcomes of health checks.
func (m *Metrics) SLIs() http.Handler { return m.slis.handler() }

// maxScrapes bounds how many scrapes are answered at once: each renders
// everything.
const maxScrapes = 4
