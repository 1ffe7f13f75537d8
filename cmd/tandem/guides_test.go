// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
)

// guides are those for distributions, with the configurations of their kube-proxies.
const guides = "../../installers/kubernetes/guides"

// distributions have a page of the manual, which is a guide, and a fixture.
func distributions() []string {
	return []string{"aks", "eks", "k3s", "kops", "kubespray", "rke2", "talos"}
}

// What kube-proxy is started with in each distribution that has a guide starts Tandem,
// with no other warnings than those named here.
func TestDistributionsStart(t *testing.T) {
	for name, want := range map[string]struct {
		mode     config.Mode
		cidrs    int
		warnings []string // their beginnings
	}{
		"k3s":         {mode: "iptables", cidrs: 1},
		"rke2":        {mode: "ipvs", cidrs: 1},
		"kops":        {mode: config.Auto, cidrs: 1},
		"talos":       {mode: config.NFTables, cidrs: 1},
		"talos-flags": {mode: config.NFTables, cidrs: 1},
		"kubespray":   {mode: "ipvs", cidrs: 1},
		"eks":         {mode: "iptables"},
		"aks":         {mode: config.Auto, cidrs: 1},
	} {
		c, r := command(t, flagsOf(t, name)...)
		if r.Err() != nil || c.Mode != want.mode || len(c.ClusterCIDRs) != want.cidrs || c.API.Kubeconfig == "" {
			t.Errorf("%s: mode %s, pods %v, kubeconfig %s: %v", name, c.Mode, c.ClusterCIDRs, c.API.Kubeconfig, r.Err())
		}
		for i, n := range r.Notes {
			if i >= len(want.warnings) || !strings.Contains(n.String(), want.warnings[i]) {
				t.Errorf("%s: unexpected warning: %v", name, n)
			}
		}
		if len(r.Notes) < len(want.warnings) {
			t.Errorf("%s: %d of the warnings %v", name, len(r.Notes), want.warnings)
		}
	}
}

// Each guide has a fixture, each fixture a source, and each guide all its parts.
func TestGuides(t *testing.T) {
	pages := distributions()
	for _, name := range pages {
		page := "../../core/manual/pages/" + name + ".md"
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"## Turn kube-proxy off", "## Install Tandem", "## Back", "https://"} {
			if !strings.Contains(string(text), part) {
				t.Errorf("%s has no %q", page, part)
			}
		}
		if n := strings.Count(string(text), "\n"); n > 70 {
			t.Errorf("%s is longer than a screen: %d lines", page, n)
		}
		flagsOf(t, name)
	}
	fixtures, err := filepath.Glob(filepath.Join(guides, "testdata", "*"))
	if err != nil || len(fixtures) < len(pages) {
		t.Fatal(fixtures, err)
	}
	for _, file := range fixtures {
		if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "https://") {
			t.Errorf("%s names no source (%v)", file, err)
		}
	}
}

// flagsOf reads a fixture: flags, one on a line. The kubelet fills in the node's name.
func flagsOf(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(guides, "testdata", name+".flags"))
	if err != nil {
		t.Fatal(err)
	}
	lines := slices.DeleteFunc(strings.Split(strings.TrimSpace(string(text)), "\n"), func(l string) bool { return strings.HasPrefix(l, "#") })
	for i, l := range lines {
		if file, ok := strings.CutPrefix(l, "--config="); ok {
			l = "--config=" + filepath.Join(guides, "testdata", file)
		}
		lines[i] = strings.ReplaceAll(l, "$(NODE_NAME)", "node-1")
	}
	return lines
}
