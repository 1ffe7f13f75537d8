// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
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
			Name: "tandem_problems_total", Help: "New problems with objects that lasted for 5 s or were measured: rejected, skipped or unsupported, by reason.",
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

// modeSet are the metrics that kube-proxy has in one mode only.
type modeSet struct {
	failures           *prometheus.CounterVec // nil where the mode has none
	rules, rulesLatest *prometheus.GaugeVec   // iptables
	all                []prometheus.Collector

	send func(sender, dataplane.Packets) // what its data plane counts, at a scrape; nil where that is nothing
}

func newModeSet(mode string) *modeSet {
	s := &modeSet{}
	switch mode {
	case "iptables":
		s.failures = counterVec("sync_proxy_rules_iptables_restore_failures_total", "Syncs that failed at least in part.", familyLabel)
		partial := counterVec("sync_proxy_rules_iptables_partial_restore_failures_total", "Always 0: a failed sync does not cause a full one.", familyLabel)
		s.rules = rules("sync_proxy_rules_iptables_total", "Number of iptables rules owned by the proxy.")
		s.rulesLatest = rules("sync_proxy_rules_iptables_last", "Number of iptables rules written by the last sync.")
		s.add(s.failures, partial)
		s.all, s.send = append(s.all, s.rules, s.rulesLatest), sendPackets
	case "ipvs":
		s.failures = counterVec("sync_proxy_rules_iptables_restore_failures_total", "Syncs that failed at least in part.", familyLabel)
		s.add(s.failures)
	case "nftables":
		s.failures = counterVec("sync_proxy_rules_nftables_sync_failures_total", "Syncs that failed at least in part.", familyLabel)
		cleanup := counterVec("sync_proxy_rules_nftables_cleanup_failures_total", "Always 0: there is no separate cleanup.", familyLabel)
		s.add(s.failures, cleanup)
		s.send = sendListeners
	case "kernelspace":
		s.send = sendBalancers
	}
	return s
}

// add makes counters start at 0 in both families.
func (s *modeSet) add(vecs ...*prometheus.CounterVec) {
	for _, v := range vecs {
		for _, f := range model.Families() {
			v.WithLabelValues(f.String())
		}
		s.all = append(s.all, v)
	}
}

// synced counts a sync, which at a switch may be one of the mode before or after.
func (s *modeSet) synced(r engine.Sync) {
	if s.rules != nil {
		for _, n := range r.Work.Rules {
			s.rules.WithLabelValues(n.Table, n.Family.String()).Set(float64(n.Total))
			s.rulesLatest.WithLabelValues(n.Table, n.Family.String()).Set(float64(n.Written))
		}
	}
	if s.failures == nil || r.Err == nil {
		return
	}
	for f, is := range changedFamilies(r) {
		if is {
			s.failures.WithLabelValues(model.Family(f).String()).Inc()
		}
	}
}

func rules(name, help string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubeproxy_" + name, Help: help}, []string{"table", familyLabel})
}

func sendPackets(send sender, n dataplane.Packets) {
	send(prometheus.CounterValue, "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
		"Packets dropped because conntrack considers them invalid.", float64(n.Invalid))
	send(prometheus.CounterValue, "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
		"Connections accepted on NodePorts of loopback addresses, counted by their first packet.", float64(n.Localhost))
}

// sendListeners sends counters of the relays that listen for node ports on loopback addresses.
func sendListeners(send sender, n dataplane.Packets) {
	for _, f := range model.Families() {
		send(prometheus.GaugeValue, "kubeproxy_nftables_localhost_nodeport_listeners", "Listeners for node ports on loopback addresses.", float64(n.Listeners[f]), familyLabel, f.String())
		send(prometheus.CounterValue, "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total",
			"Attempts to listen for a node port on a loopback address that failed.", float64(n.ListenFailures[f]), familyLabel, f.String())
		for _, proto := range []model.Proto{model.TCP, model.UDP, model.SCTP} {
			send(prometheus.CounterValue, "kubeproxy_nftables_localhost_nodeport_rejected_packets_total",
				"Always 0: without a listener the kernel rejects packets to node ports on loopback addresses itself.", 0, familyLabel, f.String(), "protocol", proto.String())
		}
	}
}

// sendBalancers sends counters of the calls to HNS that failed. There are no series before the first
// failure, as in kube-proxy. HNS cannot distinguish the addresses of load balancers from
// external IPs: all are "externalip".
func sendBalancers(send sender, n dataplane.Packets) {
	for f, n := range n.Balancers {
		send(prometheus.CounterValue, "kubeproxy_sync_proxy_rules_winkernel_lb_"+f.Verb+"_failures_total",
			"Load balancers of HNS whose "+f.Verb+" failed.", float64(n), familyLabel, f.Family.String(), "lb_type", f.Type, "error", f.Error)
	}
}

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
	full  bool // and that was logged
}

// Services adds the connections of at most this many Services. Counts is asked at each
// scrape, concurrently.
func (m *Metrics) Services(most int, log *slog.Logger, counts func() []ServiceConnections) {
	m.Register(&serviceCollector{most: most, counts: counts, log: log, taken: map[string]bool{}})
}

// Describe implements prometheus.Collector, as an unchecked one.
func (*serviceCollector) Describe(chan<- *prometheus.Desc) {}

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
	connections := prometheus.NewDesc("tandem_service_connections_total", "New connections of a Service; only Services within --metrics-services have a series.", []string{"namespace", "service"}, nil)
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
		c.log.Warn("limit of --metrics-services reached; some Services have no connection metric", "most", c.most, "without", without, "flag", "--metrics-services")
	}
	c.full = without > 0
}
