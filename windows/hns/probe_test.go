// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// public is a port of a Service with the ingress IP 203.0.113.1.
func public(name, at, endpoint string, health uint16) *model.Port {
	p := ported(model.KindLoadBalancer, at, true, pool(1, func(int) string { return endpoint }))
	p.ID.Service, p.ID.Name, p.HealthPort = model.ServiceName{Namespace: "default", Name: "web"}, name, health
	return p
}

// mapped returns what leads from a port of the ingress IP, as "port to endpoint
// names", with the flags.
func (r *rig) mapped(port uint16) (names string, lb hns.LoadBalancer) {
	by := map[string]string{}
	for _, e := range r.emu.Endpoints() {
		by[e.ID] = e.Name
	}
	for _, lb := range r.emu.Balancers() {
		if lb.PortMappings[0].ExternalPort == port {
			var all []string
			for _, id := range lb.HostComputeEndpoints {
				all = append(all, by[id])
			}
			return strings.Join(all, " "), lb
		}
	}
	return "", hns.LoadBalancer{}
}

// forwards has health checks of VIPs forwarded to port 10256 of the node's own endpoint, from a new process on.
func (r *rig) forwards() {
	r.Helper()
	r.options.Probes = hns.Probes{Forward: true, Port: 10256}
	r.settings.Root = "cbr0"
	r.emu.AddEndpoint(hns.Endpoint{Name: "cbr0", HostComputeNetwork: r.network, IpConfigurations: []hns.IpConfig{{IpAddress: "10.244.1.1"}}})
	r.restart()
}

// A cloud load balancer asks its own VIP how the node is; that leads to the node.
func TestHealthChecksOfAVIP(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		r.options.Probes = hns.Probes{Forward: true, Port: 10256}
		r.settings.Root = "cbr0"
		r.restart()
		r.ports["http"] = public("http", "203.0.113.1:80", "10.244.2.2:8080", 31000)
		r.ports["https"] = public("https", "203.0.113.1:443", "10.244.2.2:8443", 31000)
		if err := r.backend.Adopt(r.Context()); err != nil {
			r.Fatal(err)
		}
		r.backend.SetHost(r.host)
		r.backend.Update([]model.Delta{{New: r.ports["http"]}, {New: r.ports["https"]}})
		r.fails("the node's own endpoint") // no CNI plug-in has made it yet
		if names, _ := r.mapped(80); names != "tandem_10.244.2.2" {
			r.Errorf("port 80 leads to %q", names)
		}
		r.emu.AddEndpoint(hns.Endpoint{Name: "cbr0", HostComputeNetwork: r.network, IpConfigurations: []hns.IpConfig{{IpAddress: "10.244.1.1"}}})
		r.settle()
		names, lb := r.mapped(31000)
		if m := lb.PortMappings; names != "cbr0" || m[0].InternalPort != 31000 || m[0].Protocol != 6 || m[0].Flags != 0 || lb.Flags != 0 {
			r.Errorf("health checks lead to %q: %+v", names, lb)
		}
		r.resume()
		r.unset("http") // the other port needs it still
		r.sync()
		if names, _ := r.mapped(31000); names != "cbr0" {
			r.Error("health checks lead nowhere")
		}
		r.unset("https")
		r.sync()
		if names, _ := r.mapped(31000); names != "" {
			r.Error("health checks of a Service that is gone")
		}
	})
}

func TestWhichHealthChecksAreForwarded(t *testing.T) {
	for _, tt := range []struct {
		probes hns.Probes
		health uint16
		at     string
		want   uint16
		gap    bool
	}{
		{hns.Probes{}, 31000, "203.0.113.1:80", 0, false},
		{hns.Probes{Forward: true, Port: 10256}, 0, "203.0.113.1:80", 10256, false},
		{hns.Probes{Forward: true, Port: 10256}, 31000, "203.0.113.1:80", 31000, false},
		{hns.Probes{Forward: true}, 0, "203.0.113.1:80", 0, false},
		{hns.Probes{Forward: true, Port: 10256}, 0, "203.0.113.1:10256", 0, true},
	} {
		o := hns.Newest()
		o.Probes = tt.probes
		var got uint16
		emit := func(k hns.Key, v hns.Value) {
			if b := v.Balancer; b != nil && b.Endpoints[0].Addr.IsUnspecified() {
				got = k.Port
			}
		}
		gaps := hns.NewCompiler(o).Port(node, public("p", tt.at, "10.244.2.2:8080", tt.health), emit)
		if got != tt.want || len(gaps) > 0 != tt.gap {
			t.Errorf("%+v: %d, gaps %v", tt, got, gaps)
		}
	}
}

// Load balancers without DSR take ports away that pods may need: that is a finding, the same at
// each reading until there are fewer.
func TestManyLoadBalancersWithoutDSRAreReported(t *testing.T) {
	on(t, hnsemu.WS2019, func(r *rig) {
		var log bytes.Buffer
		r.settings.Log = slog.New(slog.NewTextHandler(&log, nil))
		r.restart()
		pod := r.emu.Endpoints()[0].ID
		var last string
		for i := range 129 {
			if i == 128 {
				r.begin()
				r.says("")
			}
			last = r.emu.AddBalancer(hns.LoadBalancer{
				HostComputeEndpoints: []string{pod}, FrontendVIPs: []string{"10.96.1.1"},
				PortMappings: []hns.PortMapping{{Protocol: 6, InternalPort: 1, ExternalPort: uint16(1000 + i)}},
			}, i < 128)
		}
		r.audit()
		before := problems(r.driver)
		r.says("more than 128 load balancers without DSR reserve 64 of the node's ports each")
		if r.audit(); problems(r.driver) != before {
			r.Errorf("it says first %q, then %q", before, problems(r.driver))
		}
		r.emu.Change(last, func(lb *hns.LoadBalancer) { lb.Flags |= hns.FlagDSR })
		r.audit()
		r.says("")
		if log.Len() > 0 {
			r.Errorf("logged: %s", log.String())
		}
	})
}

// A Service of 3 ports and 85 external IPs would take all ports of the node: its namespace gets
// half of what there is room for, and others find some at any time, also after a restart, in
// which HNS does not say whose the load balancers are. Cluster IPs are served in any case.
func TestNamespacesSharePortsOfTheNode(t *testing.T) {
	of := func(namespace, name string, ips, ports int) (all []*model.Port) {
		for i := range ports {
			p := ported(model.KindExternalIP, "198.51.100.1:80", true, pool(1, func(int) string { return "10.244.2.2:8080" }))
			p.ID.Service, p.ID.Name = model.ServiceName{Namespace: namespace, Name: name}, fmt.Sprint(i)
			f := p.Frontends[0]
			p.Frontends = nil
			for n := range ips {
				f.At = netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("198.51.%d.%d", 100+len(name), 1+n)), uint16(1000+i))
				p.Frontends = append(p.Frontends, f)
			}
			all = append(all, p)
		}
		return all
	}
	external := func(r *rig, third string) (n int) {
		for _, lb := range r.emu.Balancers() {
			if strings.HasPrefix(lb.FrontendVIPs[0], "198.51."+third+".") {
				n++
			}
		}
		return n
	}
	on(t, hnsemu.WS2022, func(r *rig) {
		update := func(ports []*model.Port) {
			for _, p := range ports {
				r.ports[p.ID.String()] = p
				r.backend.Update([]model.Delta{{New: p}})
			}
		}
		r.begin()
		update(of("hostile", "a", 85, 3))
		r.fails("no ports of the node are left for it")
		if n := external(r, "101"); n != 113 {
			r.Errorf("one namespace alone has %d, want half of 224 and one", n)
		}
		update(of("victim", "bb", 20, 1))
		r.backend.Sync(r.Context())
		if n := external(r, "102"); n != 20 {
			r.Errorf("another one has %d of 20", n)
		}
		before := external(r, "101")
		r.restart()
		if err := r.backend.Adopt(r.Context()); err != nil {
			r.Fatal(err)
		}
		r.backend.SetHost(r.host)
		for _, p := range r.ports {
			r.backend.Update([]model.Delta{{New: p}})
		}
		update(of("hostile", "ccc", 85, 3))
		r.backend.Sync(r.Context())
		if a, b, c := external(r, "101"), external(r, "102"), external(r, "103"); a != before || b != 20 || c != 0 {
			r.Errorf("after a restart %d, %d and %d", a, b, c)
		}
		update(of("third", "dddd", 10, 1))
		r.ports["web"] = port("web", "10.96.0.10", "10.244.1.2")
		r.backend.Update([]model.Delta{{New: r.ports["web"]}})
		r.backend.Sync(r.Context())
		r.serves("10.96.0.10", "10.244.1.2")
		if n := external(r, "104"); n != 10 {
			r.Errorf("a third one has %d of 10", n)
		}
		if drift, err := r.backend.Audit(r.Context()); err != nil || drift != 0 {
			r.Errorf("drift: %d, %v", drift, err)
		}
	})
}

// The proxy's own health server has the port of forwarded health checks on all addresses, and Server 2019 takes
// that for an address of the node (kubernetes/community#8883): the Service is served, what is missing is said,
// counted and tried again. kube-proxy 1.37 logs it, and does not try again.
func TestHealthChecksWhosePortIsHeld(t *testing.T) {
	on(t, hnsemu.WS2019, func(r *rig) {
		r.forwards()
		r.emu.Hold(func(port uint16) bool { return port == 10256 })
		web(r)
		r.backend.Update([]model.Delta{{New: public("http", "203.0.113.1:80", "10.244.2.2:8080", 0)}})
		r.fails("a listening process")
		r.serves("203.0.113.1", "10.244.2.2")
		served(r)
		want := dataplane.BalancerFailure{Verb: "create", Family: model.IPv4, Type: "healthcheck", Error: "port_already_exists"}
		if all := r.driver.BalancerFailures(); len(all) != 1 || all[want] == 0 {
			r.Errorf("counted %v", all)
		}
		r.emu.Hold(nil)
		r.settle()
		if names, _ := r.mapped(10256); names != "cbr0" {
			r.Errorf("health checks lead to %q", names)
		}
		r.gaps(0)
	})
}

// Other programs have all dynamic ports but those of one load balancer: the next one without DSR is refused as if its
// port was taken, those with DSR are made, and it is as soon as there are ports again.
func TestNoDynamicPortsAreLeft(t *testing.T) {
	on(t, hnsemu.WS2019, func(r *rig) {
		var others []string
		for i := range 3 {
			others = append(others, r.emu.AddBalancer(hns.LoadBalancer{
				HostComputeEndpoints: []string{r.emu.Endpoints()[0].ID}, FrontendVIPs: []string{fmt.Sprintf("198.18.0.%d", i)},
				PortMappings: []hns.PortMapping{{Protocol: 6, InternalPort: 80, ExternalPort: 80}},
			}, true))
		}
		r.emu.Behave(hnsemu.Behaviour{Ports: 4 * 64})
		web(r)
		for _, vip := range []string{"198.51.100.1", "198.51.100.2"} {
			p := ported(model.KindExternalIP, vip+":80", true, pool(1, func(int) string { return "10.244.2.2:8080" }))
			p.ID.Service = model.ServiceName{Namespace: "default", Name: vip}
			r.backend.Update([]model.Delta{{New: p}})
		}
		r.fails("no dynamic ports left")
		served(r)
		if a, b := r.served("198.51.100.1"), r.served("198.51.100.2"); a+b != "10.244.2.2" {
			r.Errorf("one of the two has a port: %q, %q", a, b)
		}
		r.emu.Remove(others[0])
		r.settle()
		r.serves("198.51.100.1", "10.244.2.2")
		r.serves("198.51.100.2", "10.244.2.2")
	})
}

// On a build of Server 2019 the port of a load balancer without DSR stays taken when that is deleted
// (kubernetes#137530), so that one that is replaced cannot be made again: that is said, and others are served. With
// DSR, the default of mode auto, it takes no port.
func TestAPortThatStaysTaken(t *testing.T) {
	for _, dsr := range []bool{false, true} {
		on(t, hnsemu.WS2019, func(r *rig) {
			r.options.ClientDSR = dsr
			r.emu.Behave(hnsemu.Behaviour{PortStays: true})
			r.restart()
			web(r)
			r.set("web", "10.96.0.10", "10.244.2.3")
			if dsr {
				r.sync()
			} else {
				r.fails("excludedportrange")
				r.serves("10.96.0.10", "")
				r.serves("10.96.0.11", "10.244.2.2 10.244.2.3")
				r.emu.Behave(hnsemu.Behaviour{})
				r.settle()
			}
			r.serves("10.96.0.10", "10.244.2.3")
		})
	}
}

// problems is what a driver says of what is there and has no effect.
func problems(d *hns.Driver) (all string) {
	for _, p := range d.Problems() {
		all += p.String() + "\n"
	}
	return all
}

// With DSR a pod reaches itself through a Service only if its CNI plug-in has set
// that up: where it has not, the data plane is degraded (status, doctor, metric).
func TestPodsWithoutLoopbackDSRAreReported(t *testing.T) {
	for _, dsr := range []bool{false, true} {
		on(t, hnsemu.WS2022, func(r *rig) {
			var log bytes.Buffer
			r.settings.Log, r.settings.DSR = slog.New(slog.NewTextHandler(&log, nil)), dsr
			for _, e := range r.emu.Endpoints() {
				r.emu.Remove(e.ID)
			}
			loopback := hns.Policy{Type: "OutBoundNAT", Settings: []byte(`{"Destinations":["10.244.1.7"]}`)}
			r.emu.AddEndpoint(hns.Endpoint{
				Name: "good", HostComputeNetwork: r.network, Policies: []hns.Policy{loopback}, IpConfigurations: []hns.IpConfig{{IpAddress: "10.244.1.7"}},
			})
			r.restart()
			r.begin()
			if said := problems(r.driver) + log.String(); said != "" {
				r.Errorf("all is well, and %q is said", said)
			}
			r.emu.AddPod(r.network, "10.244.1.8")
			for range 3 {
				r.audit()
			}
			if said := problems(r.driver); strings.Contains(said, "loopbackDSR") != dsr {
				r.Errorf("DSR %t: %q", dsr, said)
			}
		})
	}
}
