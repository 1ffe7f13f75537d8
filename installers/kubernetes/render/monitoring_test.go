// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
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

// TestPromtool has promtool check the rules of the chart's PrometheusRule, and run the unit
// tests in testdata, which fire each alert, and none for what is close to its limit.
func TestPromtool(t *testing.T) {
	folder, err := exec.CommandContext(t.Context(), "../../../ci/setup/unpack", "prometheus").Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		t.Skipf("promtool: %v: %s", err, exit.Stderr)
	} else if err != nil {
		t.Fatal(err)
	}
	rules, err := yaml.Marshal(prometheusRule(t))
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile("testdata/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range prometheusRule(t).Groups {
		for _, r := range g.Rules {
			if quiet, fires := "{alertname: "+r.Alert+", ", "alertname: "+r.Alert+"\n"; !strings.Contains(string(tests), quiet) || !strings.Contains(string(tests), fires) {
				t.Errorf("testdata/alerts.yaml must have %s fire, and not fire", r.Alert)
			}
		}
	}
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "rules.yaml"), rules, 0o600), os.WriteFile(filepath.Join(dir, "tests.yaml"), tests, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, arguments := range [][]string{{"check", "rules", "--lint=all", "--lint-fatal", "rules.yaml"}, {"test", "rules", "tests.yaml"}} {
		promtool := exec.CommandContext(t.Context(), filepath.Join(strings.TrimSpace(string(folder)), "usr/bin/promtool"), arguments...)
		promtool.Dir = dir
		out, err := promtool.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v: %s", promtool, err, out)
		}
		t.Logf("%s: %s", strings.Join(arguments, " "), out)
	}
}

// rules are the spec of a PrometheusRule, which is a rule file of Prometheus.
type rules struct {
	Groups []struct {
		Name  string `json:"name"`
		Rules []struct {
			Alert       string            `json:"alert"`
			Expr        string            `json:"expr"`
			For         string            `json:"for"`
			Labels      map[string]string `json:"labels"`
			Annotations map[string]string `json:"annotations"`
		} `json:"rules"`
	} `json:"groups"`
}

// prometheusRule returns the spec of the PrometheusRule as the chart renders it.
func prometheusRule(t *testing.T) rules {
	t.Helper()
	files, err := render(load(t), options()["monitoring"])
	if err != nil {
		t.Fatal(err)
	}
	var rule struct {
		APIVersion, Kind string
		Metadata         any
		Spec             rules
	}
	if err := yaml.UnmarshalStrict([]byte(files["alerts.yaml"]), &rule); err != nil {
		t.Fatal(err)
	}
	return rule.Spec
}

// alertExpressions are those of the PrometheusRule: each alert has everything that an
// operator needs.
func alertExpressions(t *testing.T) (all []string) {
	t.Helper()
	names := map[string]bool{}
	for _, g := range prometheusRule(t).Groups {
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
