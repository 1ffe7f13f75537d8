// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
)

func TestNodePortRange(t *testing.T) {
	set := func(text string) (config.PortRange, error) {
		c := config.Default()
		for _, s := range config.Settings() {
			if s.Flag == "service-node-port-range" {
				err := s.Value(&c).Set([]string{text})
				return c.NodePortRange, err
			}
		}
		panic("no such flag")
	}
	for text, want := range map[string]config.PortRange{"30000-32767": {30000, 32767}, "80-80": {80, 80}, "1-65535": {1, 65535}, "80": {80, 80}} {
		if got, err := set(text); got != want || err != nil {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-", "0-10", "0", "10-9", "1-65536", "-1-5", "a-b", "1-2-3", "30000+100", " 1-2"} {
		if got, err := set(text); err == nil {
			t.Errorf("%q is taken for %v", text, got)
		}
	}
	r := config.Default().NodePortRange
	if r.Has(22) || r.Has(29999) || !r.Has(30000) || !r.Has(32767) || r.Has(32768) || !(config.PortRange{}).Has(22) {
		t.Errorf("%v does not contain its own ports", r)
	}
}
