// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
)

func TestDefaultIsValid(t *testing.T) {
	if _, r := build(); len(r.Problems) > 0 {
		t.Error(r.Err())
	}
}

func TestMistakesAreNamed(t *testing.T) {
	for name, lines := range map[string][]string{
		"--detect-local-mode":         {"--detect-local-mode=Guess"},
		"detectLocal.bridgeInterface": {"--detect-local-mode=BridgeInterface"},
		"--pod-interface-name-prefix": {"--pod-interface-name-prefix=a-name-that-is-too-long"},
		"--iptables-masquerade-bit":   {"--iptables-masquerade-bit=32"},
		"--audit-period":              {"--audit-period=0s"},
		"--iptables-min-sync-period":  {"--iptables-min-sync-period=-1ns"},
		"--metrics-bind-address":      {"--metrics-bind-address=127.0.0.1:99999"},
		"f:1: metricsBindAddress":     {"metricsBindAddress=127.0.0.1:99999"},
	} {
		if _, r := build(lines...); len(r.Problems) != 1 || !strings.HasPrefix(r.Problems[0].String(), name+": ") {
			t.Errorf("%s: got %s", name, text(r.Problems))
		}
	}
}

func TestAllMistakesAtOnce(t *testing.T) {
	if _, r := build("--detect-local-mode=Guess", "--iptables-masquerade-bit=-1", "--metrics-bind-address=here"); len(r.Problems) != 3 {
		t.Errorf("got %s", text(r.Problems))
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
