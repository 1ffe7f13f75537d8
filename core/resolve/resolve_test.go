// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

var (
	addr   = netip.MustParseAddr
	at     = netip.MustParseAddrPort
	prefix = netip.MustParsePrefix
)

func host() *model.Host {
	return &model.Host{
		Name: "here", Zone: "a", IPs: []netip.Addr{addr("192.0.2.1"), addr("2001:db8::1")},
		Pods:      model.PodMatch{CIDRs: []netip.Prefix{prefix("10.0.0.0/8")}},
		NodePorts: model.NodePortMatch{Prefixes: []netip.Prefix{prefix("0.0.0.0/0"), prefix("::/0")}},
	}
}

func service() *model.Service {
	return &model.Service{
		Name: model.ServiceName{Namespace: "ns", Name: "svc"}, ClusterIPs: []netip.Addr{addr("10.96.0.1")},
		Ports: []model.ServicePort{{Name: "http", Proto: model.TCP, Port: 80, NodePort: 30080}},
	}
}

// slice makes a slice from words such as "10.0.0.1@here", "10.0.0.2@there/terminating",
// "10.0.0.3@there/unready", "10.0.0.4@there/zone=a", "10.0.0.5@there/node=here".
func slice(name string, words ...string) *model.Slice {
	s := &model.Slice{
		Name: model.SliceName{Namespace: "ns", Name: name}, Service: "svc",
		Ports: []model.SlicePort{{Name: "http", Proto: model.TCP, Port: 8080}},
	}
	for _, w := range words {
		where, what, _ := strings.Cut(w, "/")
		ip, node, _ := strings.Cut(where, "@")
		e := model.SliceEndpoint{Addr: addr(ip), Node: node, State: model.Ready | model.Serving}
		key, value, _ := strings.Cut(what, "=")
		switch key {
		case "terminating":
			e.State = model.Serving | model.Terminating
		case "gone":
			e.State = model.Terminating
		case "unready":
			e.State = 0
		case "silent":
			e.State |= model.Unanswered
		case "zone":
			e.Hints = &model.Hints{Zones: []string{value}}
		case "node":
			e.Hints = &model.Hints{Zones: []string{"elsewhere"}, Nodes: []string{value}}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func show(a model.Action) string {
	s := a.Verdict.String()
	if a.Pool != nil {
		for _, e := range a.Pool.Endpoints {
			s += " " + strings.TrimPrefix(e.Addr.Addr().String(), "10.0.0.")
		}
	}
	if a.SNAT {
		s += " snat"
	}
	return s + " " + a.Why.String()
}

func TestPoolsAndPolicies(t *testing.T) {
	type rows map[model.Origin]string
	all := func(s string) rows { return rows{model.FromPod: s, model.FromHost: s, model.FromOutside: s} }
	tests := []struct {
		name             string
		slice            string
		internal, extern model.TrafficPolicy
		cluster, node    rows
	}{
		{
			name: "ready endpoints serve", slice: "10.0.0.1@here 10.0.0.2@there 10.0.0.3@there/unready 10.0.0.4@there/terminating",
			cluster: rows{
				model.FromPod:     "balance 1 2 ClusterEndpoints",
				model.FromHost:    "balance 1 2 snat ClusterEndpoints",
				model.FromOutside: "balance 1 2 snat ClusterEndpoints",
			},
			node: all("balance 1 2 snat ClusterEndpoints"),
		},
		{
			name: "silent endpoints are ejected", slice: "10.0.0.1@here 10.0.0.2@there/silent 10.0.0.3@there", internal: model.Local, extern: model.Local,
			cluster: rows{
				model.FromPod:     "balance 1 LocalEndpoints",
				model.FromHost:    "balance 1 snat LocalEndpoints",
				model.FromOutside: "balance 1 snat LocalEndpoints",
			},
			node: rows{
				model.FromPod:     "balance 1 3 ShortCircuit",
				model.FromHost:    "balance 1 3 snat ShortCircuit",
				model.FromOutside: "balance 1 LocalEndpoints",
			},
		},
		{
			name: "never more than half of a pool", slice: "10.0.0.1@a/silent 10.0.0.2@b/silent 10.0.0.3@c/silent 10.0.0.4@d 10.0.0.5@e",
			cluster: rows{
				model.FromPod:     "balance 3 4 5 Unanswered",
				model.FromHost:    "balance 3 4 5 snat Unanswered",
				model.FromOutside: "balance 3 4 5 snat Unanswered",
			},
			node: all("balance 3 4 5 snat Unanswered"),
		},
		{
			name: "never the last one of a pool", slice: "10.0.0.1@there/silent 10.0.0.2@there/unready",
			cluster: rows{
				model.FromPod:     "balance 1 ClusterEndpoints",
				model.FromHost:    "balance 1 snat ClusterEndpoints",
				model.FromOutside: "balance 1 snat ClusterEndpoints",
			},
			node: all("balance 1 snat ClusterEndpoints"),
		},
		{
			name: "endpoints of this node are never ejected", slice: "10.0.0.1@here/silent 10.0.0.2@there",
			cluster: rows{
				model.FromPod:     "balance 1 2 ClusterEndpoints",
				model.FromHost:    "balance 1 2 snat ClusterEndpoints",
				model.FromOutside: "balance 1 2 snat ClusterEndpoints",
			},
			node: all("balance 1 2 snat ClusterEndpoints"),
		},
		{
			name: "none at all", slice: "10.0.0.3@there/unready 10.0.0.4@there/gone",
			cluster: all("reject NoEndpoints"), node: all("reject NoEndpoints"),
		},
		{
			name: "an address that a new pod has from a terminating one", slice: "10.0.0.3@there/terminating 10.0.0.3@there/unready",
			cluster: all("reject NoEndpoints"), node: all("reject NoEndpoints"),
		},
		{
			name: "terminating fallback, cluster-wide", slice: "10.0.0.1@here/terminating 10.0.0.2@there/terminating 10.0.0.3@there/unready",
			cluster: rows{
				model.FromPod:     "balance 1 2 TerminatingEndpoints",
				model.FromHost:    "balance 1 2 snat TerminatingEndpoints",
				model.FromOutside: "balance 1 2 snat TerminatingEndpoints",
			},
			node: all("balance 1 2 snat TerminatingEndpoints"),
		},
		{
			name: "policy Local", slice: "10.0.0.1@here 10.0.0.2@there", internal: model.Local, extern: model.Local,
			cluster: rows{
				model.FromPod:     "balance 1 LocalEndpoints",
				model.FromHost:    "balance 1 snat LocalEndpoints",
				model.FromOutside: "balance 1 snat LocalEndpoints",
			},
			node: rows{
				model.FromPod:     "balance 1 2 ShortCircuit",
				model.FromHost:    "balance 1 2 snat ShortCircuit",
				model.FromOutside: "balance 1 LocalEndpoints",
			},
		},
		{
			name: "policy Local with remote endpoints only", slice: "10.0.0.2@there", internal: model.Local, extern: model.Local,
			cluster: all("drop NoLocalEndpoints"),
			node: rows{
				model.FromPod:     "balance 2 ShortCircuit",
				model.FromHost:    "balance 2 snat ShortCircuit",
				model.FromOutside: "drop NoLocalEndpoints",
			},
		},
		{
			name: "policy Local falls back to local terminating ones though others are ready", slice: "10.0.0.1@here/terminating 10.0.0.2@there", internal: model.Local, extern: model.Local,
			cluster: rows{
				model.FromPod:     "balance 1 TerminatingEndpoints",
				model.FromHost:    "balance 1 snat TerminatingEndpoints",
				model.FromOutside: "balance 1 snat TerminatingEndpoints",
			},
			node: rows{
				model.FromPod:     "balance 2 ShortCircuit",
				model.FromHost:    "balance 2 snat ShortCircuit",
				model.FromOutside: "balance 1 TerminatingEndpoints",
			},
		},
		{
			name: "policy Local without any endpoint rejects", slice: "", internal: model.Local, extern: model.Local,
			cluster: all("reject NoEndpoints"), node: all("reject NoEndpoints"),
		},
		{
			name: "zone hints", slice: "10.0.0.1@here/zone=a 10.0.0.2@there/zone=b",
			cluster: rows{
				model.FromPod:     "balance 1 ZoneHints",
				model.FromHost:    "balance 1 snat ZoneHints",
				model.FromOutside: "balance 1 snat ZoneHints",
			},
			node: all("balance 1 snat ZoneHints"),
		},
		{
			name: "zone hints do not narrow policy Local", slice: "10.0.0.1@here/zone=b 10.0.0.2@there/zone=a", internal: model.Local,
			cluster: rows{
				model.FromPod:     "balance 1 LocalEndpoints",
				model.FromHost:    "balance 1 snat LocalEndpoints",
				model.FromOutside: "balance 1 snat LocalEndpoints",
			},
			node: all("balance 2 snat ZoneHints"),
		},
		{
			name: "one endpoint without hints switches them off", slice: "10.0.0.1@here/zone=a 10.0.0.2@there",
			cluster: rows{
				model.FromPod:     "balance 1 2 ClusterEndpoints",
				model.FromHost:    "balance 1 2 snat ClusterEndpoints",
				model.FromOutside: "balance 1 2 snat ClusterEndpoints",
			},
			node: all("balance 1 2 snat ClusterEndpoints"),
		},
		{
			name: "hints of unready endpoints do not matter", slice: "10.0.0.1@here/zone=a 10.0.0.2@there/zone=b 10.0.0.3@there/unready",
			cluster: rows{model.FromPod: "balance 1 ZoneHints"}, node: rows{},
		},
		{
			name: "no endpoint for this zone switches hints off", slice: "10.0.0.1@here/zone=b 10.0.0.2@there/zone=c",
			cluster: rows{model.FromPod: "balance 1 2 ClusterEndpoints"}, node: rows{},
		},
		{
			name: "node hints come before zone hints", slice: "10.0.0.1@here/node=there 10.0.0.2@there/node=here",
			cluster: rows{model.FromPod: "balance 2 NodeHints"}, node: rows{},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			svc := service()
			svc.Type, svc.Internal, svc.External = model.NodePort, tt.internal, tt.extern
			r := resolve.Service(host(), svc, []*model.Slice{slice("s", strings.Fields(tt.slice)...)})
			if len(r.Ports) != 1 || len(r.Ports[0].Frontends) != 2 {
				t.Fatalf("ports: %+v", r.Ports)
			}
			for i, want := range []rows{tt.cluster, tt.node} {
				for origin, line := range want {
					if got := show(r.Ports[0].Frontends[i].On[origin]); got != line {
						t.Errorf("%s from %s: got %q, want %q", r.Ports[0].Frontends[i].Kind, origin, got, line)
					}
				}
			}
		})
	}
}

func TestMasquerade(t *testing.T) {
	from := func(h *model.Host) string {
		r := resolve.Service(h, service(), []*model.Slice{slice("s", "10.0.0.1@here")})
		on := r.Ports[0].Frontends[0].On
		return fmt.Sprint(on[model.FromPod].SNAT, on[model.FromHost].SNAT, on[model.FromOutside].SNAT)
	}
	detector, none, all := host(), host(), host()
	none.Pods = model.PodMatch{}
	all.Pods, all.MasqueradeAll = model.PodMatch{}, true
	other := host()
	other.Pods = model.PodMatch{CIDRs: []netip.Prefix{prefix("fd00::/48")}} // the other family's pods are known only
	bridge := host()
	bridge.Pods = model.PodMatch{Interface: "cni0"}
	for name, tt := range map[string]struct {
		host *model.Host
		want string
	}{
		"cidr": {detector, "false true true"}, "none": {none, "false false false"}, "masquerade all": {all, "true true true"},
		"detector of the other family": {other, "false false false"}, "bridge": {bridge, "false true true"},
	} {
		if got := from(tt.host); got != tt.want {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}
}

// The better of two entries for one address and port wins, whichever slice it is in.
func TestDuplicateEndpoints(t *testing.T) {
	good, bad := slice("a", "10.0.0.1@here"), slice("b", "10.0.0.1@here/terminating", "10.0.0.2@there")
	for _, order := range [][]*model.Slice{{good, bad}, {bad, good}} {
		r := resolve.Service(host(), service(), order)
		if got := show(r.Ports[0].Frontends[0].On[model.FromPod]); got != "balance 1 2 ClusterEndpoints" {
			t.Errorf("got %q", got)
		}
	}
}

func TestSourceRanges(t *testing.T) {
	svc := service()
	svc.Type, svc.Restricted = model.LoadBalancer, true
	svc.LoadBalancerIPs = []netip.Addr{addr("203.0.113.1"), addr("2001:db8:cafe::1")}
	svc.ClusterIPs = append(svc.ClusterIPs, addr("fd00::1"))
	svc.SourceRanges = []netip.Prefix{prefix("198.51.100.7/24"), prefix("192.0.2.0/24"), prefix("198.51.100.0/28"), prefix("198.51.100.128/25")}
	got := map[string]string{}
	for _, p := range resolve.Service(host(), svc, nil).Ports {
		for _, f := range p.Frontends {
			got[f.At.Addr().String()] = fmt.Sprint(f.Restricted, f.Allow)
		}
	}
	want := map[string]string{
		"10.96.0.1":        "false []",
		"fd00::1":          "false []",
		"0.0.0.0":          "false []",
		"::":               "false []",
		"203.0.113.1":      "true [192.0.2.0/24 198.51.100.0/24 203.0.113.1/32]", // the node is inside, so its own VIP may come in
		"2001:db8:cafe::1": "true []",                                            // no range of this family: closed
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestProblems(t *testing.T) {
	svc := service()
	svc.Ports = append(svc.Ports, model.ServicePort{Name: "again", Proto: model.TCP, Port: 80}, model.ServicePort{Name: "lost", Proto: model.UDP, Port: 53})
	loop := slice("s", "10.96.0.1@there")
	loop.Ports[0].Port = 80
	loop.Ports = append(loop.Ports, model.SlicePort{Name: "misspelt", Proto: model.TCP, Port: 81})
	r := resolve.Service(host(), svc, []*model.Slice{loop})
	var got []string
	for _, p := range r.Problems {
		got = append(got, p.Why.String()+": "+p.Detail)
	}
	want := []string{
		"OwnFrontend: endpoint 10.96.0.1:80",
		"DuplicateFrontend: cluster IP 10.96.0.1:80 (tcp)",
		`NoTargetPort: port "again" (tcp 80)`,
		`NoTargetPort: port "lost" (udp 53)`,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// A named port that no pod has yet is no problem: the pods that have it are about to start.
func TestPortsWithoutEndpointsYet(t *testing.T) {
	svc := service()
	svc.Ports = append(svc.Ports, model.ServicePort{Name: "later", Proto: model.TCP, Port: 81})
	if r := resolve.Service(host(), svc, []*model.Slice{slice("s", "10.0.0.1@there")}); len(r.Problems) > 0 {
		t.Errorf("problems %v", r.Problems)
	}
}

func TestDrainingIsForConnectionlessPortsOnly(t *testing.T) {
	svc := service()
	words := []string{"10.0.0.1@here", "10.0.0.2@there/terminating", "10.0.0.3@there/gone"}
	if d := resolve.Service(host(), svc, []*model.Slice{slice("s", words...)}).Ports[0].Draining; d != nil {
		t.Errorf("tcp: %v", d)
	}
	svc.Ports[0].Proto = model.UDP
	s := slice("s", words...)
	s.Ports[0].Proto = model.UDP
	s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: at("10.0.0.4:0").Addr(), State: model.Serving}) // not ready, and nothing ends
	want := []netip.AddrPort{at("10.0.0.2:8080"), at("10.0.0.4:8080")}
	if d := resolve.Service(host(), svc, []*model.Slice{s}).Ports[0].Draining; !slices.Equal(d, want) {
		t.Errorf("udp: %v, want %v", d, want)
	}
}

func TestReslotTouchesOneSlotForOneEndpoint(t *testing.T) {
	words := make([]string, 200)
	for i := range words {
		words[i] = fmt.Sprintf("10.0.1.%d@there", i+1)
	}
	old := resolve.Service(host(), service(), []*model.Slice{slice("s", words...)}).Ports[0]
	words[17] = "10.0.0.9@there"
	port := resolve.Service(host(), service(), []*model.Slice{slice("s", words...)}).Ports[0]
	resolve.Reslot(port, old, nil)
	differ := 0
	for i, e := range port.Pools()[0].Endpoints {
		if e != old.Pools()[0].Endpoints[i] {
			differ++
		}
	}
	if differ != 1 {
		t.Errorf("%d slots differ after one endpoint was replaced", differ)
	}
}

func TestHost(t *testing.T) {
	c := config.Default()
	c.NodeName = "here"
	c.ClusterCIDRs = []netip.Prefix{prefix("10.0.0.0/8"), prefix("fd00::/48"), prefix("11.0.0.0/8")}
	node := &model.Node{Name: "here", Zone: "a", IPs: []netip.Addr{addr("192.0.2.1"), addr("192.0.2.9"), addr("2001:db8::1")}, PodCIDRs: []netip.Prefix{prefix("10.1.0.0/24")}}
	h := resolve.Host(&c, node, nil, model.Machine{})
	if got := fmt.Sprint(h.Pods.CIDRs, h.NodePorts.Prefixes, " ", h.Zone); got != "[10.0.0.0/8 fd00::/48] [0.0.0.0/0 ::/0] a" {
		t.Errorf("defaults: %s", got)
	}
	c.NodePorts.Primary = true
	if got := fmt.Sprint(resolve.Host(&c, node, nil, model.Machine{}).NodePorts.Prefixes); got != "[192.0.2.1/32 2001:db8::1/128]" {
		t.Errorf("primary: %s", got)
	}
	c.NodeIP = addr("192.0.2.9")
	if got := fmt.Sprint(resolve.Host(&c, node, nil, model.Machine{}).NodePorts.Prefixes, resolve.Host(&c, node, nil, model.Machine{}).IPs); got != "[192.0.2.9/32 2001:db8::1/128] [192.0.2.9 192.0.2.1 2001:db8::1]" {
		t.Errorf("a configured address is the primary one: %s", got)
	}
	if c.NodeIP = netip.IPv4Unspecified(); fmt.Sprint(resolve.Host(&c, node, nil, model.Machine{}).IPs) != fmt.Sprint(node.IPs) {
		t.Error("an unspecified address says nothing")
	}
	if got := resolve.Host(&c, nil, nil, model.Machine{}).NodePorts.Prefixes; len(got) != 0 {
		t.Errorf("primary of an unknown node must not open anything: %v", got)
	}
	c.NodePorts = config.NodePorts{Prefixes: []netip.Prefix{prefix("192.0.2.0/24")}}
	if got := fmt.Sprint(resolve.Host(&c, node, nil, model.Machine{}).NodePorts.Prefixes); got != "[192.0.2.0/24 ::/0]" {
		t.Errorf("one family: %s", got)
	}
	c.DetectLocal = config.DetectNodeCIDR
	if got := fmt.Sprint(resolve.Host(&c, node, nil, model.Machine{}).Pods.CIDRs); got != "[10.1.0.0/24]" {
		t.Errorf("node cidr: %s", got)
	}
	c.DetectLocal, c.PodInterfacePrefix = config.DetectInterfacePrefix, "veth"
	if m := resolve.Host(&c, node, nil, model.Machine{}).Pods; !m.Known(model.IPv6) || !m.Match(addr("1.2.3.4"), "veth12") || m.Match(addr("10.1.0.5"), "") {
		t.Errorf("prefix: %+v", m)
	}
}

// Manifests without a Node object: its addresses are those that the machine has, except of
// bridges of pods and those that move between nodes. With an API server they are unknown.
func TestManifestsWithoutNode(t *testing.T) {
	for name, test := range map[string]struct{ machine, want string }{
		"none":                           {"", ""},
		"one of each family":             {"192.0.2.1/24 2001:db8::1/64", "192.0.2.1 2001:db8::1"},
		"in the order of interfaces":     {"192.0.2.1/24 172.17.0.1/16 192.0.2.7/24", "192.0.2.1 172.17.0.1 192.0.2.7"},
		"a bridge of pods":               {"10.1.0.1/24 192.0.2.1/24", "192.0.2.1"},
		"kube-vip":                       {"192.0.2.9/32 192.0.2.1/24", "192.0.2.1"},
		"a cloud's single address":       {"203.0.113.7/32 10.1.0.1/24", "203.0.113.7"},
		"pods on the network of nodes":   {"10.1.0.7/24", "10.1.0.7"},
		"and that as a single address":   {"10.1.0.7/32", "10.1.0.7"},
		"one family single, another not": {"203.0.113.7/32 2001:db8::1/64", "203.0.113.7 2001:db8::1"},
	} {
		t.Run(name, func(t *testing.T) {
			var machine model.Machine
			for _, a := range strings.Fields(test.machine) {
				machine.Addresses = append(machine.Addresses, model.LocalAddress{Prefix: prefix(a)})
			}
			c := config.Default()
			c.NodeName, c.Manifests, c.NodePorts.Primary, c.ClusterCIDRs = "here", "/services", true, []netip.Prefix{prefix("10.1.0.0/16")}
			h := resolve.Host(&c, nil, nil, machine)
			if got := strings.Trim(fmt.Sprint(h.IPs), "[]"); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
			if known := len(h.IPs) > 0; known != (len(h.NodePorts.Prefixes) > 0) {
				t.Errorf("node ports on %v", h.NodePorts.Prefixes)
			} else if ps := resolve.HostProblems(&c, nil, nil, machine, true); known != (len(ps) == 0) {
				t.Error(ps)
			}
			if ps := resolve.HostProblems(&c, nil, nil, machine, false); len(ps) > 0 {
				t.Errorf("without node ports: %v", ps)
			}
			node := &model.Node{Name: "here", IPs: []netip.Addr{addr("198.51.100.1")}}
			if h := resolve.Host(&c, node, nil, machine); !slices.Equal(h.IPs, node.IPs) {
				t.Errorf("with a Node object: %v", h.IPs)
			}
			if c.Manifests = ""; len(resolve.Host(&c, nil, nil, machine).IPs) > 0 {
				t.Error("with an API server")
			}
		})
	}
}

func TestHostProblems(t *testing.T) {
	v4, cidr := []netip.Addr{addr("192.0.2.1")}, []netip.Prefix{prefix("10.1.0.0/24")}
	for _, test := range []struct {
		name    string
		primary bool
		detect  config.DetectLocal
		node    *model.Node
		want    []model.Reason
	}{
		{"nothing depends on the Node", false, config.DetectClusterCIDR, nil, nil},
		{"no Node, primary", true, config.DetectClusterCIDR, nil, []model.Reason{model.WhyNoNode}},
		{"no Node, NodeCIDR", false, config.DetectNodeCIDR, nil, []model.Reason{model.WhyNoNode}},
		{"no Node, both", true, config.DetectNodeCIDR, nil, []model.Reason{model.WhyNoNode, model.WhyNoNode}},
		{"a Node that says all", true, config.DetectNodeCIDR, &model.Node{Name: "here", IPs: v4, PodCIDRs: cidr}, nil},
		{"a Node without podCIDR", true, config.DetectNodeCIDR, &model.Node{Name: "here", IPs: v4}, []model.Reason{model.WhyInvalid}},
		{"a Node without addresses", true, config.DetectNodeCIDR, &model.Node{Name: "here", PodCIDRs: cidr}, []model.Reason{model.WhyInvalid}},
	} {
		c := config.Default()
		c.NodeName, c.NodePorts.Primary, c.DetectLocal = "here", test.primary, test.detect
		var got []model.Reason
		for _, p := range resolve.HostProblems(&c, test.node, nil, model.Machine{}, true) {
			got = append(got, p.Why)
			if p.Object != "Node here" || p.Detail == "" {
				t.Errorf("%s: %v", test.name, p)
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
	}
}

// Settings of a family that the node does not have are said. The node is unfit where
// they recognise pods, and kube-proxy would end.
func TestOtherFamily(t *testing.T) {
	v4, v6 := prefix("10.1.0.0/16"), prefix("fd00::/48")
	for _, test := range []struct {
		name           string
		detect         config.DetectLocal
		ips            []netip.Addr
		cluster, ports []netip.Prefix
		podCIDRs       []netip.Prefix
		want           []bool // unfit, by problem
	}{
		{"all fit", config.DetectClusterCIDR, []netip.Addr{addr("192.0.2.1")}, []netip.Prefix{v4}, []netip.Prefix{v4}, []netip.Prefix{v4}, nil},
		{"one of two fits", config.DetectClusterCIDR, []netip.Addr{addr("192.0.2.1")}, []netip.Prefix{v6, v4}, []netip.Prefix{v6, v4}, nil, nil},
		{"both families", config.DetectClusterCIDR, []netip.Addr{addr("192.0.2.1"), addr("fd01::1")}, []netip.Prefix{v6}, []netip.Prefix{v6}, nil, nil},
		{"unknown addresses", config.DetectClusterCIDR, nil, []netip.Prefix{v6}, []netip.Prefix{v6}, nil, nil},
		{"clusterCIDR", config.DetectClusterCIDR, []netip.Addr{addr("192.0.2.1")}, []netip.Prefix{v6}, nil, nil, []bool{true}},
		{"clusterCIDR, not used", config.DetectInterfacePrefix, []netip.Addr{addr("192.0.2.1")}, []netip.Prefix{v6}, nil, nil, []bool{false}},
		{"podCIDRs", config.DetectNodeCIDR, []netip.Addr{addr("fd01::1")}, nil, nil, []netip.Prefix{v4}, []bool{true}},
		{"podCIDRs, not used", config.DetectClusterCIDR, []netip.Addr{addr("fd01::1")}, nil, nil, []netip.Prefix{v4}, []bool{false}},
		{"nodePortAddresses", config.DetectClusterCIDR, []netip.Addr{addr("fd01::1")}, nil, []netip.Prefix{v4}, nil, []bool{false}},
	} {
		c := config.Default()
		c.NodeName, c.DetectLocal, c.ClusterCIDRs, c.NodePorts.Prefixes = "here", test.detect, test.cluster, test.ports
		var got []bool
		for _, p := range resolve.HostProblems(&c, &model.Node{Name: "here", IPs: test.ips, PodCIDRs: test.podCIDRs}, nil, model.Machine{}, true) {
			got = append(got, p.Unfit)
			if p.Why != model.WhyOtherFamily {
				t.Errorf("%s: %v", test.name, p)
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: unfit %v, want %v", test.name, got, test.want)
		}
	}
}

// Only ranges in which there is nothing but cluster IPs are the Services' own.
func TestServiceCIDRs(t *testing.T) {
	node := &model.Node{Name: "here", IPs: []netip.Addr{addr("192.0.2.1")}, PodCIDRs: []netip.Prefix{prefix("10.1.0.0/24")}}
	cidr := func(name string, ps ...string) *model.ServiceCIDR {
		c := &model.ServiceCIDR{Name: name, Where: name + ".yaml:1"}
		for _, p := range ps {
			c.CIDRs = append(c.CIDRs, prefix(p))
		}
		return c
	}
	for _, test := range []struct {
		name  string
		node  *model.Node
		cidrs []*model.ServiceCIDR
		want  string // ranges, and then what is left out
	}{
		{"none", node, nil, "[]"},
		{"one", node, []*model.ServiceCIDR{cidr("a", "10.96.0.0/12")}, "[10.96.0.0/12]"},
		{"several, one in another", node, []*model.ServiceCIDR{cidr("a", "10.96.0.0/12"), cidr("b", "10.8.0.0/16"), cidr("c", "10.96.8.0/24")}, "[10.8.0.0/16 10.96.0.0/12]"},
		{"the node's network", node, []*model.ServiceCIDR{cidr("a", "192.0.2.0/24", "10.96.0.0/12")}, "[10.96.0.0/12] a.yaml:1: ServiceCIDR a: 192.0.2.0/24: contains 192.0.2.1, an address of this node"},
		{"all there is", node, []*model.ServiceCIDR{cidr("a", "0.0.0.0/0")}, "[] a.yaml:1: ServiceCIDR a: 0.0.0.0/0: contains 192.0.2.1, an address of this node"},
		{"this node's pods", node, []*model.ServiceCIDR{cidr("a", "10.1.0.0/16")}, "[] a.yaml:1: ServiceCIDR a: 10.1.0.0/16: overlaps the pod CIDR 10.1.0.0/24"},
		{"among the cluster's pods", node, []*model.ServiceCIDR{cidr("a", "10.2.3.0/24")}, "[] a.yaml:1: ServiceCIDR a: 10.2.3.0/24: overlaps the pod CIDR 10.2.0.0/16"},
		{"another family than the node's", node, []*model.ServiceCIDR{cidr("a", "fd00::/112")}, "[] a.yaml:1: ServiceCIDR a: fd00::/112: this node's IPv6 address is unknown and might be in it"},
		{"no Node", nil, []*model.ServiceCIDR{cidr("a", "10.96.0.0/12")}, "[] a.yaml:1: ServiceCIDR a: 10.96.0.0/12: this node's IPv4 address is unknown and might be in it"},
	} {
		c := config.Default()
		c.NodeName, c.ClusterCIDRs = "here", []netip.Prefix{prefix("10.2.0.0/16")}
		got := fmt.Sprint(resolve.Host(&c, test.node, test.cidrs, model.Machine{}).ServiceCIDRs)
		for _, p := range resolve.HostProblems(&c, test.node, test.cidrs, model.Machine{}, true) {
			got += " " + strings.TrimSuffix(p.String(), ": "+model.WhySharedRange.Text())
		}
		if got != test.want {
			t.Errorf("%s:\n got %s\nwant %s", test.name, got, test.want)
		}
	}
}

// Addresses of the node: a cluster IP would close all other ports of the node, an
// external IP takes any port that a user likes. Load balancers that put node
// addresses into the status do so for k3s and kube-vip.
func TestAddressesOfTheNode(t *testing.T) {
	svc := service()
	svc.Type = model.LoadBalancer
	svc.ClusterIPs = []netip.Addr{addr("192.0.2.2"), addr("fd00::10")}
	svc.ExternalIPs = []netip.Addr{addr("2001:db8::1"), addr("2001:db8:cafe::1")}
	svc.LoadBalancerIPs = []netip.Addr{addr("192.0.2.1")}
	svc.Ports[0].Port, svc.Ports[0].NodePort = 443, 30080
	h := host()
	h.Guard.NodeIPs = []netip.Addr{addr("192.0.2.2")} // not among those of the Node object
	r := resolve.Service(h, svc, nil)
	var got []string
	for _, p := range r.Ports {
		for _, f := range p.Frontends {
			got = append(got, f.Kind.String()+" "+f.At.String())
		}
	}
	want := []string{
		"load balancer IP 192.0.2.1:443", "node port 0.0.0.0:30080",
		"cluster IP [fd00::10]:443", "external IP [2001:db8:cafe::1]:443", "node port [::]:30080",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	said := fmt.Sprint(problems(r))
	if said != "[NodeAddress: cluster IP 192.0.2.2 NodeAddress: external IP 2001:db8::1, on whose port 443 (tcp) a process of this node may listen]" {
		t.Errorf("problems: %s", said)
	}
	const text = "external IP 2001:db8::1, on whose port 443 (tcp) a process of this node may listen: address belongs to this node; to allow it, add 2001:db8::1/128 to --allowed-external-ips"
	if got := r.Problems[len(r.Problems)-1].Text(); got != text {
		t.Errorf("%s, want %s", got, text)
	}
}

func problems(r resolve.Result) (all []string) {
	for _, p := range r.Problems {
		all = append(all, p.Why.String()+": "+p.Detail)
	}
	return all
}

func FuzzService(f *testing.F) {
	f.Add("10.0.0.1@here 10.0.0.2@there/terminating", uint16(80), time.Second.Nanoseconds())
	f.Fuzz(func(t *testing.T, words string, port uint16, affinity int64) {
		var good []string
		for _, w := range strings.Fields(words) {
			ip, _, _ := strings.Cut(w, "@")
			ip, _, _ = strings.Cut(ip, "/")
			if _, err := netip.ParseAddr(ip); err == nil {
				good = append(good, w)
			}
		}
		svc := service()
		svc.Ports[0].Port, svc.SessionAffinity = port, time.Duration(affinity)
		s := slice("s", good...)
		a, b := resolve.Service(host(), svc, []*model.Slice{s}), resolve.Service(host(), svc, []*model.Slice{s})
		for i := range a.Ports {
			if !a.Ports[i].Equal(b.Ports[i]) {
				t.Fatal("not deterministic")
			}
			for _, pool := range a.Ports[i].Pools() {
				if len(pool.Endpoints) == 0 {
					t.Fatal("an empty pool")
				}
			}
		}
	})
}
