// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/metrics"
)

// Of 1,000 Services with connections as many have a series as asked for, those that have one
// keep it, a deleted one's goes to another, and the log tells once that there are more.
func TestSeriesOfServicesAreBounded(t *testing.T) {
	const most = 10
	m := metrics.New(metrics.Sources{Status: func() engine.Status { return engine.Status{} }})
	var log bytes.Buffer
	var all []metrics.ServiceConnections
	for i := range 1000 {
		all = append(all, metrics.ServiceConnections{Service: fmt.Sprintf("shop/s%03d", i), New: uint64(1 + i)})
	}
	m.Services(most, slog.New(slog.NewTextHandler(&log, nil)), func() []metrics.ServiceConnections { return all })
	scrape := func() (series []string, text string) {
		w := httptest.NewRecorder()
		m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		for line := range strings.Lines(w.Body.String()) {
			if strings.HasPrefix(line, "tandem_service_connections_total{") {
				series = append(series, strings.TrimSpace(line))
			}
		}
		return series, w.Body.String()
	}
	first, text := scrape()
	if len(first) != most || !strings.Contains(text, "\ntandem_service_connections_omitted 990\n") || first[most-1] != `tandem_service_connections_total{namespace="shop",service="s999"} 1000` {
		t.Errorf("%d series, of the busiest: %q", len(first), first)
	}
	for i := range all {
		all[i].New += uint64(1000-i) * 100 // the others are busier now
	}
	if now, _ := scrape(); len(now) != most || !strings.Contains(now[0], "s990") {
		t.Errorf("other Services have taken the place of those that had one: %q", now)
	}
	all = all[:999] // s999 is deleted
	if now, _ := scrape(); len(now) != most || !strings.Contains(now[0], "s000") {
		t.Errorf("the place of a deleted Service: %q", now)
	}
	if n := strings.Count(log.String(), "limit of --metrics-services reached"); n != 1 {
		t.Errorf("told %d times: %s", n, log.String())
	}
}
