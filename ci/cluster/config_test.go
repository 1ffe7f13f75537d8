// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

func exists(t *testing.T, dir, path string) bool {
	t.Helper()
	_, err := os.Stat(filepath.Join(dir, filepath.Base(path)))
	return err == nil
}

// TestFiles renders every template and parses the result as what it is.
func TestFiles(t *testing.T) {
	p, err := newPlan(shape{Nodes: 1, Zones: 1})
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]any{
		"cni.json":          p.Workers[0],
		"kubelet.yaml":      map[string]string{"Name": "node-1", "DNS": dnsAddress},
		"containerd.toml":   map[string]string{"Pause": pauseImage},
		"coredns.yaml":      map[string]string{"DNS": dnsAddress},
		"load.yaml":         loadValues(),
		"questions.yaml":    loadValues(),
		"metallb.yaml":      map[string]string{"Pool": "172.18.200.1-172.18.200.9", "Class": "metallb.io/lab"},
		"prometheus.yaml":   map[string]string{"Image": "prometheus:lab", "Targets": `"172.18.0.11:10249"`, "Alerts": `"groups: []"`},
		"rolling.yaml":      map[string]string{"Name": "r", "Image": pauseImage},
		"proxy-config.yaml": map[string]string{"Mode": "nftables", "Metrics": "", "ClusterCIDR": p.ranges(podNets), "NodePorts": p.ranges(machineNets) + ",127.0.0.0/8", "Server": "172.18.0.10"},
	}
	names, err := fs.Glob(files, "files/*")
	if err != nil || len(names) < 7 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		base := filepath.Base(name)
		text, err := render(base, values[base])
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		switch filepath.Ext(name) {
		case ".json":
			var v struct {
				Plugins []struct {
					Type string
					IPAM struct{ Ranges [][]struct{ Subnet string } }
				}
			}
			if err := json.Unmarshal(text, &v); err != nil || len(v.Plugins) != 2 || len(v.Plugins[0].IPAM.Ranges) != 2 || v.Plugins[0].IPAM.Ranges[1][0].Subnet != "fd00:10:244:1::/64" {
				t.Errorf("%s: %v, %+v", name, err, v)
			}
		case ".yaml":
			for _, document := range strings.Split(strings.TrimPrefix(string(text), "---\n"), "\n---\n") {
				var v struct{ Kind string }
				if err := yaml.Unmarshal([]byte(document), &v); err != nil || v.Kind == "" {
					t.Errorf("%s: %v in\n%s", name, err, document)
				}
			}
		}
	}
}

// TestMissingValues is an error: no file has a hole.
func TestMissingValues(t *testing.T) {
	if text, err := render("kubelet.yaml", map[string]string{"Name": "node-1"}); err == nil {
		t.Errorf("rendered\n%s", text)
	}
}

// TestKubeconfigs loads those of the host and of a node.
func TestKubeconfigs(t *testing.T) {
	p, err := newPlan(shape{Nodes: 1, Zones: 1})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	admin := filepath.Join(dir, "admin.conf")
	if err := (configuration{plan: p, dir: filepath.Join(dir, "etc")}).write(admin, 4321); err != nil {
		t.Fatal(err)
	}
	for path, server := range map[string]string{admin: "https://127.0.0.1:4321", filepath.Join(dir, "etc", "node-1.conf"): "https://172.18.0.10:6443"} {
		c, err := clientcmd.BuildConfigFromFlags("", path)
		if err != nil || c.Host != server || len(c.CertData) == 0 {
			t.Errorf("%s: %v, %+v", path, err, c)
		}
	}
}
