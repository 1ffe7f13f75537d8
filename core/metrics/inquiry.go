package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-proxy/tandem/core/model"
)

// inquiry is a collector of what is known when somebody asks: the engine's
// status and the age of the inputs. Nothing is counted for it on a change's path.
type inquiry struct{ Sources }

// Describe implements prometheus.Collector. What it sends depends on the
// sources, so it is an unchecked one.
func (inquiry) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (q inquiry) Collect(ch chan<- prometheus.Metric) {
	var send sender = func(kind prometheus.ValueType, name, help string, value float64, labels ...string) {
		var keys, values []string
		for i := 0; i+1 < len(labels); i += 2 {
			keys, values = append(keys, labels[i]), append(values, labels[i+1])
		}
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, keys, nil), kind, value, values...)
	}
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	if q.Relays != nil {
		if stats, ok := q.Relays(); ok {
			sendRelays(send, stats)
		}
	}
	s := q.Status()
	for _, f := range model.Families() {
		send(gauge, "kubeproxy_sync_proxy_rules_last_timestamp_seconds", "When everything was last known to be programmed, in seconds since the epoch.", epoch(s.SyncedAt), familyLabel, f.String())
		send(gauge, "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "When a change last arrived, in seconds since the epoch.", epoch(s.LatestAt), familyLabel, f.String())
	}
	send(gauge, "kubeproxy_sync_proxy_rules_endpoint_changes_pending", "Changes of EndpointSlices that are not applied yet.", float64(s.Seen.Slices-s.Done.Slices))
	send(counter, "kubeproxy_sync_proxy_rules_endpoint_changes_total", "Changes of EndpointSlices that arrived.", float64(s.Seen.Slices))
	send(gauge, "kubeproxy_sync_proxy_rules_service_changes_pending", "Changes of Services that are not applied yet.", float64(s.Seen.Services-s.Done.Services))
	send(counter, "kubeproxy_sync_proxy_rules_service_changes_total", "Changes of Services that arrived.", float64(s.Seen.Services))

	send(counter, "tandem_dataplane_drift_objects_total", "Objects that were found changed by others.", float64(s.Drift))
	send(counter, "tandem_audits_total", "How often the data plane was read back and compared.", float64(s.Audits.Done))
	send(counter, "tandem_audit_failures_total", "How often it could not be read back.", float64(s.Audits.Failed))
	for state, n := range s.Services {
		send(gauge, "tandem_services", "Services by state.", float64(n), "state", model.State(state).String())
	}
	if q.Ages == nil {
		return
	}
	for resource, age := range q.Ages() {
		send(gauge, "tandem_watch_age_seconds", "Time since the watch of a resource was last known to be alive.", age.Seconds(), "resource", resource)
	}
}

// epoch is a time as Prometheus has it; 0 for never.
func epoch(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}
