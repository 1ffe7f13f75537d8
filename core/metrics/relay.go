// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-proxy/tandem/core/relay"
)

// sender sends one metric of a scrape.
type sender func(kind prometheus.ValueType, name, help string, value float64, labels ...string)

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
	gauge("connections_limit", "TCP connections, on Linux together with UDP sessions, for which there are file descriptors; 0 if there is no limit.", float64(s.Limit))
	counter("accepted_connections_total", "TCP connections of clients.", s.Accepted)
	counter("refused_total", "TCP connections and datagrams refused by policy.", s.Refused)
	counter("retries_total", "Attempts to reach an endpoint that failed.", s.Retried)
	counter("failed_connections_total", "TCP connections for which no endpoint was reached.", s.Failed)
	counter("limited_total", "TCP connections that waited, and UDP clients for which the session idle longest was ended, because their Service port had its share of file descriptors or buffers.", s.Limited)
	counter("exhausted_total", "How often file descriptors, ports or memory of this host had run out.", s.Exhausted)
	counter("dropped_datagrams_total", "Datagrams that could not be delivered.", s.Dropped)
	const timeouts = "TCP connections that were reset after a time without data."
	counter("timeouts_total", timeouts, s.IdleTimeouts, "state", "idle")
	counter("timeouts_total", timeouts, s.HalfClosedTimeouts, "state", "half-closed")
}
