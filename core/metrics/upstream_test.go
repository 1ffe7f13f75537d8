// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/metrics"
	"github.com/tandem-proxy/tandem/core/model"
)

// line renders a metric as the lists in testdata do.
func line(f *dto.MetricFamily) string {
	m := f.Metric[0]
	s := f.GetName() + " " + strings.ToLower(f.GetType().String())
	var labels []string
	for _, l := range m.Label {
		labels = append(labels, l.GetName())
	}
	slices.Sort(labels)
	if len(labels) > 0 {
		s += " {" + strings.Join(labels, ",") + "}"
	}
	if f.GetType() == dto.MetricType_HISTOGRAM {
		var buckets []string
		for _, b := range m.Histogram.Bucket {
			buckets = append(buckets, fmt.Sprint(b.GetUpperBound()))
		}
		s += " [" + strings.Join(buckets, " ") + "]"
	}
	return s
}

// Dashboards and alerts made for kube-proxy find everything they ask for: names,
// types, labels and buckets.
func TestWhatKubeProxyReports(t *testing.T) {
	for _, mode := range []string{"iptables", "ipvs", "nftables"} {
		m := metrics.New(metrics.Sources{
			Version: "test",
			Status:  func() engine.Status { return engine.Status{} },
			Packets: func() dataplane.Packets { return dataplane.Packets{Invalid: 1, Localhost: 2} },
		})
		m.Mode("before") // a switch
		m.Mode("iptables")
		m.Mode(mode)
		m.Probed("healthz", http.StatusOK)
		m.Probed("livez", http.StatusOK)
		if mode == "iptables" {
			m.Synced(engine.Sync{Work: dataplane.Work{Rules: []dataplane.Rules{{Table: "nat", Family: model.IPv4, Total: 10, Written: 2}}}})
		}
		have, native := map[string]string{}, map[string]bool{}
		families, err := m.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			have[f.GetName()], native[f.GetName()] = line(f), f.Metric[0].GetHistogram().GetSchema() != 0
		}
		b, err := os.ReadFile(filepath.Join("testdata", mode+".txt"))
		if err != nil {
			t.Fatal(err)
		}
		listed := 0
		for want := range strings.Lines(string(b)) {
			if want = strings.TrimSpace(want); strings.HasPrefix(want, "#") {
				continue
			}
			listed++
			name, _, _ := strings.Cut(want, " ")
			if native[name] != strings.HasPrefix(want, name+" histogram") {
				t.Errorf("%s: %s is a native histogram: %v", mode, name, native[name])
			}
			if have[name] != want {
				t.Errorf("%s:\n got %s\nwant %s", mode, have[name], want)
			}
		}
		if listed < 20 {
			t.Errorf("%s: only %d metrics are listed", mode, listed)
		}
	}
}

// Calls to HNS that fail have kube-proxy's names and labels, from the first failure on.
func TestBalancerFailures(t *testing.T) {
	failed := map[dataplane.BalancerFailure]uint64{}
	m := metrics.New(metrics.Sources{
		Status:  func() engine.Status { return engine.Status{} },
		Packets: func() dataplane.Packets { return dataplane.Packets{Balancers: failed} },
	})
	m.Mode("kernelspace")
	for _, want := range []string{"create", "update", "delete"} {
		failed[dataplane.BalancerFailure{Verb: want, Family: model.IPv4, Type: "nodeport", Error: "port_already_exists"}] = 2
		families, err := m.Gather()
		if err != nil {
			t.Fatal(err)
		}
		name := "kubeproxy_sync_proxy_rules_winkernel_lb_" + want + "_failures_total"
		i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == name })
		if i < 0 {
			t.Fatalf("%s is missing", name)
		}
		if got := line(families[i]); got != name+" counter {error,ip_family,lb_type}" || families[i].Metric[0].Counter.GetValue() != 2 {
			t.Errorf("%s: %v", got, families[i].Metric[0])
		}
	}
}

// What a data plane counts goes with its mode, and comes back with it once.
func TestCountsFollowTheMode(t *testing.T) {
	packets := dataplane.Packets{Balancers: map[dataplane.BalancerFailure]uint64{{Verb: "create", Type: "nodeport"}: 1}}
	m := metrics.New(metrics.Sources{
		Status:  func() engine.Status { return engine.Status{} },
		Packets: func() dataplane.Packets { return packets },
	})
	for _, c := range []struct {
		mode string
		want bool
	}{{"kernelspace", true}, {"userspace", false}, {"kernelspace", true}} {
		m.Mode(c.mode)
		families, err := m.Gather()
		if err != nil {
			t.Fatalf("mode %s: %v", c.mode, err)
		}
		there := slices.ContainsFunc(families, func(f *dto.MetricFamily) bool {
			return f.GetName() == "kubeproxy_sync_proxy_rules_winkernel_lb_create_failures_total"
		})
		if there != c.want {
			t.Errorf("mode %s: failed calls to HNS are there: %v, want %v", c.mode, there, c.want)
		}
	}
}

// The release whose version we report is the one whose programs ours is compared with.
func TestRelease(t *testing.T) {
	b, err := os.ReadFile("../../ci/kubernetes/upstream/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.ReplaceAll(string(b), "\n", " "), "\tk8s.io/kubernetes v"+metrics.Kubernetes+" ") {
		t.Errorf("ci/kubernetes/upstream/go.mod has another k8s.io/kubernetes than v%s", metrics.Kubernetes)
	}
}

// However large the cluster, the number of series stays.
func TestSeriesAreBounded(t *testing.T) {
	m := metrics.New(metrics.Sources{Status: func() engine.Status { return engine.Status{} }})
	m.Mode("nftables")
	series := func() (n int) {
		families, err := m.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			n += len(f.Metric)
		}
		return n
	}
	m.Problem(model.Problem{})
	before := series()
	for i := range 10000 {
		name := model.ServiceName{Namespace: fmt.Sprint("ns", i), Name: "s"}
		p := &model.Port{ID: model.PortID{Service: name}, HealthPort: uint16(i)}
		m.Synced(engine.Sync{
			Applied: []model.Delta{{New: p}}, Took: time.Millisecond,
			StateChanges: []engine.StateChange{{Service: name, State: model.Failing}},
		})
		m.Problem(model.Problem{Object: "Service " + name.String(), Detail: name.String()})
	}
	if after := series(); after != before {
		t.Errorf("%d series, %d after 10,000 Services", before, after)
	}
}
