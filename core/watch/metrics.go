// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"math"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/metrics"
)

// ClientMetrics makes client-go count its requests under the names that all of
// Kubernetes' components use (component-base's restclient), and returns the
// collectors to register. client-go takes its hooks once in a process, so every
// call returns the same collectors.
//
// The labels are bounded: verbs, codes, and the API servers of one
// configuration.
func ClientMetrics() []prometheus.Collector { return clientMetrics() }

var clientMetrics = sync.OnceValue(newClientMetrics)

func newClientMetrics() []prometheus.Collector {
	latency := []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}
	size := []float64{64, 256, 512, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216} // 64 B to 16 MiB
	hour, day := time.Hour.Seconds(), 24*time.Hour.Seconds()
	ages := []float64{hour / 6, hour / 2, hour, 4 * hour, day, 7 * day, 30 * day, 90 * day, 180 * day, 360 * day, 1440 * day}

	requests := distribution("request_duration_seconds", "Request latency in seconds.", latency, "verb", "host")
	waits := distribution("rate_limiter_duration_seconds", "Client-side rate limiter latency in seconds.", latency, "verb", "host")
	sent := distribution("request_size_bytes", "Request size in bytes.", size, "verb", "host")
	received := distribution("response_size_bytes", "Response size in bytes.", size, "verb", "host")
	results := count("requests_total", "Requests by HTTP status.", "code", "method", "host")
	retries := count("request_retries_total", "Request retries by HTTP status.", "code", "verb", "host")
	calls := count("exec_plugin_call_total", "Calls of an exec credential plugin.", "code", "call_status")
	rotation := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "rest_client_exec_plugin_certificate_rotation_age", Help: "Age in seconds of an exec plugin's client certificate when it was rotated.", Buckets: ages,
	})
	expiry := &expiry{}
	transports := prometheus.NewGauge(prometheus.GaugeOpts{Name: "rest_client_transport_cache_entries", Help: "Entries in the transport cache."})
	created := count("transport_create_calls_total", "Transport lookups by result.", "result")
	reloads := count("transport_ca_reload_total", "CA reloads by result and reason.", "result", "reason")
	rotated := prometheus.NewCounter(prometheus.CounterOpts{Name: "rest_client_transport_cert_rotation_gc_calls_total", Help: "Certificate rotations stopped together with their transport."})
	dropped := count("transport_cache_gc_calls_total", "Transports garbage-collected, by result.", "result")

	metrics.Register(metrics.RegisterOpts{
		ClientCertExpiry:             expiry,
		ClientCertRotationAge:        observer{rotation},
		RequestLatency:               byURL{requests},
		RateLimiterLatency:           byURL{waits},
		RequestSize:                  byHost{sent},
		ResponseSize:                 byHost{received},
		RequestResult:                result{results},
		RequestRetry:                 result{retries},
		ExecPluginCalls:              pluginCalls{calls},
		TransportCacheEntries:        entries{transports},
		TransportCreateCalls:         counter{created},
		TransportCAReloads:           reload{reloads},
		TransportCertRotationGCCalls: rotations{rotated},
		TransportCacheGCCalls:        counter{dropped},
	})
	return []prometheus.Collector{
		requests, waits, sent, received, results, retries, calls, rotation, expiry.collector(), transports, created, reloads, rotated, dropped,
	}
}

func distribution(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "rest_client_" + name, Help: help, Buckets: buckets}, labels)
}

func count(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rest_client_" + name, Help: help}, labels)
}

// The adapters: client-go's hooks in terms of Prometheus.

type byURL struct{ *prometheus.HistogramVec }

func (m byURL) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	m.WithLabelValues(verb, u.Host).Observe(took.Seconds())
}

type byHost struct{ *prometheus.HistogramVec }

func (m byHost) Observe(_ context.Context, verb, host string, size float64) {
	m.WithLabelValues(verb, host).Observe(size)
}

type result struct{ *prometheus.CounterVec }

func (m result) Increment(_ context.Context, code, method, host string) {
	m.WithLabelValues(code, method, host).Inc()
}

func (m result) IncrementRetry(ctx context.Context, code, method, host string) {
	m.Increment(ctx, code, method, host)
}

type pluginCalls struct{ *prometheus.CounterVec }

func (m pluginCalls) Increment(code int, status string) {
	m.WithLabelValues(strconv.Itoa(code), status).Inc()
}

type observer struct{ prometheus.Histogram }

func (m observer) Observe(d time.Duration) { m.Histogram.Observe(d.Seconds()) }

type entries struct{ prometheus.Gauge }

func (m entries) Observe(n int) { m.Set(float64(n)) }

type counter struct{ *prometheus.CounterVec }

func (m counter) Increment(result string) { m.WithLabelValues(result).Inc() }

type reload struct{ *prometheus.CounterVec }

func (m reload) Increment(result, reason string) { m.WithLabelValues(result, reason).Inc() }

type rotations struct{ prometheus.Counter }

func (m rotations) Increment() { m.Inc() }

// expiry is when the first of the credential plugin's certificates expires.
type expiry struct{ at atomic.Pointer[time.Time] }

// Set implements client-go's ExpiryMetric; nil is for no certificate.
func (e *expiry) Set(at *time.Time) { e.at.Store(at) }

func (e *expiry) collector() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "rest_client_exec_plugin_ttl_seconds",
		Help: "Time until the first exec plugin certificate expires, negative after expiry; +Inf without one.",
	}, func() float64 {
		if at := e.at.Load(); at != nil {
			return time.Until(*at).Seconds()
		}
		return math.Inf(1)
	})
}
