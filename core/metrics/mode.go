// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
)

// modeSet are the metrics that kube-proxy has in one mode only.
type modeSet struct {
	failures           *prometheus.CounterVec // nil where the mode has none
	rules, rulesLatest *prometheus.GaugeVec   // iptables
	all                []prometheus.Collector
}

func newModeSet(mode string, count func() dataplane.Packets) *modeSet {
	s := &modeSet{}
	switch mode {
	case "iptables":
		s.failures = counterVec("sync_proxy_rules_iptables_restore_failures_total", "Syncs that failed at least in part.", familyLabel)
		partial := counterVec("sync_proxy_rules_iptables_partial_restore_failures_total", "Always 0: a failed sync does not cause a full one.", familyLabel)
		s.rules = rules("sync_proxy_rules_iptables_total", "Number of iptables rules owned by the proxy.")
		s.rulesLatest = rules("sync_proxy_rules_iptables_last", "Number of iptables rules written by the last sync.")
		s.add(s.failures, partial)
		s.all = append(s.all, s.rules, s.rulesLatest)
		if count != nil {
			s.all = append(s.all, packets(count))
		}
	case "ipvs":
		s.failures = counterVec("sync_proxy_rules_iptables_restore_failures_total", "Syncs that failed at least in part.", familyLabel)
		s.add(s.failures)
	case "nftables":
		s.failures = counterVec("sync_proxy_rules_nftables_sync_failures_total", "Syncs that failed at least in part.", familyLabel)
		cleanup := counterVec("sync_proxy_rules_nftables_cleanup_failures_total", "Always 0: there is no separate cleanup.", familyLabel)
		s.add(s.failures, cleanup)
		if count != nil {
			s.all = append(s.all, listeners(count))
		}
	case "kernelspace":
		if count != nil {
			s.all = append(s.all, balancers(count))
		}
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

func (s *modeSet) synced(r engine.Sync) {
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

// packets is a collector of what the kernel counts, which is asked for at each
// scrape.
type packets func() dataplane.Packets

var (
	invalidPackets = prometheus.NewDesc("kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
		"Packets dropped because conntrack considers them invalid.", nil, nil)
	localhostPackets = prometheus.NewDesc("kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
		"Connections accepted on NodePorts of loopback addresses, counted by their first packet.", nil, nil)
)

// Describe implements prometheus.Collector.
func (packets) Describe(ch chan<- *prometheus.Desc) {
	ch <- invalidPackets
	ch <- localhostPackets
}

// Collect implements prometheus.Collector.
func (p packets) Collect(ch chan<- prometheus.Metric) {
	n := p()
	ch <- prometheus.MustNewConstMetric(invalidPackets, prometheus.CounterValue, float64(n.Invalid))
	ch <- prometheus.MustNewConstMetric(localhostPackets, prometheus.CounterValue, float64(n.Localhost))
}

// listeners is a collector of the relays that listen for node ports on loopback addresses.
type listeners func() dataplane.Packets

var (
	openListeners = prometheus.NewDesc("kubeproxy_nftables_localhost_nodeport_listeners",
		"Listeners for node ports on loopback addresses.", []string{familyLabel}, nil)
	failedListeners = prometheus.NewDesc("kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total",
		"Attempts to listen for a node port on a loopback address that failed.", []string{familyLabel}, nil)
	rejectedPackets = prometheus.NewDesc("kubeproxy_nftables_localhost_nodeport_rejected_packets_total",
		"Always 0: without a listener the kernel rejects packets to node ports on loopback addresses itself.", []string{familyLabel, "protocol"}, nil)
)

// Describe implements prometheus.Collector.
func (listeners) Describe(ch chan<- *prometheus.Desc) {
	ch <- openListeners
	ch <- failedListeners
	ch <- rejectedPackets
}

// Collect implements prometheus.Collector.
func (l listeners) Collect(ch chan<- prometheus.Metric) {
	n := l()
	for _, f := range model.Families() {
		ch <- prometheus.MustNewConstMetric(openListeners, prometheus.GaugeValue, float64(n.Listeners[f]), f.String())
		ch <- prometheus.MustNewConstMetric(failedListeners, prometheus.CounterValue, float64(n.ListenFailures[f]), f.String())
		for _, proto := range []model.Proto{model.TCP, model.UDP, model.SCTP} {
			ch <- prometheus.MustNewConstMetric(rejectedPackets, prometheus.CounterValue, 0, f.String(), proto.String())
		}
	}
}

// balancers is a collector of the calls to HNS that failed. There are no series before the first
// failure, as in kube-proxy. HNS cannot distinguish the addresses of load balancers from
// external IPs: all are "externalip".
type balancers func() dataplane.Packets

// Describe implements prometheus.Collector. It is an unchecked one.
func (balancers) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (b balancers) Collect(ch chan<- prometheus.Metric) {
	for f, n := range b().Balancers {
		d := prometheus.NewDesc("kubeproxy_sync_proxy_rules_winkernel_lb_"+f.Verb+"_failures_total",
			"Load balancers of HNS whose "+f.Verb+" failed.", []string{familyLabel, "lb_type", "error"}, nil)
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), f.Family.String(), f.Type, f.Error)
	}
}
