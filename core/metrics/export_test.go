// SPDX-License-Identifier: Apache-2.0

package metrics

import dto "github.com/prometheus/client_model/go"

// Gather returns all metrics.
func (m *Metrics) Gather() ([]*dto.MetricFamily, error) { return m.registry.Gather() }
