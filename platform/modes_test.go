// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/platform"
)

func TestModesAreComplete(t *testing.T) {
	seen := map[config.Mode]bool{}
	for _, m := range platform.Modes() {
		if m.Name == "" || m.Name == config.Auto || seen[m.Name] {
			t.Errorf("mode %q: taken or no name", m.Name)
		}
		seen[m.Name] = true
		if !slices.Contains([]string{"", "linux", "windows"}, m.System) || m.Conntrack && m.System == "windows" {
			t.Errorf("mode %s: system %q, conntrack %t", m.Name, m.System, m.Conntrack)
		}
		if m.Probe == nil || m.Open == nil || m.Plan == nil {
			t.Errorf("mode %s is incomplete", m.Name)
		}
		c := config.Default()
		if p := m.Plan(&c, &model.Host{Name: "n"}, nil); p.Native == "" || p.Objects == 0 {
			t.Errorf("mode %s has no skeleton to plan", m.Name)
		}
	}
}

func TestFind(t *testing.T) {
	if m, err := platform.Find(config.Auto); err != nil || m.Name == config.Auto {
		t.Errorf("auto: %q, %v", m.Name, err)
	}
	_, err := platform.Find("warp")
	for _, part := range append(platform.Names(), "warp", "auto") {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("unknown mode: %q is missing in %v", part, err)
		}
	}
	for _, name := range platform.Names() {
		if _, err := platform.Find(config.Mode(name)); err != nil {
			t.Error(err)
		}
	}
}
