// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"testing"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// The packets of a rule are found however the listing is spelled, and nothing
// else is taken for them.
func TestPacketsOfARule(t *testing.T) {
	rules := countedRules([]model.Family{model.IPv4}, true)
	forward, postrouting := rules[0], rules[1]
	for _, c := range []struct {
		of      countedRule
		listing string
		want    uint64
	}{
		{forward, "-N KUBE-FORWARD\n-A KUBE-FORWARD -m conntrack --ctstate INVALID -c 12 3456 -j DROP\n", 12},
		{forward, "-N KUBE-FORWARD\n-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -c 12 3456 -j ACCEPT\n", 0},
		{forward, "-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\n", 0},
		{forward, "-A FORWARD -m conntrack --ctstate INVALID -c 12 3456 -j DROP\n", 0},
		{forward, "", 0},
		{postrouting, "-A KUBE-POSTROUTING -m comment --comment \"" + toLocalhost().Comment + "\" -m conntrack --ctorigdst 127.0.0.0/8 -c 18446744073709551615 1\n", 1<<64 - 1},
		{postrouting, "-A KUBE-POSTROUTING -m conntrack --ctorigdst 127.0.0.0/8 -c 5 5 -m comment --comment \"" + toLocalhost().Comment + "\"\n", 5},
	} {
		if n, err := xtables.Packets(c.listing, c.of.Chain, c.of.rule); n != c.want || err != nil {
			t.Errorf("%d packets (%v), want %d in\n%s", n, err, c.want, c.listing)
		}
	}
	if n, err := xtables.Packets("-A KUBE-FORWARD -m conntrack --ctstate INVALID -c 99999999999999999999 1 -j DROP\n", chainForward, forward.rule); err == nil {
		t.Errorf("%d packets, which no counter can hold", n)
	}
}

// A rule that is written anew begins at zero; the sum goes on from where it was.
func TestPacketsNeverGoBack(t *testing.T) {
	rules := countedRules([]model.Family{model.IPv4, model.IPv6}, true)
	s := newPacketCounter(rules, nil)
	for _, step := range []struct {
		rule int
		n    uint64
		want dataplane.Packets
	}{
		{0, 7, dataplane.Packets{Invalid: 7}},
		{0, 9, dataplane.Packets{Invalid: 9}},
		{1, 5, dataplane.Packets{Invalid: 9, Localhost: 5}},
		{2, 100, dataplane.Packets{Invalid: 109, Localhost: 5}},
		{0, 0, dataplane.Packets{Invalid: 109, Localhost: 5}},
		{0, 2, dataplane.Packets{Invalid: 111, Localhost: 5}},
		{1, 4, dataplane.Packets{Invalid: 111, Localhost: 9}},
	} {
		s.count(step.rule, step.n)
		if s.sum != step.want {
			t.Errorf("%+v after %d, want %+v", s.sum, step.n, step.want)
		}
	}
}
