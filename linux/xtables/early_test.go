// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"strings"
	"testing"
)

// Rules before the jump to Services are found by their targets, whatever their
// comments say.
func TestEarly(t *testing.T) {
	rules, drop := early("*filter\n:FORWARD DROP [0:0]\nCOMMIT\n*nat\n:PREROUTING ACCEPT [0:0]\n" +
		"-A PREROUTING -m comment --comment \"not -j KUBE-SERVICES yet\" -j LOG\n" +
		"-A PREROUTING -m comment --comment -j -j MARK --set-xmark 0x1/0x1\n" +
		"-A PREROUTING -d 192.0.2.1/32 -m comment --comment \"no -j LOG \" -j DNAT --to-destination 192.0.2.9\n" +
		"-A PREROUTING -j KUBE-SERVICES\n-A PREROUTING -j ACCEPT\nCOMMIT\n")
	if !drop || len(rules) != 1 || !strings.Contains(rules[0], "-j DNAT") {
		t.Errorf("%t, %q", drop, rules)
	}
}
