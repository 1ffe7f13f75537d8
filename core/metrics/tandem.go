// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/ledger"
)

// tandemSet are the metrics that kube-proxy does not have.
type tandemSet struct {
	wait, programmed prometheus.Histogram
	ports, objects   prometheus.Histogram
	stages           *prometheus.HistogramVec
	failures         prometheus.Counter
	ops              *prometheus.CounterVec
	opFailures       prometheus.Counter
	commits          prometheus.Counter
	repaired         prometheus.Counter
	problems         *prometheus.CounterVec
	events           *prometheus.CounterVec
}

func newTandemSet() tandemSet {
	fine := prometheus.ExponentialBuckets(0.00001, 4, 12) // 10 µs to 42 s
	sizes := prometheus.ExponentialBuckets(1, 4, 10)      // 1 to 262,144
	return tandemSet{
		wait:       tandemHistogram("event_wait_seconds", "Time from receiving an event to the start of the sync that applied it.", fine),
		programmed: tandemHistogram("event_programmed_seconds", "Time from receiving an event to the end of the sync that applied it.", fine),
		ports:      tandemHistogram("sync_ports", "Service ports changed per sync.", sizes),
		objects:    tandemHistogram("sync_ops", "Objects of the data plane written per sync.", sizes),
		stages: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "tandem_change_stage_duration_seconds", Help: "Duration of each stage of a sync that had changes: queue, resolve, compile, write.", Buckets: fine,
		}, []string{"stage"}),
		failures: tandemCounter("sync_failures_total", "Syncs with at least one failure."),
		ops: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tandem_dataplane_ops_total", Help: "Objects created, replaced or deleted in the data plane.",
		}, []string{"verb"}),
		opFailures: tandemCounter("dataplane_op_failures_total", "Operations that the data plane rejected."),
		commits:    tandemCounter("dataplane_commits_total", "Transactions committed to the data plane."),
		repaired:   tandemCounter("dataplane_repaired_objects_total", "Externally changed objects that were repaired."),
		problems: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tandem_problems_total", Help: "New problems with objects: rejected, skipped or unsupported, by reason.",
		}, []string{"reason"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tandem_events_total", Help: "Kubernetes Events by outcome: written, dropped by the rate limit, or given up after errors.",
		}, []string{"outcome"}),
	}
}

func (t *tandemSet) all() []prometheus.Collector {
	for stage := range history.Stages { // there from the start
		t.stages.WithLabelValues(stage.String())
	}
	for v := range ledger.Verbs {
		t.ops.WithLabelValues(v.String())
	}
	return []prometheus.Collector{
		t.wait, t.programmed, t.stages, t.ports, t.objects, t.failures, t.ops, t.opFailures, t.commits, t.repaired, t.problems, t.events,
	}
}

func (t *tandemSet) synced(s engine.Sync) {
	if s.Waiting > 0 {
		t.wait.Observe(s.Waiting.Seconds())
		t.programmed.Observe((s.Waiting + s.Took).Seconds())
		for stage, took := range s.Stages {
			t.stages.WithLabelValues(history.Stage(stage).String()).Observe(took.Seconds())
		}
	}
	t.ports.Observe(float64(s.Ports[0] + s.Ports[1]))
	t.objects.Observe(float64(s.Work.Ops))
	for v, n := range s.Work.Verbs {
		t.ops.WithLabelValues(ledger.Verb(v).String()).Add(float64(n))
	}
	t.opFailures.Add(float64(s.Work.Failed))
	t.commits.Add(float64(s.Work.Commits))
	t.repaired.Add(float64(s.Repaired))
	if s.Err != nil {
		t.failures.Inc()
	}
}

func tandemHistogram(name, help string, buckets []float64) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tandem_" + name, Help: help, Buckets: buckets})
}

func tandemCounter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: "tandem_" + name, Help: help})
}

// since is how many seconds ago a time was; 0 when the clock it comes from
// is ahead.
func since(t time.Time) float64 { return max(0, time.Since(t).Seconds()) }
