// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// world is a node with everything around it that Services must leave alone.
func guarded(t *testing.T, words ...string) *model.Host {
	t.Helper()
	c := config.Default()
	c.NodeName = "here"
	c.ClusterCIDRs = []netip.Prefix{prefix("10.0.0.0/16"), prefix("fd00::/48")}
	for _, s := range config.Settings() {
		if s.Flag == config.AllowedExternalIPs {
			if err := s.Value(&c).Set(words); err != nil {
				t.Fatal(err)
			}
		}
	}
	node := &model.Node{
		Name: "here", IPs: []netip.Addr{addr("192.0.2.1"), addr("2001:db8::1")},
		PodCIDRs: []netip.Prefix{prefix("10.7.1.0/24")}, // outside of the cluster's range
	}
	cidrs := []*model.ServiceCIDR{{Name: "a", CIDRs: []netip.Prefix{prefix("10.96.0.0/16")}}}
	return resolve.Host(&c, node, cidrs, model.Machine{
		Addresses: []model.LocalAddress{
			{Prefix: prefix("192.0.2.1/24")}, {Prefix: prefix("198.51.100.9/28")}, {Prefix: prefix("192.0.2.9/32")}, {Prefix: prefix("192.0.2.1/32")},
		},
		APIServers: []netip.AddrPort{at("192.0.2.10:6443"), at("192.0.2.1:6443")},
	})
}

// A Service gets this node's own address where it is known that no process listens, and a port that no
// node spares in no case.
func TestPermitsOwnAddresses(t *testing.T) {
	h := guarded(t)
	svc := &model.Service{Name: model.ServiceName{Namespace: "ns", Name: "svc"}, ClusterIPs: []netip.Addr{addr("10.96.0.7")}}
	for _, test := range []struct {
		at    string
		proto model.Proto
		want  string // the problem's text
	}{
		{"192.0.2.1:80", model.TCP, ""},
		{"[2001:db8::1]:80", model.TCP, ""},
		{"198.51.100.9:80", model.TCP, ""}, // not of the Node object
		{"192.0.2.1:53", model.UDP, ""},
		{"192.0.2.1:8080", model.TCP, "on whose port 8080 (tcp) this node's own nginx (process 7) listens"},
		{"198.51.100.9:8080", model.TCP, ""},
		{"192.0.2.1:8080", model.UDP, ""},
		{"192.0.2.1:22", model.TCP, "this node uses port 22 itself"},
		{"192.0.2.1:2379", model.TCP, "this node uses port 2379 itself"},
		{"192.0.2.1:10250", model.TCP, "this node uses port 10250 itself"},
		{"192.0.2.1:10256", model.TCP, "this node uses port 10256 itself"},
		{"192.0.2.1:6443", model.TCP, "6443"},
	} {
		a := resolve.Address{Kind: model.KindExternalIP, Proto: test.proto, At: at(test.at)}
		s := *svc
		s.ExternalIPs, s.Ports = []netip.Addr{a.At.Addr()}, []model.ServicePort{{Name: "p", Proto: test.proto, Port: a.At.Port()}}
		unknown := *h
		unknown.Guard.Listeners = nil
		if resolve.Permits(&unknown, &s, a) {
			t.Errorf("%s is permitted while nobody knows what listens", test.at)
		}
		known := *h
		known.Guard.Listeners = &model.Listeners{All: []model.Listener{{Proto: model.TCP, At: at("192.0.2.1:8080"), Name: "nginx (process 7)"}}}
		if got := resolve.Permits(&known, &s, a); got != (test.want == "") {
			t.Errorf("%s/%s: permitted %t", test.at, test.proto, got)
		}
		var text string
		for _, p := range resolve.Service(&known, &s, nil).Problems {
			text += p.Text()
		}
		if !strings.Contains(text, test.want) || test.want == "" && text != "" {
			t.Errorf("%s/%s: %q, want %q", test.at, test.proto, text, test.want)
		}
	}
}

// Which address may be what.
func TestPermits(t *testing.T) {
	const external, balanced, cluster = model.KindExternalIP, model.KindLoadBalancer, model.KindClusterIP
	for _, test := range []struct {
		kind    model.Kind
		at      string
		allowed string
		want    string // the reason, empty where it is permitted
	}{
		{external, "203.0.113.1:80", "", ""},
		{external, "8.8.8.8:53", "", ""}, // what is not ours to know
		{external, "8.8.8.8:53", "only", "NotAllowed"},
		{external, "8.8.8.8:53", "only 203.0.113.0/24", "NotAllowed"},
		{external, "203.0.113.1:80", "only 203.0.113.0/24", ""},
		{balanced, "203.0.113.1:80", "only", ""}, // given by a controller
		{external, "192.0.2.1:22", "", "NodeAddress"},
		{external, "192.0.2.1:80", "", "NodeAddress"},
		{external, "192.0.2.1:22", "192.0.2.1/32", ""},
		{external, "198.51.100.9:80", "", "NodeAddress"}, // not of the Node object
		{external, "[2001:db8::1]:80", "", "NodeAddress"},
		{balanced, "192.0.2.1:80", "", ""},    // k3s
		{balanced, "198.51.100.9:80", "", ""}, // kube-vip
		{balanced, "192.0.2.1:22", "", "NodeAddress"},
		{balanced, "198.51.100.9:10250", "", "NodeAddress"},
		{balanced, "192.0.2.1:10256", "", "NodeAddress"},
		{balanced, "192.0.2.1:22", "192.0.2.0/24", ""},
		{balanced, "203.0.113.1:22", "", ""},
		{balanced, "192.0.2.9:22", "", ""}, // put there by kube-vip, on its leader
		{external, "192.0.2.9:22", "", "NodeAddress"},
		{external, "192.0.2.10:6443", "", "APIServerAddress"},
		{external, "192.0.2.10:80", "", "APIServerAddress"},
		{external, "192.0.2.10:80", "192.0.2.10/32", ""},
		{external, "192.0.2.10:6443", "0.0.0.0/0", "APIServerAddress"}, // never
		{balanced, "192.0.2.10:6443", "", "APIServerAddress"},
		{balanced, "192.0.2.1:6443", "0.0.0.0/0", "APIServerAddress"},
		{balanced, "192.0.2.10:443", "", ""}, // k3s on another node
		{external, "10.96.0.77:80", "", "InServiceCIDR"},
		{balanced, "10.96.0.77:80", "", "InServiceCIDR"},
		{balanced, "10.96.0.77:80", "10.96.0.0/16", ""},
		{external, "10.0.3.4:80", "", "InPodCIDR"},
		{balanced, "10.0.3.4:80", "", "InPodCIDR"},
		{external, "10.7.1.4:80", "", "InPodCIDR"},
		{external, "[fd00::7]:80", "", "InPodCIDR"},
		{cluster, "10.96.0.1:443", "", ""},
		{cluster, "192.0.2.1:443", "", "NodeAddress"},
		{cluster, "198.51.100.9:443", "", "NodeAddress"},
		{cluster, "198.51.100.9:443", "198.51.100.9/32", "NodeAddress"}, // the list is not about these
		{cluster, "192.0.2.10:443", "", "APIServerAddress"},
	} {
		h := guarded(t, strings.Fields(test.allowed)...)
		svc := service()
		svc.Ports[0].Port = at(test.at).Port()
		svc.ClusterIPs = []netip.Addr{addr("10.96.0.1"), addr("fd00:96::1")}
		svc.Type = model.LoadBalancer
		ip := []netip.Addr{at(test.at).Addr()}
		switch test.kind {
		case external:
			svc.ExternalIPs = ip
		case balanced:
			svc.LoadBalancerIPs = ip
		default:
			svc.ClusterIPs = ip
		}
		r := resolve.Service(h, svc, nil)
		got := map[string]bool{}
		for _, p := range r.Ports {
			for _, f := range p.Frontends {
				got[f.At.String()] = true
			}
		}
		var why string
		if len(r.Problems) > 0 {
			why = r.Problems[0].Why.String()
		}
		if why != test.want || got[test.at] != (test.want == "") || len(r.Problems) > 1 {
			t.Errorf("%s %s, allowed %q: got %v, %v, want %q", test.kind, test.at, test.allowed, got[test.at], problems(r), test.want)
		}
	}
}

// Node ports take a port of all addresses of a node, so that its own ports are none.
func TestPermitsNodePorts(t *testing.T) {
	for _, test := range []struct {
		proto model.Proto
		port  uint16
		own   string // the API server's address and port
		want  string
	}{
		{model.TCP, 30080, "192.0.2.1:6443", ""},
		{model.TCP, 22, "192.0.2.1:6443", "NodeAddress"},
		{model.TCP, 10250, "192.0.2.1:6443", "NodeAddress"},
		{model.TCP, 10256, "192.0.2.1:6443", "NodeAddress"},
		{model.UDP, 22, "192.0.2.1:6443", ""},
		{model.TCP, 6443, "192.0.2.1:6443", "APIServerAddress"},
		{model.UDP, 6443, "192.0.2.1:6443", ""},
		{model.TCP, 6443, "192.0.2.10:6443", ""},   // on another machine
		{model.TCP, 6443, "198.51.100.9:6443", ""}, // where no node port answers
	} {
		h := guarded(t)
		h.NodePorts.Prefixes = []netip.Prefix{prefix("192.0.2.0/24")}
		before := *h
		before.Guard.ProtectedPorts, before.Guard.APIServers = nil, nil
		h.Guard.APIServers = []netip.AddrPort{at(test.own)}
		svc := service()
		svc.ClusterIPs, svc.Type = []netip.Addr{addr("10.96.0.1")}, model.NodePort
		svc.Ports[0].Proto, svc.Ports[0].NodePort = test.proto, test.port
		r := resolve.Service(h, svc, nil)
		var why string
		if len(r.Problems) > 0 {
			why = r.Problems[0].Why.String()
		}
		if fronts := len(r.Ports[0].Frontends); why != test.want || (fronts == 2) != (test.want == "") {
			t.Errorf("node port %d/%s, API server %s: %d fronts, %v, want %q", test.port, test.proto, test.own, fronts, problems(r), test.want)
		}
		if resolve.Affects(&before, h, svc, nil) != (test.want != "") {
			t.Errorf("node port %d/%s: what the policy changes is not seen", test.port, test.proto)
		}
	}
}

// The Service of the API server says of so many API servers as are protected, and
// that there are more.
func TestManyAPIServers(t *testing.T) {
	h := guarded(t)
	var from []*model.Slice
	for i, a := range addrs("10.3.0.1", 3*resolve.MaxAPIServers) {
		from = append(from, slice(fmt.Sprint("kubernetes-", i/2), a.String()))
	}
	if n := len(resolve.WithAPIServers(h, from[:10]).Guard.APIServers); n != 2+10 {
		t.Errorf("%d API servers", n)
	}
	many := resolve.WithAPIServers(h, from).Guard.APIServers
	if len(many) != 2+resolve.MaxAPIServers || !slices.IsSortedFunc(many, netip.AddrPort.Compare) || !slices.Contains(many, at("192.0.2.10:6443")) {
		t.Errorf("%d API servers, at most %d of slices", len(many), resolve.MaxAPIServers)
	}
	svc := service()
	svc.Name = resolve.APIService
	for n, want := range map[int]int{resolve.MaxAPIServers: 0, resolve.MaxAPIServers + 1: 1} {
		r := resolve.Service(h, svc, from[:n])
		if found := slices.DeleteFunc(r.Problems, func(p model.Problem) bool { return p.Why != model.WhyTooLarge }); len(found) != want {
			t.Errorf("%d API servers: %v", n, found)
		}
	}
}

// The Service of the API server keeps its cluster IP where that is what the API
// server is reached by.
func TestAPIServiceIsReachedByItself(t *testing.T) {
	h := host()
	h.Guard.APIServers = []netip.AddrPort{at("10.96.0.1:443")}
	svc := service()
	if svc.Ports[0].Port = 443; resolve.Permits(h, svc, resolve.Addresses(svc)[0]) {
		t.Error("any Service has the API server's address")
	}
	if svc.Name = resolve.APIService; !resolve.Permits(h, svc, resolve.Addresses(svc)[0]) {
		t.Error("default/kubernetes has not its own cluster IP")
	}
}

// Where pods share the network of nodes, as in some clouds, its range says nothing.
func TestPodRangeOfNodes(t *testing.T) {
	c := config.Default()
	c.NodeName, c.ClusterCIDRs = "here", []netip.Prefix{prefix("192.0.0.0/16"), prefix("fd00::/48")}
	h := resolve.Host(&c, &model.Node{Name: "here", IPs: []netip.Addr{addr("192.0.2.1")}}, nil, model.Machine{})
	if len(h.Guard.Pods) > 0 {
		t.Errorf("ranges of pods alone: %v", h.Guard.Pods)
	}
	node := &model.Node{Name: "here", IPs: []netip.Addr{addr("192.0.2.1")}, PodCIDRs: []netip.Prefix{prefix("192.0.2.0/24"), prefix("10.7.1.0/24")}}
	if h := resolve.Host(&c, node, nil, model.Machine{}); !slices.Equal(h.Guard.Pods, node.PodCIDRs[1:]) {
		t.Errorf("ranges of pods alone: %v, want %v", h.Guard.Pods, node.PodCIDRs[1:])
	}
}

// An external IP that is the load balancer's as well is restricted as that.
func TestMergedFrontIsRestricted(t *testing.T) {
	svc := service()
	svc.Type, svc.Restricted = model.LoadBalancer, true
	svc.ClusterIPs = []netip.Addr{addr("10.96.0.1"), addr("fd00:96::1")}
	svc.ExternalIPs = []netip.Addr{addr("203.0.113.1"), addr("203.0.113.2")}
	svc.LoadBalancerIPs = []netip.Addr{addr("203.0.113.1"), addr("10.96.0.1"), addr("2001:db8:cafe::1")}
	svc.SourceRanges = []netip.Prefix{prefix("198.51.100.0/24")}
	r := resolve.Service(host(), svc, nil)
	var got []string
	for _, p := range r.Ports {
		for _, f := range p.Frontends {
			got = append(got, fmt.Sprint(f.Kind, " ", f.At.Addr(), " ", f.Restricted, f.Allow))
		}
	}
	want := []string{
		"cluster IP 10.96.0.1 true [198.51.100.0/24]", "external IP 203.0.113.2 false []", "load balancer IP 203.0.113.1 true [198.51.100.0/24]", "node port 0.0.0.0 false []",
		"cluster IP fd00:96::1 false []", "load balancer IP 2001:db8:cafe::1 true []", "node port :: false []",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if said := fmt.Sprint(problems(r)); said != "[Closed: load balancer IP 2001:db8:cafe::1]" {
		t.Errorf("problems: %s", said)
	}
}

// Addresses that no endpoint can have.
func TestBadEndpoints(t *testing.T) {
	h := guarded(t)
	words := []string{"10.0.0.1", "240.0.0.1", "192.0.2.255", "198.51.100.15", "198.51.100.255", "255.255.255.255"}
	r := resolve.Service(h, service(), []*model.Slice{slice("s", words...)})
	if got := r.Ports[0].Pools()[0].Endpoints; len(got) != 2 || got[0].Addr != at("10.0.0.1:8080") || got[1].Addr != at("198.51.100.255:8080") {
		t.Errorf("endpoints: %v", got)
	}
	if len(r.Problems) != 4 {
		t.Errorf("problems: %q", problems(r))
	}
	c := config.Default()
	c.ClusterCIDRs = []netip.Prefix{prefix("240.0.0.0/8")} // some clouds have pods there
	h = resolve.Host(&c, nil, nil, model.Machine{})
	if r := resolve.Service(h, service(), []*model.Slice{slice("s", "240.0.0.1")}); len(r.Problems) > 0 {
		t.Errorf("pods in 240.0.0.0/8: %q", problems(r))
	}
}
