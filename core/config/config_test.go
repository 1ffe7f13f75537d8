// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
)

func TestDefaultIsValid(t *testing.T) {
	c := config.Default()
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

func TestMistakesAreNamed(t *testing.T) {
	for flag, change := range map[string]func(*config.Config){
		"detect-local-mode":         func(c *config.Config) { c.DetectLocal = "Guess" },
		"pod-bridge-interface":      func(c *config.Config) { c.DetectLocal = config.DetectBridgeInterface },
		"pod-interface-name-prefix": func(c *config.Config) { c.PodInterfacePrefix = "a-name-that-is-too-long" },
		"iptables-masquerade-bit":   func(c *config.Config) { c.MasqueradeBit = 32 },
		"audit-period":              func(c *config.Config) { c.AuditPeriod = 0 },
		"iptables-min-sync-period":  func(c *config.Config) { c.MinSyncPeriod = -1 },
		"metrics-bind-address":      func(c *config.Config) { c.HTTPAddress = "127.0.0.1:99999" },
	} {
		c := config.Default()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "--"+flag+":") {
			t.Errorf("%s: got %v", flag, err)
		}
	}
}

func TestAllMistakesAtOnce(t *testing.T) {
	c := config.Default()
	c.DetectLocal, c.MasqueradeBit, c.HTTPAddress = "Guess", -1, "here"
	if err := c.Validate(); err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("got %v", err)
	}
}

func TestNamedModeKeepsItsNodePortDefault(t *testing.T) {
	named, auto, listed := config.Default(), config.Default(), config.Default()
	named.Mode, listed.Mode = config.NFTables, config.NFTables
	listed.NodePorts.Prefixes = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	for _, c := range []*config.Config{&named, &auto, &listed} {
		c.Complete()
	}
	if !named.NodePorts.Primary || auto.NodePorts.Primary || listed.NodePorts.Primary {
		t.Errorf("primary: named %t, auto %t, listed %t", named.NodePorts.Primary, auto.NodePorts.Primary, listed.NodePorts.Primary)
	}
}
