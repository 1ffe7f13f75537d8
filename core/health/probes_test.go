// SPDX-License-Identifier: Apache-2.0

package health_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/health"
	"github.com/tandem-proxy/tandem/core/question"
)

// The fields and codes are kube-proxy's: its clients parse them.
func TestProbes(t *testing.T) {
	synced, now := time.Unix(1000, 0).UTC(), time.Unix(2000, 0).UTC()
	good := question.Health{At: now, SyncedAt: synced, Synced: true}
	leaving, stuck := good, good
	leaving.Leaving, stuck.Stuck, stuck.Reasons = true, true, []string{"kernel says no"}
	const families = `{"IPv4":{"lastUpdated":"1970-01-01T00:16:40Z","healthy":%t},"IPv6":{"lastUpdated":"1970-01-01T00:16:40Z","healthy":%[1]t}}`
	doc := func(updated, eligible string, healthy bool, rest string) string {
		return fmt.Sprintf(`{"lastUpdated":%q,"currentTime":"1970-01-01T00:33:20Z",%s"healthy":%t%s}`, updated, eligible, healthy, rest)
	}
	const nowText, syncedText, never = "1970-01-01T00:33:20Z", "1970-01-01T00:16:40Z", "0001-01-01T00:00:00Z"
	for _, c := range []struct {
		name, path string
		health     question.Health
		code       int
		want       string
	}{
		{"healthy", "/healthz", good, 200, doc(nowText, `"nodeEligible":true,`, true, `,"status":`+fmt.Sprintf(families, true))},
		{"alive", "/livez", good, 200, doc(nowText, "", true, `,"status":`+fmt.Sprintf(families, true))},
		{"leaving", "/healthz", leaving, 503, doc(syncedText, `"nodeEligible":false,`, true, `,"status":`+fmt.Sprintf(families, true))},
		{"leaving, alive", "/livez", leaving, 200, doc(nowText, "", true, `,"status":`+fmt.Sprintf(families, true))},
		{"stuck", "/healthz", stuck, 503, doc(syncedText, `"nodeEligible":true,`, false, `,"status":`+fmt.Sprintf(families, false)+`,"reasons":["kernel says no"]`)},
		{"stuck, alive", "/livez", stuck, 503, doc(syncedText, "", false, `,"status":`+fmt.Sprintf(families, false)+`,"reasons":["kernel says no"]`)},
		{"before the first sync", "/healthz", question.Health{At: now}, 503, doc(never, `"nodeEligible":true,`, false, "")},
		{"before the first sync, alive", "/livez", question.Health{At: now}, 200, doc(nowText, "", false, "")},
	} {
		var counted []string
		h := health.Probes(func() question.Health { return c.health }, func(probe string, code int) {
			counted = append(counted, fmt.Sprint("/", probe, " ", code))
		})
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", c.path, nil))
		if w.Code != c.code || w.Body.String() != c.want {
			t.Errorf("%s: %d\n got %s\nwant %s", c.name, w.Code, w.Body, c.want)
		}
		if w.Header().Get("Content-Type") != "application/json" || w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: header %v", c.name, w.Header())
		}
		if want := fmt.Sprint(c.path, " ", c.code); !slices.Equal(counted, []string{want}) {
			t.Errorf("%s: counted %q", c.name, counted)
		}
		if !json.Valid(w.Body.Bytes()) {
			t.Errorf("%s: no JSON", c.name)
		}
	}
	w := httptest.NewRecorder()
	health.Probes(func() question.Health { return good }, nil).ServeHTTP(w, httptest.NewRequest("GET", "/other", nil))
	if w.Code != http.StatusNotFound {
		t.Errorf("/other: %d", w.Code)
	}
}
