// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// Every form of nodePortAddresses, from the text of a file to the addresses on which node
// ports answer: words alone, ranges alone, and mixed (kubernetes/kubernetes#138427).
func TestNodePortAddressForms(t *testing.T) {
	node := &model.Node{Name: "node-1", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}}
	for _, tt := range []struct{ list, answers, silent string }{
		{"", "192.0.2.1 198.51.100.9 2001:db8::1", "127.0.0.1 ::1"},
		{"all", "192.0.2.1 198.51.100.9 2001:db8::1", "127.0.0.1 ::1"},
		{"primary", "192.0.2.1 2001:db8::1", "198.51.100.9 127.0.0.1 ::1"},
		{"localhost", "127.0.0.1 ::1", "127.0.0.2 192.0.2.1 198.51.100.9 2001:db8::1"},
		{"198.51.100.0/24", "198.51.100.9 2001:db8::1", "192.0.2.1 127.0.0.1 ::1"},
		{"198.51.100.0/24|2001:db8:1::/64", "198.51.100.9 2001:db8:1::5", "192.0.2.1 2001:db8::1 127.0.0.1 ::1"},
		{"0.0.0.0/0|::/0", "192.0.2.1 198.51.100.9 2001:db8::1", "127.0.0.1 ::1"},
		{"all|localhost", "192.0.2.1 198.51.100.9 2001:db8::1 127.0.0.1 ::1", "127.0.0.2"},
		{"all|198.51.100.0/24", "192.0.2.1 198.51.100.9 2001:db8::1", "127.0.0.1 ::1"},
		{"primary|localhost", "192.0.2.1 2001:db8::1 127.0.0.1 ::1", "198.51.100.9"},
		{"localhost|198.51.100.0/24", "198.51.100.9 127.0.0.1 ::1", "192.0.2.1 2001:db8::1"},
		{"primary|198.51.100.0/24", "192.0.2.1 198.51.100.9 2001:db8::1", "127.0.0.1 ::1"},
		{"primary|localhost|198.51.100.0/24", "192.0.2.1 198.51.100.9 2001:db8::1 127.0.0.1 ::1", "198.51.200.9"},
		{"127.0.0.0/8", "127.0.0.1 2001:db8::1", "127.0.0.2 192.0.2.1 198.51.100.9 ::1"},
		{"127.0.0.0/8|::1/128", "127.0.0.1 ::1", "127.0.0.2 192.0.2.1 198.51.100.9 2001:db8::1"},
		{"127.0.0.1/32|0.0.0.0/0", "127.0.0.1 192.0.2.1 2001:db8::1", "::1"},
		{"primary|localhost|all|198.51.100.0/24", "192.0.2.1 198.51.100.9 2001:db8::1 127.0.0.1 ::1", ""},
	} {
		var in config.Input
		if in.HasFile = true; tt.list != "" {
			in.File = []config.Assignment{{Name: "nodePortAddresses", Words: strings.Split(tt.list, "|")}}
		}
		c, report := config.Build(in)
		if report.Err() != nil {
			t.Errorf("%q: %v", tt.list, report.Err())
			continue
		}
		host := resolve.Host(c, node, nil, model.Machine{})
		for _, set := range []struct {
			addresses string
			want      bool
		}{{tt.answers, true}, {tt.silent, false}} {
			for _, a := range strings.Fields(set.addresses) {
				if got := host.NodePorts.Contains(netip.MustParseAddr(a)); got != set.want {
					t.Errorf("%q: node ports on %s: %t", tt.list, a, got)
				}
			}
		}
	}
}

// In kube-proxy's nftables mode node ports answer on loopback addresses to TCP alone, and not at all
// where the gate is off. Other modes have no such gate.
func TestNodePortsOnLoopbackByMode(t *testing.T) {
	for _, tt := range []struct {
		mode, gate string
		tcp, udp   bool
	}{
		{"nftables", "", true, false},
		{"nftables", "true", true, false},
		{"nftables", "false", false, false},
		{"iptables", "", true, true},
		{"iptables", "false", true, true},
		{"", "", true, true},
	} {
		in := config.Input{HasFile: true, File: []config.Assignment{
			{Name: "mode", Words: []string{tt.mode}}, {Name: "nodePortAddresses", Words: []string{"localhost"}},
		}}
		if tt.gate != "" {
			in.File = append(in.File, config.Assignment{Name: "featureGates", Words: []string{config.GateLocalhost + "=" + tt.gate}})
		}
		c, report := config.Build(in)
		if report.Err() != nil {
			t.Fatal(report.Err())
		}
		m := resolve.Host(c, nil, nil, model.Machine{}).NodePorts
		for _, a := range []string{"127.0.0.1", "::1"} {
			at := netip.MustParseAddr(a)
			if tcp, udp := m.Answers(at, model.TCP), m.Answers(at, model.UDP); tcp != tt.tcp || udp != tt.udp {
				t.Errorf("mode %q, gate %q, %s: TCP %t, UDP %t", tt.mode, tt.gate, a, tcp, udp)
			}
		}
	}
}
