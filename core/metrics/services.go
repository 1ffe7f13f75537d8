// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// ServiceConnections are the new connections of a Service.
type ServiceConnections struct {
	Service string // "namespace/name"
	New     uint64
}

// serviceCollector collects the connections of single Services, which is off unless asked
// for: of most Services, each as long as it exists. Those with most connections at the
// first scrape come first; when all room is used up, others have no series.
type serviceCollector struct {
	most   int
	counts func() []ServiceConnections
	log    *slog.Logger

	mu    sync.Mutex
	taken map[string]bool
	full  bool // and the log says so
}

// Services adds the connections of at most this many Services. Counts is asked at each
// scrape, concurrently.
func (m *Metrics) Services(most int, log *slog.Logger, counts func() []ServiceConnections) {
	m.Register(&serviceCollector{most: most, counts: counts, log: log, taken: map[string]bool{}})
}

// Describe implements prometheus.Collector, as an unchecked one.
func (*serviceCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *serviceCollector) Collect(ch chan<- prometheus.Metric) {
	all := slices.SortedFunc(slices.Values(c.counts()), func(a, b ServiceConnections) int {
		return cmp.Or(cmp.Compare(b.New, a.New), cmp.Compare(a.Service, b.Service))
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	there := make(map[string]bool, len(all))
	for _, s := range all {
		there[s.Service] = true
	}
	for name := range c.taken {
		if !there[name] {
			delete(c.taken, name)
		}
	}
	connections := prometheus.NewDesc("tandem_service_connections_total", "New connections of a Service, of those that have a series.", []string{"namespace", "service"}, nil)
	without := 0
	for _, s := range all {
		if !c.taken[s.Service] && len(c.taken) >= c.most {
			without++
			continue
		}
		c.taken[s.Service] = true
		namespace, name, _ := strings.Cut(s.Service, "/")
		ch <- prometheus.MustNewConstMetric(connections, prometheus.CounterValue, float64(s.New), namespace, name)
	}
	ch <- prometheus.MustNewConstMetric(prometheus.NewDesc("tandem_service_connections_omitted", "Services with connections that have no series of tandem_service_connections_total.", nil, nil),
		prometheus.GaugeValue, float64(without))
	if without > 0 && !c.full {
		c.log.Warn("not all Services have a metric of their connections", "most", c.most, "without", without, "flag", "--metrics-services")
	}
	c.full = without > 0
}
