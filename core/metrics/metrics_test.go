// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"errors"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/metrics"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/track"
)

func scrape(m *metrics.Metrics) string {
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return "\n" + w.Body.String()
}

func expect(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, l := range lines {
		if !strings.Contains(text, "\n"+l) {
			t.Errorf("%q is missing", l)
		}
	}
}

func TestSyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := metrics.New(metrics.Sources{Status: func() engine.Status { return engine.Status{} }})
		m.Mode("nftables")
		now := time.Now()
		m.Synced(engine.Sync{
			Full: true, Ports: [2]int{3, 2}, Waiting: time.Millisecond, Took: 3 * time.Millisecond, Repaired: 4,
			Work: dataplane.Work{Commits: 2, Ops: 7, Verbs: [ledger.Verbs]int{4, 2, 1}},
			Triggered: []track.Trigger{
				{Family: model.IPv4, At: now.Add(-40 * time.Second)},
				{Family: model.IPv6, At: now.Add(time.Hour)}, // a clock is ahead
			},
		})
		m.Synced(engine.Sync{Ports: [2]int{0, 1}, Took: time.Millisecond, Work: dataplane.Work{Failed: 2}, Err: errors.New("refused")})
		m.Synced(engine.Sync{Took: time.Millisecond}) // a retry
		expect(t, scrape(m),
			`kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"} 2`,
			`kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv6"} 3`,
			`kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family="IPv4",le="0.001"} 1`,
			`kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1`,
			`kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family="IPv6"} 2`,
			`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="39"} 0`,
			`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="40"} 1`,
			`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv6",le="0"} 1`,
			`kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4"} 0`,
			`kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv6"} 1`,
			"tandem_sync_failures_total 1",
			"tandem_event_wait_seconds_count 1",
			`tandem_change_stage_duration_seconds_count{stage="write"} 1`,
			`tandem_event_programmed_seconds_bucket{le="0.01024"} 1`,
			`tandem_dataplane_ops_total{verb="create"} 4`,
			`tandem_dataplane_ops_total{verb="delete"} 1`,
			"tandem_dataplane_op_failures_total 2",
			"tandem_dataplane_commits_total 2",
			"tandem_dataplane_repaired_objects_total 4",
			`tandem_sync_ports_bucket{le="1"} 2`,
			`tandem_sync_ports_bucket{le="16"} 3`,
		)
	})
}

func TestStatusIsAskedAtEachScrape(t *testing.T) {
	s := engine.Status{
		SyncedAt: time.Unix(1234, 0), LatestAt: time.Unix(1300, 0), Drift: 5, Audits: engine.Audits{Done: 3, Failed: 1},
		Seen: engine.Changes{Services: 10, Slices: 20}, Done: engine.Changes{Services: 10, Slices: 18}, Services: [model.States]int{7, 2, 1},
	}
	m := metrics.New(metrics.Sources{
		Version: "v9", Status: func() engine.Status { return s },
		Ages: func() map[string]float64 { return map[string]float64{"services": 90} },
	})
	expect(t, scrape(m),
		`kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 1234`,
		`kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv6"} 1300`,
		"kubeproxy_sync_proxy_rules_endpoint_changes_pending 2",
		"kubeproxy_sync_proxy_rules_endpoint_changes_total 20",
		"kubeproxy_sync_proxy_rules_service_changes_pending 0",
		"kubeproxy_sync_proxy_rules_service_changes_total 10",
		"tandem_dataplane_drift_objects_total 5",
		"tandem_audits_total 3",
		"tandem_audit_failures_total 1",
		`tandem_services{state="Programmed"} 7`,
		`tandem_services{state="Failing"} 1`,
		`tandem_watch_age_seconds{resource="services"} 90`,
		`tandem_build_info{version="v9"} 1`,
		"process_resident_memory_bytes", "go_goroutines",
	)
}

// A metric that is made and not registered would never be served.
func TestEveryMetricIsRegistered(t *testing.T) {
	for name, set := range metrics.Sets() {
		if made, registered := reflect.TypeOf(set.Made).NumField(), len(set.Registered); made == 0 || made != registered {
			t.Errorf("%s has %d metrics and registers %d", name, made, registered)
		}
	}
}

// The gauge follows the ports that have endpoints, but none here.
func TestNoLocalEndpoints(t *testing.T) {
	m := metrics.New(metrics.Sources{Status: func() engine.Status { return engine.Status{} }})
	port := func(kinds ...model.Kind) *model.Port {
		p := &model.Port{ID: model.PortID{Service: model.ServiceName{Namespace: "ns", Name: "a"}}}
		for _, k := range kinds {
			f := model.Frontend{Kind: k, At: netip.MustParseAddrPort("192.0.2.1:80")}
			f.On[model.FromOutside] = model.Action{Verdict: model.Drop, Why: model.WhyNoLocalEndpoints}
			p.Frontends = append(p.Frontends, f)
		}
		return p
	}
	const name = `kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy=`
	both, outside, none := port(model.KindClusterIP, model.KindNodePort, model.KindLoadBalancer), port(model.KindNodePort), port()
	for _, step := range []struct {
		d                  model.Delta
		internal, external string
	}{
		{model.Delta{New: both}, "1", "1"},
		{model.Delta{Old: both, New: outside}, "0", "1"},
		{model.Delta{Old: outside, New: none}, "0", "0"},
		{model.Delta{Old: none, New: both}, "1", "1"},
		{model.Delta{Old: both}, "0", "0"},
	} {
		m.Synced(engine.Sync{Applied: []model.Delta{step.d}})
		expect(t, scrape(m), name+`"internal"} `+step.internal, name+`"external"} `+step.external)
	}
}

func TestCounters(t *testing.T) {
	m := metrics.New(metrics.Sources{Status: func() engine.Status { return engine.Status{} }})
	m.Problem(model.Problem{Why: model.WhyFrontendTaken})
	m.FlowsCleaned(flows.Report{Family: model.IPv6, Deleted: 5, Took: time.Millisecond})
	m.Probed("healthz", 503)
	m.Probed("livez", 200)
	m.EventWritten("dropped")
	m.Checked("healthz", false)
	expect(t, scrape(m),
		`tandem_problems_total{reason="FrontendTaken"} 1`,
		`kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv6"} 5`,
		`kubeproxy_conntrack_reconciler_sync_duration_seconds_count{ip_family="IPv6"} 1`,
		`kubeproxy_proxy_healthz_total{code="503"} 1`,
		`kubeproxy_proxy_livez_total{code="200"} 1`,
		`tandem_events_total{outcome="dropped"} 1`,
	)
	w := httptest.NewRecorder()
	m.SLIs().ServeHTTP(w, httptest.NewRequest("GET", "/metrics/slis", nil))
	expect(t, "\n"+w.Body.String(),
		`kubernetes_healthcheck{name="ping",type="healthz"} 0`,
		`kubernetes_healthchecks_total{name="ping",status="error",type="healthz"} 1`,
		"process_start_time_seconds",
	)
}

// The hot path of a change: what its metrics cost.
func BenchmarkSynced(b *testing.B) {
	m := metrics.New(metrics.Sources{Status: func() engine.Status { return engine.Status{} }})
	m.Mode("nftables")
	p := &model.Port{Frontends: []model.Frontend{{}, {}}}
	s := engine.Sync{Applied: []model.Delta{{Old: p, New: p}}, Ports: [2]int{1, 0}, Waiting: 1, Took: 1, Work: dataplane.Work{Ops: 1, Commits: 1}}
	b.ReportAllocs()
	for b.Loop() {
		m.Synced(s)
	}
}

// At a switch a sync of mode iptables may be counted while the metrics are still those of the mode before.
func TestSyncOfAnotherMode(t *testing.T) {
	m := metrics.New(metrics.Sources{Status: func() engine.Status { return engine.Status{} }, Packets: func() dataplane.Packets { return dataplane.Packets{} }})
	m.Mode("nftables")
	sync := engine.Sync{Work: dataplane.Work{Rules: []dataplane.Rules{{Table: "nat", Family: model.IPv4, Total: 3, Written: 1}}}}
	m.Synced(sync)
	m.Mode("iptables")
	m.Synced(sync)
	all, err := m.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == "kubeproxy_sync_proxy_rules_iptables_total" && f.Metric[0].GetGauge().GetValue() == 3 {
			return
		}
	}
	t.Error("the rules of mode iptables are not counted")
}
