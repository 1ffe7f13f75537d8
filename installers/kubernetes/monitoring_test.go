// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/metrics"
	"github.com/tandem-proxy/tandem/core/model"
)

// metric matches the names of metrics that rules and panels use.
var metric = regexp.MustCompile(`\b(?:tandem|kubeproxy|process)_[a-z0-9_]+\b`)

// scraped are the names of all metrics that core/metrics serves, with those of the
// series that histograms consist of.
func scraped(t *testing.T) map[string]bool {
	t.Helper()
	m := metrics.New(metrics.Sources{
		Version:  "test",
		Status:   func() engine.Status { return engine.Status{} },
		Ages:     func() map[string]float64 { return map[string]float64{"services": 0} },
		Failover: func() (metrics.Failover, bool) { return metrics.Failover{}, true },
	})
	m.Problem(model.Problem{}) // its series begin with the first one
	m.Synced(engine.Sync{Full: true, Ports: [2]int{1, 1}, Waiting: time.Millisecond})
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	names := map[string]bool{}
	for line := range strings.Lines(w.Body.String()) {
		if f := strings.Fields(line); len(f) == 4 && f[1] == "TYPE" {
			names[f[2]] = true
			if f[3] == "histogram" {
				names[f[2]+"_bucket"], names[f[2]+"_sum"], names[f[2]+"_count"] = true, true, true
			}
		}
	}
	return names
}

// TestMonitoredMetricsExist: no alert and no panel uses a metric that does not exist.
func TestMonitoredMetricsExist(t *testing.T) {
	have := scraped(t)
	for _, file := range []string{"chart/files/alerts.yaml", "chart/files/dashboard.json"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		names := metric.FindAllString(string(text), -1)
		if len(names) < 8 {
			t.Errorf("%s names %d metrics only", file, len(names))
		}
		for _, name := range names {
			if !have[name] {
				t.Errorf("%s uses %s, which core/metrics does not have", file, name)
			}
		}
	}
}

// TestStatesExist: the state that alerts and panels select is one that Services have.
func TestStatesExist(t *testing.T) {
	states := map[string]bool{}
	for state := range len(engine.Status{}.Services) {
		states[model.State(state).String()] = true
	}
	for _, file := range []string{"chart/files/alerts.yaml", "chart/files/dashboard.json"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`state=\\?"(\w+)`).FindAllStringSubmatch(string(text), -1)
		if len(found) == 0 {
			t.Errorf("%s selects no state", file)
		}
		for _, f := range found {
			if !states[f[1]] {
				t.Errorf("%s: no Service is %s: %v", file, f[1], states)
			}
		}
	}
}

// TestDashboard checks what Grafana needs to show the dashboard.
func TestDashboard(t *testing.T) {
	type position struct{ X, Y, W, H int }
	var board struct {
		UID, Title    string
		SchemaVersion int
		Time          struct{ From, To string }
		Templating    struct{ List []struct{ Name, Type string } }
		Panels        []struct {
			ID          int
			Type, Title string
			GridPos     position
			Datasource  struct{ Type, UID string }
			Targets     []struct{ RefID, Expr string }
		}
	}
	text, err := os.ReadFile("chart/files/dashboard.json")
	if err == nil {
		err = json.Unmarshal(text, &board)
	}
	if err != nil {
		t.Fatal(err)
	}
	if board.UID == "" || len(board.UID) > 40 || board.Title == "" || board.SchemaVersion < 36 || board.Time.From == "" || len(board.Panels) < 10 {
		t.Errorf("the dashboard is %+v", board)
	}
	variables := map[string]bool{"__rate_interval": true}
	for _, v := range board.Templating.List {
		variables[v.Name] = true
	}
	for _, v := range regexp.MustCompile(`\$\{?(\w+)`).FindAllStringSubmatch(string(text), -1) {
		if !variables[v[1]] && v[1] != "__all" {
			t.Errorf("there is no variable %s", v[1])
		}
	}
	ids := map[int]bool{}
	for i, p := range board.Panels {
		if ids[p.ID] || p.ID == 0 || p.Title == "" || p.GridPos.W < 1 || p.GridPos.H < 1 || p.GridPos.X < 0 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %d: %+v", i, p)
		}
		ids[p.ID] = true
		for _, q := range board.Panels[:i] {
			a, b := p.GridPos, q.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("panels %q and %q overlap", p.Title, q.Title)
			}
		}
		if p.Type == "row" {
			continue
		}
		refs := map[string]bool{}
		for _, target := range p.Targets {
			if refs[target.RefID] || target.RefID == "" || target.Expr == "" {
				t.Errorf("panel %q has the target %+v", p.Title, target)
			}
			refs[target.RefID] = true
		}
		if len(refs) == 0 || p.Datasource.Type != "prometheus" || p.Datasource.UID == "" {
			t.Errorf("panel %q has no query: %+v", p.Title, p)
		}
	}
}
