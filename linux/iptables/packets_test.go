// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// The packets of a rule are found however the listing is spelled, and nothing
// else is taken for them.
func TestPacketsOfARule(t *testing.T) {
	for _, c := range []struct {
		listing string
		want    uint64
	}{
		{"-N KUBE-FORWARD\n-A KUBE-FORWARD -m conntrack --ctstate INVALID -c 12 3456 -j DROP\n", 12},
		{"-N KUBE-FORWARD\n-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -c 12 3456 -j ACCEPT\n", 0},
		{"-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\n", 0},
		{"-A FORWARD -m conntrack --ctstate INVALID -c 12 3456 -j DROP\n", 0},
		{"", 0},
		{"-A KUBE-FORWARD -m conntrack --ctstate INVALID -c 18446744073709551615 1 -j DROP\n", 1<<64 - 1},
		{"-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP -c 5 5\n", 5},
	} {
		if n, err := xtables.Packets(c.listing, chainForward, invalid()); n != c.want || err != nil {
			t.Errorf("%d packets (%v), want %d in\n%s", n, err, c.want, c.listing)
		}
	}
	if n, err := xtables.Packets("-A KUBE-FORWARD -m conntrack --ctstate INVALID -c 99999999999999999999 1 -j DROP\n", chainForward, invalid()); err == nil {
		t.Errorf("%d packets, which no counter can hold", n)
	}
}

// Counters that cannot be read are said once, until they can be read again; the others
// count.
func TestPacketsThatCannotBeRead(t *testing.T) {
	var said bytes.Buffer
	broken := errors.New("the kernel does not answer")
	c := packetCounter{
		families: []model.Family{model.IPv4, model.IPv6}, log: slog.New(slog.NewTextHandler(&said, nil)),
		read: func(_ context.Context, id chainID, _ xtables.Rule) (uint64, error) {
			if id.Family == model.IPv6 {
				return 0, broken
			}
			return 7, nil
		},
	}
	for step, want := range []int{1, 1, 1, 2} {
		switch step {
		case 2:
			broken = nil
		case 3:
			broken = errors.New("again")
		}
		c.readTook = 0
		if n := c.packets(); n.Invalid != 7 {
			t.Errorf("%d packets", n.Invalid)
		}
		if n := strings.Count(said.String(), "metric keeps its value"); n != want {
			t.Errorf("step %d: said %d times, want %d:\n%s", step, n, want, &said)
		}
	}
}

// A rewritten rule counts from zero; the sum continues.
func TestPacketsNeverGoBack(t *testing.T) {
	var c packetCounter
	for _, step := range []struct {
		family  model.Family
		n, want uint64
	}{
		{model.IPv4, 7, 7},
		{model.IPv4, 9, 9},
		{model.IPv6, 100, 109},
		{model.IPv4, 0, 109},
		{model.IPv4, 2, 111},
		{model.IPv6, 104, 115},
	} {
		c.count(step.family, step.n)
		if c.sum != step.want {
			t.Errorf("%d after %+v", c.sum, step)
		}
	}
}
