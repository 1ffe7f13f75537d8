// SPDX-License-Identifier: Apache-2.0

package question_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/track"
)

// applied is a Service as people apply it, and what it leaves.
func applied(name string, typ model.ServiceType, ports ...model.ServicePort) (*model.Service, model.Unassigned) {
	n := model.ServiceName{Namespace: "shop", Name: name}
	return &model.Service{Name: n, Type: typ, ClusterIPs: []netip.Addr{netip.IPv4Unspecified()}, Ports: ports},
		model.Unassigned{Service: n, ClusterIPs: true, NodePorts: typ != model.ClusterIP}
}

// A manifest as people apply it changes of a running Service what it says, and keeps what the API server and others
// have written: to apply it again is no change.
func TestPreviewKeepsWhatTheAPIServerAssigned(t *testing.T) {
	addr := netip.MustParseAddr
	was := &model.Service{
		Name: model.ServiceName{Namespace: "shop", Name: "web"}, Created: time.Unix(1, 0), Type: model.LoadBalancer, External: model.Local, HealthCheckNodePort: 30100,
		ClusterIPs: []netip.Addr{addr("10.96.0.1")}, LoadBalancerIPs: []netip.Addr{addr("203.0.113.1")},
		Ports: []model.ServicePort{{Name: "http", Proto: model.TCP, Port: 80, NodePort: 30080}},
	}
	host := &model.Host{Name: "node-1", IPs: []netip.Addr{addr("192.0.2.1")}, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/30")}}
	all, _ := track.Once(host, &model.Objects{Services: []*model.Service{was}})
	d := &question.Document{Snapshot: &engine.Snapshot{Host: host, Services: all, At: time.Now()}}
	ask := func(left model.Unassigned, services ...*model.Service) question.Preview {
		t.Helper()
		p, err := question.PreviewEdit().Answer(t.Context(), d, question.Edit{Objects: model.Objects{Services: services}, Unassigned: []model.Unassigned{left}, NodePorts: config.PortRange{First: 30079, Last: 30080}})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	web, left := applied("web", model.LoadBalancer, model.ServicePort{Name: "http", Proto: model.TCP, Port: 80})
	web.External = model.Local
	if p := ask(left, web); p.Pending() || len(p.Problems) > 0 || !slices.Equal(p.Assumed, []string{"Service shop/web: cluster IP 10.96.0.1, node port 30080, health check node port 30100 as now"}) {
		t.Errorf("%+v", p)
	}
	edited, left := applied("web", model.LoadBalancer, model.ServicePort{Name: "http", Proto: model.TCP, Port: 81}, model.ServicePort{Name: "more", Proto: model.TCP, Port: 82})
	edited.External = model.Local
	p := ask(left, edited)
	if want := []string{"Service shop/web: cluster IP 10.96.0.1, node port 30080, health check node port 30100 as now; node port 30079 as a placeholder for what the API server will assign"}; !slices.Equal(p.Assumed, want) {
		t.Errorf("%q", p.Assumed)
	}
	if len(p.Services) != 1 || !slices.Contains(p.Services[0].Changes, "port 80 → 81") || !slices.Contains(p.Services[0].Changes, "load balancer IP 203.0.113.1:82/tcp added") {
		t.Errorf("%+v", p.Services)
	}
	added, left := applied("db", model.ClusterIP, model.ServicePort{Proto: model.TCP, Port: 5432})
	p = ask(left, added)
	if len(p.Services) != 1 || !slices.Equal(p.Services[0].Changes, []string{"cluster IP 10.96.0.2:5432/tcp added"}) || len(p.Problems) > 0 {
		t.Errorf("%+v", p)
	}
	if !added.ClusterIPs[0].IsUnspecified() {
		t.Error("the edit of the asker was changed")
	}
}

// Placeholders are free: no two Services get the same, and none what another has. Where nothing is free a Service is
// left out, and that is said.
func TestAssign(t *testing.T) {
	var in model.Objects
	var left []model.Unassigned
	fixed, _ := shop("fixed", "10.96.0.6", 80)
	in.Add(fixed)
	for i := range 6 {
		s, l := applied(fmt.Sprint("s", i), model.NodePort, model.ServicePort{Proto: model.TCP, Port: 80})
		in.Add(s)
		left = append(left, l)
	}
	in.Add(&model.ServiceCIDR{Name: "kubernetes", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/29")}})
	assumed := question.Assign(&in, left, config.PortRange{First: 30000, Last: 30001})
	var got []string
	for _, s := range in.Services {
		got = append(got, fmt.Sprint(s.Name.Name, s.ClusterIPs, s.Ports[0].NodePort))
	}
	if want := []string{"fixed[10.96.0.6] 0", "s0[10.96.0.5] 30001", "s1[10.96.0.4] 30000", "s2[10.96.0.3] 0", "s3[10.96.0.2] 0", "s4[10.96.0.1] 0"}; !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if n := len(assumed); n != 6 || assumed[5] != "Service shop/s5 is left out: no cluster IP is free in 10.96.0.0/29" ||
		assumed[2] != "Service shop/s2: cluster IP 10.96.0.3 as a placeholder for what the API server will assign; no node port is free in 30000-30001" {
		t.Errorf("%q", assumed)
	}
	local, l := applied("local", model.LoadBalancer, model.ServicePort{Proto: model.TCP, Port: 80})
	local.External = model.Local
	checked := model.Objects{Services: []*model.Service{local}}
	if assumed = question.Assign(&checked, []model.Unassigned{l}, config.PortRange{First: 30000, Last: 30002}); checked.Services[0].HealthCheckNodePort != 30001 || checked.Services[0].Ports[0].NodePort != 30002 ||
		!slices.Equal(assumed, []string{"Service shop/local: cluster IP 10.111.255.254, node port 30002, health check node port 30001 as a placeholder for what the API server will assign"}) {
		t.Errorf("%+v, %q", checked.Services[0], assumed)
	}
	other, l := applied("other", model.NodePort, model.ServicePort{Proto: model.TCP, Port: 80})
	other.ClusterIPs, l.ClusterIPs = fixed.ClusterIPs, false
	checked.Add(other)
	if assumed = question.Assign(&checked, []model.Unassigned{l}, config.PortRange{First: 30001, Last: 30002}); !slices.Equal(assumed, []string{"Service shop/other: no node port is free in 30001-30002"}) {
		t.Errorf("%q", assumed)
	}
	six := model.Objects{Services: []*model.Service{{Name: model.ServiceName{Namespace: "a", Name: "b"}, ClusterIPs: []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}}}}
	if question.Assign(&six, []model.Unassigned{{Service: six.Services[0].Name, ClusterIPs: true}}, config.PortRange{}); fmt.Sprint(six.Services[0].ClusterIPs) != "[10.111.255.254 fd00:10:96::fffe]" {
		t.Error(six.Services[0].ClusterIPs)
	}
}
