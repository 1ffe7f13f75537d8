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
// Services, up to the number that a user asks for (tandem.go).
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

// Metrics is a registry of its own with everything Tandem counts. Its methods
// are safe for concurrent use, except Synced.
type Metrics struct {
	registry  *prometheus.Registry
	count     atomic.Int64 // of what is registered
	kubeProxy kubeProxySet
	tandem    tandemSet
	mode      atomic.Pointer[modeSet]
	slis      slis
}

// New returns metrics that start at zero.
func New(s Sources) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), kubeProxy: newKubeProxySet(), tandem: newTandemSet(), slis: newSLIs()}
	m.Register(collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collectors.MetricsAll)))
	m.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.Register(buildInfo(s.Version)...)
	m.Register(componentMetrics(func() float64 { return float64(m.count.Load()) })...)
	m.Register(m.kubeProxy.all()...)
	m.Register(m.tandem.all()...)
	m.Register(scrapeCollector{s, &m.mode})
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
	now := newModeSet(name)
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

// Problem counts something rejected, skipped or unsupported.
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
func (m *Metrics) Checked(probe string, ok bool) {
	value, outcome := 0.0, "error"
	if ok {
		value, outcome = 1, "success"
	}
	m.slis.latest.WithLabelValues("ping", probe).Set(value)
	m.slis.total.WithLabelValues("ping", probe, outcome).Inc()
}

// EventWritten counts an Event that was written, dropped by the rate limit, or given up after errors.
func (m *Metrics) EventWritten(outcome string) { m.tandem.events.WithLabelValues(outcome).Inc() }

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler { return handler(m.registry) }

// SLIs serves the outcomes of health checks.
func (m *Metrics) SLIs() http.Handler { return handler(m.slis.registry) }

// maxScrapes bounds how many scrapes are answered at once: each renders
// everything.
const maxScrapes = 4

func handler(r *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes})
}

// Sources are asked at each scrape. They are safe for concurrent use.
type Sources struct {
	Version string
	Status  func() engine.Status
	// Ages returns how many seconds ago each kind of input was last known to be up to date;
	// nil where nothing is watched.
	Ages func() map[string]float64
	// Packets are counters of the data plane: packets of mode iptables, listeners of
	// nftables, failed calls to HNS; nil where there are none.
	Packets func() dataplane.Packets
	// Relays are the counters of the userspace mode; it is false in other modes.
	// Nil is no such mode.
	Relays func() (relay.Stats, bool)
	// Failover are the counters of endpoint failover; it is false where that is off. Nil is off.
	Failover func() (Failover, bool)
}

// Failover counts what endpoint failover does.
type Failover struct {
	Ejections int64         // of addresses
	Ejected   int64         // addresses that are now
	Unchecked int64         // suspicions against addresses that never answered a SYN of this node
	Spent     time.Duration // CPU time of looking
}

// scrapeCollector collects what is read at each scrape: the engine's status, the age of the
// inputs, and what data planes count. Nothing is counted for it on a change's path.
type scrapeCollector struct {
	Sources
	mode *atomic.Pointer[modeSet]
}

// Describe implements prometheus.Collector. What it sends depends on the
// sources, so it is an unchecked one.
func (scrapeCollector) Describe(chan<- *prometheus.Desc) {}

func (c scrapeCollector) Collect(ch chan<- prometheus.Metric) {
	send := sendTo(ch)
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	if mode := c.mode.Load(); mode != nil && mode.send != nil && c.Packets != nil {
		mode.send(send, c.Packets())
	}
	if c.Relays != nil {
		if stats, ok := c.Relays(); ok {
			sendRelays(send, stats)
		}
	}
	if c.Failover != nil {
		if f, ok := c.Failover(); ok {
			send(counter, "tandem_failover_ejections_total", "Addresses of endpoints that stopped answering and were ejected.", float64(f.Ejections))
			send(gauge, "tandem_failover_addresses", "Addresses of endpoints that are ejected.", float64(f.Ejected))
			send(counter, "tandem_failover_unchecked_total", "Suspicions dropped because the address never answered a SYN of this node: a network policy may drop the SYNs.", float64(f.Unchecked))
			send(counter, "tandem_failover_cpu_seconds_total", "CPU time spent looking for unanswered connections.", f.Spent.Seconds())
		}
	}
	s := c.Status()
	for _, f := range model.Families() {
		send(gauge, "kubeproxy_sync_proxy_rules_last_timestamp_seconds", "Time when all rules were last known to be programmed, in seconds since Unix epoch.", epoch(s.SyncedAt), familyLabel, f.String())
		send(gauge, "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "Time when a change last arrived, in seconds since Unix epoch.", epoch(s.LatestAt), familyLabel, f.String())
	}
	send(gauge, "kubeproxy_sync_proxy_rules_endpoint_changes_pending", "Pending EndpointSlice changes.", float64(s.Seen.Slices-s.Done.Slices))
	send(counter, "kubeproxy_sync_proxy_rules_endpoint_changes_total", "EndpointSlice changes received.", float64(s.Seen.Slices))
	send(gauge, "kubeproxy_sync_proxy_rules_service_changes_pending", "Pending Service changes.", float64(s.Seen.Services-s.Done.Services))
	send(counter, "kubeproxy_sync_proxy_rules_service_changes_total", "Service changes received.", float64(s.Seen.Services))

	send(counter, "tandem_dataplane_drift_objects_total", "Objects of the data plane that an audit found changed externally.", float64(s.Drift))
	send(gauge, "tandem_dataplane_degraded", "Kinds of objects of the data plane that are programmed and not in effect: tandem status names them.", float64(s.Degraded))
	send(counter, "tandem_audits_total", "Audits of the data plane.", float64(s.Audits.Done))
	send(counter, "tandem_audit_failures_total", "Audits that failed to read the data plane.", float64(s.Audits.Failed))
	for state, n := range s.Services {
		send(gauge, "tandem_services", "Services by state.", float64(n), "state", model.State(state).String())
	}
	if c.Ages == nil {
		return
	}
	for resource, age := range c.Ages() {
		send(gauge, "tandem_watch_age_seconds", "Time since the last sign of life from the watch of a resource.", age, "resource", resource)
	}
}

// epoch is a time as Prometheus has it; 0 for never.
func epoch(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}

// sender sends one metric of a scrape. Labels are names, each with its value behind it.
type sender func(kind prometheus.ValueType, name, help string, value float64, labels ...string)

func sendTo(ch chan<- prometheus.Metric) sender {
	return func(kind prometheus.ValueType, name, help string, value float64, labels ...string) {
		var keys, values []string
		for i := 0; i+1 < len(labels); i += 2 {
			keys, values = append(keys, labels[i]), append(values, labels[i+1])
		}
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, keys, nil), kind, value, values...)
	}
}

// sendRelays sends what the relays of the userspace mode have counted.
func sendRelays(send sender, s relay.Stats) {
	gauge := func(name, help string, value float64) {
		send(prometheus.GaugeValue, "tandem_relay_"+name, help, value)
	}
	counter := func(name, help string, value uint64, labels ...string) {
		send(prometheus.CounterValue, "tandem_relay_"+name, help, float64(value), labels...)
	}
	gauge("connections", "TCP connections with an endpoint.", float64(s.Open))
	gauge("sessions", "UDP sessions.", float64(s.Sessions))
	gauge("connections_limit", "TCP connections for which there are file descriptors, and UDP sessions where these have no limit of their own; 0 if there is no limit.", float64(s.Limit))
	counter("accepted_connections_total", "TCP connections of clients.", s.Accepted)
	counter("refused_total", "TCP connections and datagrams rejected by policy.", s.Refused)
	counter("retries_total", "Attempts to reach an endpoint that failed.", s.Retried)
	counter("failed_connections_total", "TCP connections for which no endpoint was reached.", s.Failed)
	counter("limited_total", "TCP connections that waited, and UDP clients for which the session idle longest was ended, because their Service port had its share of file descriptors or buffers.", s.Limited)
	counter("exhausted_total", "How often file descriptors, ports or memory of this host had run out.", s.Exhausted)
	counter("dropped_datagrams_total", "Datagrams that could not be delivered.", s.Dropped)
	const timeouts = "TCP connections that were reset after a time without data."
	counter("timeouts_total", timeouts, s.IdleTimeouts, "state", "idle")
	counter("timeouts_total", timeouts, s.HalfClosedTimeouts, "state", "half-closed")
}
