// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

// TestPromQL parses every expression of the alerts and the dashboard with Prometheus' own
// parser, and checks that each selects by a metric's name that begins as ours do: whether
// core/metrics has it is the test's of installers/kubernetes.
func TestPromQL(t *testing.T) {
	all := append(alertExpressions(t), panelExpressions(t)...)
	if len(all) < 25 {
		t.Errorf("only %d expressions", len(all))
	}
	for _, text := range all {
		e, err := parser.NewParser(parser.Options{}).ParseExpr(strings.ReplaceAll(text, "$__rate_interval", "5m"))
		if err != nil {
			t.Errorf("%v in\n%s", err, text)
			continue
		}
		parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
			if s, ok := n.(*parser.VectorSelector); ok && !ours(s.Name) {
				t.Errorf("%q is no metric of Tandem, in\n%s", s.Name, text)
			}
			return nil
		})
	}
}

func ours(metric string) bool {
	return strings.HasPrefix(metric, "tandem_") || strings.HasPrefix(metric, "kubeproxy_") || strings.HasPrefix(metric, "process_")
}

// alertExpressions are those of the PrometheusRule, as the chart renders it: each alert
// has everything that an operator needs.
func alertExpressions(t *testing.T) (all []string) {
	t.Helper()
	files, err := render(load(t), options()["monitoring"])
	if err != nil {
		t.Fatal(err)
	}
	var rule struct {
		Spec struct {
			Groups []struct {
				Name  string
				Rules []struct {
					Alert, Expr, For    string
					Labels, Annotations map[string]string
				}
			}
		}
	}
	if err := yaml.Unmarshal([]byte(files["alerts.yaml"]), &rule); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, g := range rule.Spec.Groups {
		for _, r := range g.Rules {
			if names[r.Alert] || r.Alert == "" || r.For == "" || r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("alert %q is incomplete or twice there: %+v", r.Alert, r)
			}
			names[r.Alert] = true
			all = append(all, r.Expr)
		}
	}
	return all
}

// panelExpressions are those of the dashboard in the ConfigMap.
func panelExpressions(t *testing.T) (all []string) {
	t.Helper()
	files, err := render(load(t), options()["monitoring"])
	if err != nil {
		t.Fatal(err)
	}
	var config struct{ Data map[string]string }
	if err := yaml.Unmarshal([]byte(files["dashboard.yaml"]), &config); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(filepath.Join(chart, "files", "dashboard.json"))
	if err != nil || config.Data["tandem.json"] != string(file) {
		t.Errorf("the ConfigMap has another dashboard than the file (%v)", err)
	}
	var board struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal(file, &board); err != nil {
		t.Fatal(err)
	}
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			all = append(all, target.Expr)
		}
	}
	return all
}
