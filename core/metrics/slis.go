// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

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

func (s slis) checked(probe string, ok bool) {
	value, outcome := 0.0, "error"
	if ok {
		value, outcome = 1, "success"
	}
	s.latest.WithLabelValues("ping", probe).Set(value)
	s.total.WithLabelValues("ping", probe, outcome).Inc()
}

func (s slis) handler() http.Handler {
	return promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes})
}

// maxScrapes bounds how many scrapes are answered at once: each renders
// everything.
const maxScrapes = 4
