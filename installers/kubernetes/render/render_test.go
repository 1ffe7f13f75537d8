// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const chart = "../chart"

func load(t *testing.T) *v2.Chart {
	t.Helper()
	c, err := loader.LoadDir(chart)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// options are the ways in which the chart is used.
func options() map[string]map[string]any {
	return map[string]map[string]any{
		"default":           nil,
		"own configuration": own(),
		"Linux only":        {"windows": map[string]any{"enabled": false}},
		"Windows only":      {"linux": map[string]any{"enabled": false}},
	}
}

func TestLint(t *testing.T) {
	for name, values := range options() {
		for _, m := range lint.RunAll(chart, values, namespace).Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %v", name, m)
			}
		}
	}
}

// TestPlain checks that what lies beside the chart is what it renders to.
func TestPlain(t *testing.T) {
	files, err := beside(load(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		if got, err := os.ReadFile(filepath.Join("..", name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what the chart makes (%v); go run . in this folder writes it", name, err)
		}
	}
	have, err := filepath.Glob("../kustomize/*")
	if err != nil {
		t.Fatal(err)
	}
	if len(have) != len(files)-len([]string{"tandem.yaml", "testdata/own.yaml"}) {
		t.Errorf("kustomize holds %v, beside what the chart makes: %v", have, slices.Sorted(maps.Keys(files)))
	}
}

// TestKustomize lets kustomize build its base, and compares with the plain file.
func TestKustomize(t *testing.T) {
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), "../kustomize")
	if err != nil {
		t.Fatal(err)
	}
	text, err := built.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	plain, err := os.ReadFile("../tandem.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got, want := objects(t, string(text)), objects(t, string(plain))
	if len(want) < 6 || len(got) != len(want) {
		t.Errorf("kustomize makes %d objects, the plain file has %d", len(got), len(want))
	}
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("kustomize makes of %s\n%s\nand the plain file has\n%s", name, got[name], want[name])
		}
	}
}

func TestOptions(t *testing.T) {
	for name, values := range options() {
		files, err := render(load(t), values)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		all := strings.Join(slices.Collect(maps.Values(files)), "---\n")
		objects(t, all)
		expect := func(holds bool, text string) {
			t.Helper()
			if strings.Contains(all, text) != holds {
				t.Errorf("%s: %q in the manifests: %t", name, text, !holds)
			}
		}
		own := name == "own configuration"
		expect(own, "server: https://192.0.2.10:6443")
		expect(own, "kind: PodMonitor")
		expect(own, "registry.example/tandem:v1-iptables")
		expect(own, "add: [NET_ADMIN, NET_RAW]")
		expect(own, "--log-level=debug")
		expect(own, "mode: nftables")
		expect(false, "enableDSR") // kube-proxy's default, off: the CNI plug-in may have no loopback DSR
		expect(name != "Linux only", "name: tandem-windows")
		expect(name != "Windows only", "kubernetes.io/os: linux")
	}
}

// TestMistakes: what cannot work is refused, with a word on what to do.
func TestMistakes(t *testing.T) {
	for want, values := range map[string]map[string]any{
		"config.apiServer must name the API server": {"config": map[string]any{"existing": ""}},
		"additional properties 'imgae' not allowed": {"imgae": map[string]any{}},
		"does not match pattern":                    {"config": map[string]any{"apiServer": "192.0.2.10"}},
	} {
		if _, err := render(load(t), values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// objects returns the objects of a file as JSON, by kind and name.
func objects(t *testing.T, text string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for doc := range strings.SplitSeq("\n"+text, "\n---\n") {
		var meta struct {
			Kind     string
			Metadata struct{ Name string }
		}
		js, err := yaml.YAMLToJSONStrict([]byte(doc + "\n"))
		if err == nil {
			err = yaml.Unmarshal(js, &meta)
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		if meta.Kind != "" {
			all[meta.Kind+" "+meta.Metadata.Name] = string(js)
		}
	}
	return all
}
