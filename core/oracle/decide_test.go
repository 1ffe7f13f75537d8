// SPDX-License-Identifier: Apache-2.0

package oracle_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

var (
	addr = netip.MustParseAddr
	at   = netip.MustParseAddrPort
)

func TestDecide(t *testing.T) {
	host := &model.Host{
		IPs: []netip.Addr{addr("192.0.2.1")}, Pods: model.PodMatch{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
		NodePorts:    model.NodePortMatch{Prefixes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/24"), netip.MustParsePrefix("203.0.114.0/24")},
	}
	pool := &model.Pool{Endpoints: []model.Endpoint{{Addr: at("10.0.0.2:80")}, {Addr: at("10.0.0.1:80"), Local: true}}}
	plain := model.Action{Pool: pool}
	snat := model.Action{Pool: pool, SNAT: true}
	ports := []*model.Port{{
		ID: model.PortID{Service: model.ServiceName{Namespace: "ns", Name: "web"}, Proto: model.TCP},
		Frontends: []model.Frontend{
			{Kind: model.KindClusterIP, At: at("10.96.0.1:80"), On: [model.Origins]model.Action{plain, snat, {Verdict: model.Drop, Why: model.WhyNoLocalEndpoints}}},
			{Kind: model.KindLoadBalancer, At: at("203.0.113.1:80"), Restricted: true, Allow: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}, On: [model.Origins]model.Action{plain, plain, plain}},
			{Kind: model.KindNodePort, At: at("0.0.0.0:30080"), On: [model.Origins]model.Action{snat, snat, {Verdict: model.Reject}}},
		},
	}}
	both := func(a, b bool) []oracle.Target {
		return []oracle.Target{{Addr: at("10.0.0.1:80"), SNAT: a}, {Addr: at("10.0.0.2:80"), SNAT: b}}
	}
	for _, tt := range []struct {
		name, src, iface, dst string
		want                  oracle.Outcome
	}{
		{"from a pod", "10.0.0.9", "veth", "10.96.0.1:80", oracle.Outcome{Fate: oracle.Forward, Endpoints: both(false, false)}},
		{"hairpin", "10.0.0.1", "veth", "10.96.0.1:80", oracle.Outcome{Fate: oracle.Forward, Endpoints: both(true, false)}},
		{"an endpoint elsewhere that reaches itself", "10.0.0.2", "eth0", "10.96.0.1:80", oracle.Outcome{Fate: oracle.Forward, Endpoints: both(false, false)}},
		{"from the host", "192.0.2.1", "", "10.96.0.1:80", oracle.Outcome{Fate: oracle.Forward, Endpoints: both(true, true)}},
		{"from the host with a pod's address", "10.0.0.254", "", "10.96.0.1:80", oracle.Outcome{Fate: oracle.Forward, Endpoints: both(false, false)}},
		{"from outside", "198.51.100.1", "eth0", "10.96.0.1:80", oracle.Outcome{Fate: oracle.Drop}},
		{"another port of a cluster IP", "10.0.0.9", "veth", "10.96.0.1:81", oracle.Outcome{Fate: oracle.Reject}},
		{"no cluster IP", "10.0.0.9", "veth", "203.0.114.2:80", oracle.Outcome{Fate: oracle.Drop}},
		{"no cluster IP, from the host", "192.0.2.1", "", "10.96.0.2:80", oracle.Outcome{Fate: oracle.Drop}},
		{"outside of the ranges", "10.0.0.9", "veth", "10.96.1.1:80", oracle.Outcome{Fate: oracle.Pass}},
		{"another port of a load balancer", "10.0.0.9", "veth", "203.0.113.1:81", oracle.Outcome{Fate: oracle.Pass}},
		{"allowed", "198.51.100.1", "eth0", "203.0.113.1:80", oracle.Outcome{Fate: oracle.Forward, Endpoints: both(false, false)}},
		{"not allowed", "10.0.0.9", "veth", "203.0.113.1:80", oracle.Outcome{Fate: oracle.Drop}},
		{"node port", "198.51.100.1", "eth0", "192.0.2.1:30080", oracle.Outcome{Fate: oracle.Reject}},
		{"node port of another node", "10.0.0.9", "veth", "192.0.2.2:30080", oracle.Outcome{Fate: oracle.Pass}},
		{"node port on loopback", "127.0.0.1", "", "127.0.0.1:30080", oracle.Outcome{Fate: oracle.Pass}},
		{"nobody's", "10.0.0.9", "veth", "8.8.8.8:53", oracle.Outcome{Fate: oracle.Pass}},
	} {
		p := oracle.Packet{Src: addr(tt.src), Iface: tt.iface, Proto: model.TCP, Dst: at(tt.dst)}
		if got := oracle.Decide(host, ports, p); !got.Same(tt.want) {
			t.Errorf("%s: got %s %v (%s), want %s %v", tt.name, got.Fate, got.Endpoints, got.Why, tt.want.Fate, tt.want.Endpoints)
		}
		p.Proto = model.UDP
		if got := oracle.Decide(host, ports, p); got.Fate == oracle.Forward || got.Fate == oracle.Drop && got.Why != model.WhyUnallocated {
			t.Errorf("%s over udp: got %s", tt.name, got.Fate)
		}
	}
}

// An explanation names the route whose backends the endpoints are.
func TestExplainNamesTheRoute(t *testing.T) {
	pool := &model.Pool{Endpoints: []model.Endpoint{{Addr: at("10.0.0.1:80")}}}
	act := model.Action{Pool: pool, Why: model.WhyRoute}
	port := &model.Port{
		ID:        model.PortID{Service: model.ServiceName{Namespace: "ns", Name: "web"}, Proto: model.TCP},
		Frontends: []model.Frontend{{At: at("10.96.0.1:80"), On: [model.Origins]model.Action{act, act, act}}},
		Route:     &model.RouteName{Proto: model.TCP, Namespace: "ns", Name: "split"},
	}
	e := oracle.Explain(&model.Host{}, []*model.Port{port}, oracle.Packet{Src: addr("10.0.0.9"), Proto: model.TCP, Dst: at("10.96.0.1:80")})
	for _, s := range e.Steps {
		if s.About == oracle.AboutPolicy && strings.Contains(s.Why, "TCPRoute ns/split") {
			return
		}
	}
	t.Errorf("the route is not named: %+v", e.Steps)
}
