// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"cmp"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
)

// The schema of the chart's values has each field of the configuration file, with its type, and no other.
func TestChartHasEveryField(t *testing.T) {
	const path = "../../installers/kubernetes/chart/values.schema.json"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Definitions struct{ Settings map[string]any }
		Properties  struct {
			Config, Windows struct {
				Properties struct{ Settings map[string]any }
			}
		}
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	section := func() map[string]any {
		return map[string]any{"type": "object", "additionalProperties": false, "properties": map[string]any{}}
	}
	want := section()
	within := func(s map[string]any, name string) map[string]any { return s["properties"].(map[string]any) }
	for _, name := range []string{"apiVersion", "kind"} {
		within(want, "")[name] = map[string]any{"type": "string"}
	}
	preset := config.Default()
	for _, s := range config.Settings() {
		if s.Path == "" {
			continue
		}
		at, name := want, s.Path
		if group, field, nested := strings.Cut(s.Path, "."); nested {
			if within(want, "")[group] == nil {
				within(want, "")[group] = section()
			}
			at, name = within(want, "")[group].(map[string]any), field
		}
		within(at, "")[name] = typeOf(s.Value(&preset).Kind)
	}
	within(want, "")["logging"].(map[string]any)["additionalProperties"] = true // options of formats
	if !reflect.DeepEqual(schema.Definitions.Settings, want) {
		is, _ := json.MarshalIndent(want, "", "  ")
		t.Errorf("definitions.settings of %s must be\n%s", path, is)
	}
	for name, of := range map[string]map[string]any{"config": schema.Properties.Config.Properties.Settings, "windows": schema.Properties.Windows.Properties.Settings} {
		if of["$ref"] != "#/definitions/settings" {
			t.Errorf("%s.settings is %v", name, of)
		}
	}
}

// Where the chart and Tandem read healthzBindAddress, they find the same port.
func TestHealthPortsOfTheChart(t *testing.T) {
	text, err := os.ReadFile("../../installers/kubernetes/testdata/health-addresses")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		address, port, _ := strings.Cut(strings.TrimSpace(line), " ")
		if address == "#" {
			continue
		}
		said := []string{"healthzBindAddress=" + address}
		if address == "-" {
			said = nil
		}
		c, r := build(said...)
		if r.Err() != nil || !strings.HasSuffix(c.HealthAddress, ":"+port) {
			t.Errorf("%s: %s, want port %s: %v", address, c.HealthAddress, port, r.Err())
		}
	}
}

// typeOf is how a kind of value is written in a file; null is the default of all.
func typeOf(k config.Kind) map[string]any {
	of := map[config.Kind]string{
		config.Bool: "boolean", config.Int: "integer", config.Number: "number", config.List: "array", config.Modules: "array", config.Map: "object",
	}[k]
	if k == config.Interval {
		return map[string]any{"type": []any{"string", "integer", "null"}}
	}
	return map[string]any{"type": []any{cmp.Or(of, "string"), "null"}}
}
