// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

var node = &model.Host{
	Name: "node-1", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
	NodePorts: model.NodePortMatch{Prefixes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}},
}

// compiled returns the load balancer of a port's only front, if any, and the
// gaps as one text.
func compiled(o hns.Options, host *model.Host, p *model.Port) (*hns.Balancer, string) {
	objects, gaps := dataplane.Compile(hns.NewCompiler(o), host, []*model.Port{p})
	var texts []string
	for _, g := range gaps[p.ID] {
		texts = append(texts, g.Detail)
	}
	for k, v := range objects {
		if k.Kind == hns.KindBalancer {
			return v.Balancer, strings.Join(texts, "; ")
		}
	}
	return nil, strings.Join(texts, "; ")
}

func pool(n int, f func(i int) string) *model.Pool {
	p := &model.Pool{}
	for i := range n {
		p.Endpoints = append(p.Endpoints, model.Endpoint{Addr: netip.MustParseAddrPort(f(i))})
	}
	return p
}

func ported(kind model.Kind, at string, snat bool, p *model.Pool) *model.Port {
	act := model.Action{Verdict: model.Balance, Pool: p, SNAT: snat}
	at2 := netip.MustParseAddrPort(at)
	return &model.Port{
		ID:        model.PortID{Service: model.ServiceName{Namespace: "ns", Name: "a"}, Proto: model.TCP, Family: model.FamilyOf(at2.Addr())},
		Frontends: []model.Frontend{{Kind: kind, At: at2, On: [model.Origins]model.Action{act, act, act}}},
	}
}

func TestPoolsThatHNSCannotHave(t *testing.T) {
	for name, tt := range map[string]struct {
		pool      *model.Pool
		endpoints int
		port      uint16
		gap       string
	}{
		"one port":          {pool(3, func(i int) string { return fmt.Sprintf("10.244.2.%d:80", i+1) }), 3, 80, ""},
		"two ports":         {pool(3, func(i int) string { return fmt.Sprintf("10.244.2.%d:%d", i+1, 81-min(i, 1)) }), 2, 80, "1 of 3 endpoints are left out: they are not on port 80"},
		"as many of both":   {pool(2, func(i int) string { return fmt.Sprintf("10.244.2.%d:%d", i+1, 81-i) }), 1, 80, "1 of 2"},
		"the node itself":   {pool(2, func(i int) string { return fmt.Sprintf("192.0.2.%d:80", i+1) }), 1, 80, "no endpoint for the node's own address"},
		"the node only":     {pool(1, func(int) string { return "192.0.2.1:80" }), 0, 0, "1 of 1"},
		"too many":          {pool(1030, func(i int) string { return fmt.Sprintf("10.245.%d.%d:80", i/256, i%256) }), 1024, 80, "6 of 1030 endpoints are left out: HNS takes at most 1024"},
		"twice, two ports":  {pool(2, func(i int) string { return fmt.Sprintf("10.244.2.1:%d", 80+i) }), 1, 80, "1 of 2"},
		"one address alone": {pool(1, func(int) string { return "10.244.2.1:80" }), 1, 80, ""},
	} {
		b, gap := compiled(hns.Newest(), node, ported(model.KindClusterIP, "10.96.0.1:80", false, tt.pool))
		if tt.endpoints == 0 && b != nil || tt.endpoints > 0 && (b == nil || len(b.Endpoints) != tt.endpoints || b.Port != tt.port) {
			t.Errorf("%s: %+v", name, b)
		}
		if !strings.Contains(gap, tt.gap) || tt.gap == "" && gap != "" {
			t.Errorf("%s: gap %q", name, gap)
		}
	}
}

func TestWhatStaysClosed(t *testing.T) {
	one := pool(1, func(int) string { return "10.244.2.1:80" })
	restricted := ported(model.KindLoadBalancer, "203.0.113.1:80", true, one)
	restricted.Frontends[0].Restricted = true
	if b, gap := compiled(hns.Newest(), node, restricted); b != nil || !strings.Contains(gap, "loadBalancerSourceRanges") {
		t.Errorf("source ranges: %v, %q", b, gap)
	}
	some := *node
	some.NodePorts.Prefixes = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	if b, gap := compiled(hns.Newest(), &some, ported(model.KindNodePort, "0.0.0.0:30080", true, one)); b != nil || !strings.Contains(gap, "192.0.2.1") {
		t.Errorf("node ports elsewhere: %v, %q", b, gap)
	}
	if b, gap := compiled(hns.Newest(), node, ported(model.KindNodePort, "0.0.0.0:30080", true, one)); b == nil || gap != "" {
		t.Errorf("node ports everywhere: %v, %q", b, gap)
	}
}

func TestDSR(t *testing.T) {
	one := pool(1, func(int) string { return "10.244.2.1:80" })
	all, none, hostOnly := hns.Newest(), hns.Options{}, hns.Options{DSR: true}
	for _, tt := range []struct {
		o    hns.Options
		kind model.Kind
		snat bool
		want bool
		gap  string
	}{
		{all, model.KindClusterIP, false, true, ""},
		{hostOnly, model.KindClusterIP, false, false, ""},
		{all, model.KindExternalIP, true, false, ""},
		{all, model.KindExternalIP, false, true, ""},
		{hostOnly, model.KindExternalIP, false, true, ""}, // policy Local needs it, asked for or not
		{none, model.KindExternalIP, false, false, "do not see their clients"},
	} {
		b, gap := compiled(tt.o, node, ported(tt.kind, "203.0.113.1:80", tt.snat, one))
		if b == nil || b.DSR != tt.want || !strings.Contains(gap, tt.gap) || tt.gap == "" && gap != "" {
			t.Errorf("%+v: %+v, %q", tt, b, gap)
		}
	}
}

func TestFamiliesAndAffinity(t *testing.T) {
	six := ported(model.KindClusterIP, "[fd00::1]:80", false, pool(1, func(int) string { return "[fd00:1::1]:80" }))
	over := hns.Newest()
	over.Overlay = true
	for o, want := range map[hns.Options]string{hns.Newest(): "", over: "overlay", {}: "11.10"} {
		if b, gap := compiled(o, node, six); (b != nil) != (want == "") || !strings.Contains(gap, want) {
			t.Errorf("%+v: %v, %q", o, b, gap)
		}
	}
	affine := ported(model.KindClusterIP, "10.96.0.1:80", false, pool(1, func(int) string { return "10.244.2.1:80" }))
	affine.SessionAffinity = 1
	if b, gap := compiled(hns.Newest(), node, affine); !b.SessionAffinity || !strings.Contains(gap, "timeout") {
		t.Errorf("%+v, %q", b, gap)
	}
	if b, gap := compiled(hns.Options{}, node, affine); !b.SessionAffinity || !strings.Contains(gap, "12.0") {
		t.Errorf("%+v, %q", b, gap)
	}
}

func TestScriptIsWhatHNSTakes(t *testing.T) {
	o := hns.Newest()
	o.Overlay = true
	p := ported(model.KindClusterIP, "10.96.0.1:80", false, pool(2, func(i int) string { return fmt.Sprintf("10.244.2.%d:8080", 2-i) }))
	objects, _ := dataplane.Compile(hns.NewCompiler(o), node, []*model.Port{p})
	var got struct {
		Endpoints     []hns.Endpoint
		LoadBalancers []hns.LoadBalancer
	}
	if err := json.Unmarshal([]byte(hns.Script(objects, true)), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Endpoints) != 4 || got.Endpoints[0].Name != "tandem-source-vip" || got.Endpoints[1].Name != "tandem_10.244.2.1" || got.Endpoints[3].Name != "tandem-vip_10.96.0.1" {
		t.Errorf("endpoints: %+v", got.Endpoints)
	}
	lb := got.LoadBalancers[0]
	if strings.Join(lb.HostComputeEndpoints, " ") != "10.244.2.1 10.244.2.2" || lb.PortMappings[0].InternalPort != 8080 || lb.Flags != hns.FlagDSR {
		t.Errorf("load balancer: %+v", lb)
	}
}

func TestFeaturesOfVersions(t *testing.T) {
	for v, want := range map[hns.Version]hns.Features{
		{9, 2}:  {},
		{9, 5}:  {DSR: true},
		{10, 1}: {DefaultSource: true},
		{10, 2}: {DSR: true, DefaultSource: true},
		{11, 9}: {DSR: true, DefaultSource: true}, {11, 10}: {DSR: true, DefaultSource: true, DualStack: true},
		{12, 0}: {DSR: true, DefaultSource: true, DualStack: true, Affinity: true},
		{15, 4}: {DSR: true, DefaultSource: true, DualStack: true, Affinity: true},
		{15, 5}: {DSR: true, DefaultSource: true, DualStack: true, Affinity: true, Modify: true},
		{16, 0}: {DSR: true, DefaultSource: true, DualStack: true, Affinity: true, Modify: true},
	} {
		if got := v.Features(); got != want {
			t.Errorf("%s: %+v, want %+v", v, got, want)
		}
	}
}

// The annotation preserve-destination is for load balancer IPs, and for the
// endpoints of this node.
func TestTheDestinationIsKept(t *testing.T) {
	both := pool(2, func(i int) string { return fmt.Sprintf("10.244.%d.2:80", i+1) })
	both.Endpoints[0].Local = true
	for _, tt := range []struct {
		o         hns.Options
		kind      model.Kind
		kept      bool
		endpoints int
		gap       string
	}{
		{hns.Newest(), model.KindLoadBalancer, true, 1, "1 of 2 endpoints are left out: HNS cannot preserve the destination to other nodes"},
		{hns.Newest(), model.KindLoadBalancer, true, 1, "endpoints see their clients' addresses"},
		{hns.Options{}, model.KindLoadBalancer, false, 2, "this HNS has no DSR"},
		{hns.Newest(), model.KindClusterIP, false, 2, ""},
	} {
		p := ported(tt.kind, "203.0.113.1:80", true, both)
		p.PreserveDestination = true
		b, gap := compiled(tt.o, node, p)
		if b == nil || b.PreserveDestination != tt.kept || len(b.Endpoints) != tt.endpoints || !strings.Contains(gap, tt.gap) || tt.gap == "" && gap != "" {
			t.Errorf("%v: %+v, %q", tt.kind, b, gap)
		}
		if tt.kept && !b.DSR {
			t.Error("the destination cannot be kept without DSR")
		}
	}
}

func TestTheDestinationStaysKept(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		r.ports["web"] = public("web", "203.0.113.1:80", "10.244.1.2:80", 0)
		r.ports["web"].Frontends[0].On[model.FromOutside].Pool.Endpoints[0].Local = true
		r.ports["web"].PreserveDestination = true
		r.begin()
		if m := r.balancer("203.0.113.1").PortMappings[0]; m.Flags != hns.FlagUseMux|hns.FlagPreserveDIP|hns.FlagVIPExternalIP {
			r.Errorf("flags %d", m.Flags)
		}
		r.resume()
	})
}

// Behind a cloud's own filter a load balancer IP with source ranges must not be
// black-holed: that can be requested. Otherwise it is not served, and health checks
// are reported.
func TestSourceRangesThatTheCloudEnforces(t *testing.T) {
	for _, trust := range []bool{false, true} {
		p := ported(model.KindLoadBalancer, "203.0.113.1:80", true, pool(1, func(int) string { return "10.244.2.1:80" }))
		p.Frontends[0].Restricted = true
		o := hns.Newest()
		o.Trust = trust
		b, _ := compiled(o, node, p)
		gaps := hns.NewCompiler(o).Port(node, p, func(hns.Key, hns.Value) {})
		if (b != nil) != trust || len(gaps) != 1 || gaps[0].Unserved == trust || gaps[0].Frontend != p.Frontends[0].At {
			t.Errorf("trust %t: %+v, gaps %+v", trust, b, gaps)
		}
	}
}
