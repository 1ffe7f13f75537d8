// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Gather returns all metrics.
func (m *Metrics) Gather() ([]*dto.MetricFamily, error) { return m.registry.Gather() }

// Set is a struct of metrics, and those of them that are registered.
type Set struct {
	Made       any
	Registered []prometheus.Collector
}

// Sets returns all such structs, by name.
func Sets() map[string]Set {
	k, t := newKubeProxySet(), newTandemSet()
	return map[string]Set{"kubeProxySet": {k, k.all()}, "tandemSet": {t, t.all()}}
}
