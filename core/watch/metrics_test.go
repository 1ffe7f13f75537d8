// SPDX-License-Identifier: Apache-2.0

package watch_test

import (
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/client-go/tools/metrics"

	"github.com/tandem-proxy/tandem/core/watch"
)

// The metrics of the client are those of all of Kubernetes' components: names,
// types, labels and buckets.
func TestClientMetrics(t *testing.T) {
	r := prometheus.NewRegistry()
	r.MustRegister(watch.ClientMetrics()...)
	ctx, host := t.Context(), url.URL{Host: "api:6443"}
	metrics.RequestLatency.Observe(ctx, "GET", host, 30*time.Millisecond)
	metrics.RateLimiterLatency.Observe(ctx, "GET", host, time.Millisecond)
	metrics.RequestSize.Observe(ctx, "GET", host.Host, 10)
	metrics.ResponseSize.Observe(ctx, "GET", host.Host, 10)
	metrics.RequestResult.Increment(ctx, "200", "GET", host.Host)
	metrics.RequestRetry.IncrementRetry(ctx, "429", "GET", host.Host)
	metrics.ExecPluginCalls.Increment(1, "plugin_execution_error")
	metrics.ClientCertRotationAge.Observe(time.Hour)
	metrics.TransportCacheEntries.Observe(2)
	metrics.TransportCreateCalls.Increment("hit")
	metrics.TransportCAReloads.Increment("success", "x")
	metrics.TransportCertRotationGCCalls.Increment()
	metrics.TransportCacheGCCalls.Increment("deleted")

	have := map[string]string{}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		have[f.GetName()] = metricLine(f)
		if h := f.Metric[0].GetHistogram(); h != nil && h.GetSchema() == 0 {
			t.Errorf("%s is not a native histogram", f.GetName())
		}
		if f.GetName() == "rest_client_exec_plugin_ttl_seconds" && fmt.Sprint(f.Metric[0].Gauge.GetValue()) != "+Inf" {
			t.Error("a certificate that does not exist expires")
		}
	}
	b, err := os.ReadFile("testdata/rest_client.txt")
	if err != nil {
		t.Fatal(err)
	}
	for want := range strings.Lines(string(b)) {
		if want = strings.TrimSpace(want); strings.HasPrefix(want, "#") {
			continue
		}
		name, _, _ := strings.Cut(want, " ")
		if have[name] != want {
			t.Errorf("\n got %s\nwant %s", have[name], want)
		}
		delete(have, name)
	}
	for name := range have {
		t.Errorf("%s is not unique", name)
	}
}

// metricLine renders a metric as the list in testdata does.
func metricLine(f *dto.MetricFamily) string {
	m := f.Metric[0]
	s := f.GetName() + " " + strings.ToLower(f.GetType().String())
	var labels, buckets []string
	for _, l := range m.Label {
		labels = append(labels, l.GetName())
	}
	slices.Sort(labels)
	if len(labels) > 0 {
		s += " {" + strings.Join(labels, ",") + "}"
	}
	for _, b := range m.GetHistogram().GetBucket() {
		buckets = append(buckets, fmt.Sprint(b.GetUpperBound()))
	}
	if len(buckets) > 0 {
		s += " [" + strings.Join(buckets, " ") + "]"
	}
	return s
}
