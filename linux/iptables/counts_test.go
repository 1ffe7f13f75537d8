// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// A rule counts for a frontend where it leads to a port's chains: not the branches on the
// way, and no rule within such a chain.
func TestDispatches(t *testing.T) {
	for _, c := range []struct {
		family      model.Family
		chain, rule string
		want        string // empty for none
	}{
		{model.IPv4, "", `-d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-ABCDEFGHIJKLMNOP`, "10.96.0.10:80/tcp"},
		{model.IPv4, chainServices, `-d 10.96.0.10/32 -p udp -m udp --dport 53 -j KUBE-EXT-ABCDEFGHIJKLMNOP`, "10.96.0.10:53/udp"},
		{model.IPv4, chainNodePorts, `-p tcp -m tcp --dport 30080 -j KUBE-EXT-ABCDEFGHIJKLMNOP`, "0.0.0.0:30080/tcp"},
		{model.IPv6, chainNodePorts, `-p tcp -m tcp --dport 30080 -j KUBE-FW-ABCDEFGHIJKLMNOP`, "[::]:30080/tcp"},
		{model.IPv4, chainServices, `-d 10.96.0.0/16 -j KUBE-NODEPORTS`, ""},
		{model.IPv4, "KUBE-SVC-ABCDEFGHIJKLMNOP", `-d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ`, ""},
		{model.IPv4, "KUBE-EXT-ABCDEFGHIJKLMNOP", `-j KUBE-SVC-ABCDEFGHIJKLMNOP`, ""},
		{model.IPv4, "PREROUTING", `-p tcp -m tcp --dport 80 -j KUBE-SVC-ABCDEFGHIJKLMNOP`, ""},
	} {
		if c.chain == "" { // a leaf
			c.chain = trees[0].prefix + "X"
		}
		at, proto, ok := dispatches(c.family, c.chain, xtables.Line(c.rule))
		got := ""
		if ok {
			got = at.String() + "/" + proto.String()
		}
		if got != c.want {
			t.Errorf("%s %s: %q, want %q", c.chain, c.rule, got, c.want)
		}
	}
}
