package metrics_test

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/metrics"
)

func TestMetrics(t *testing.T) {
	m := metrics.New()
	m.Synced(time.Millisecond, 3*time.Millisecond, 7, 0, nil, time.Unix(1234, 0))
	m.Synced(0, time.Millisecond, 1, 2, errors.New("refused"), time.Unix(5678, 0))
	m.Drifted(4)
	m.Problem("FrontTaken")
	m.FlowsDeleted(5)
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, line := range []string{
		"kubeproxy_sync_proxy_rules_duration_seconds_count 2",
		`kubeproxy_sync_proxy_rules_duration_seconds_bucket{le="0.001"} 1`,
		"kubeproxy_sync_proxy_rules_last_timestamp_seconds 1234", // a sync that failed is not the last good one
		"tandem_sync_failures_total 1",
		"tandem_event_wait_seconds_count 1",
		`tandem_problems_total{reason="FrontTaken"} 1`,
		"tandem_dataplane_ops_total 8",
		"tandem_dataplane_op_failures_total 2",
		"tandem_dataplane_drift_objects_total 4",
		"kubeproxy_conntrack_reconciler_deleted_entries_total 5",
		"process_resident_memory_bytes",
		"go_goroutines",
	} {
		if !strings.Contains(w.Body.String(), "\n"+line) {
			t.Errorf("%q is missing", line)
		}
	}
}
