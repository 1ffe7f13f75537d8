// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
)

// Sources are asked at each scrape. They are safe for concurrent use.
type Sources struct {
	Version string
	Status  func() engine.Status
	// Ages returns how long ago each kind of input was last known to be up to date;
	// nil where nothing is watched.
	Ages func() map[string]time.Duration
	// Packets are those that the iptables mode counts; nil where nothing does.
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

// scrapeCollector collects what is read at each scrape: the engine's
// status and the age of the inputs. Nothing is counted for it on a change's path.
type scrapeCollector struct{ Sources }

// Describe implements prometheus.Collector. What it sends depends on the
// sources, so it is an unchecked one.
func (scrapeCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c scrapeCollector) Collect(ch chan<- prometheus.Metric) {
	var send sender = func(kind prometheus.ValueType, name, help string, value float64, labels ...string) {
		var keys, values []string
		for i := 0; i+1 < len(labels); i += 2 {
			keys, values = append(keys, labels[i]), append(values, labels[i+1])
		}
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, keys, nil), kind, value, values...)
	}
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	if c.Relays != nil {
		if stats, ok := c.Relays(); ok {
			sendRelays(send, stats)
		}
	}
	if c.Failover != nil {
		if f, ok := c.Failover(); ok {
			send(counter, "tandem_failover_ejections_total", "Addresses of endpoints that stopped answering and were ejected.", float64(f.Ejections))
			send(gauge, "tandem_failover_addresses", "Addresses of endpoints that are ejected.", float64(f.Ejected))
			send(counter, "tandem_failover_unchecked_total", "Suspicions dropped because the address never answered a SYN of this node: a network policy may drop those.", float64(f.Unchecked))
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
		send(gauge, "tandem_watch_age_seconds", "Time since the last sign of life from the watch of a resource.", age.Seconds(), "resource", resource)
	}
}

// epoch is a time as Prometheus has it; 0 for never.
func epoch(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}
