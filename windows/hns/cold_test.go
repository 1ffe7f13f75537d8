// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// slow lets calls cost what they do on a slow node: 43 ms a read and 88 ms a creation
// (kubernetes#109124), in the caller's time.
func (r *rig) slow() {
	r.emu.Cost(func(c hnsemu.Call) time.Duration {
		switch c.Verb {
		case hnsemu.Query, hnsemu.Enumerate, hnsemu.Rest:
			return 43 * time.Millisecond
		case hnsemu.Create, hnsemu.Modify, hnsemu.Delete:
			return 88 * time.Millisecond
		}
		return 0 // opening and closing is part of a read
	})
	r.emu.Wait(true)
}

// run runs an engine on the rig's backend until the test ends.
func (r *rig) run() *engine.Engine {
	e := engine.New(engine.Options{
		Host:     func(*model.Node, []*model.ServiceCIDR) (*model.Host, []model.Problem) { return r.host, nil },
		NodeName: r.host.Name, Backend: r.backend, AuditEvery: time.Hour, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(r.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := e.Run(ctx); err != nil {
			r.Error(err)
		}
	}()
	r.Cleanup(func() {
		cancel()
		<-done
		time.Sleep(time.Second) // a call that was given up returns
	})
	return e
}

// feed gives an engine Services with three endpoints each, as fill does.
func feed(e *engine.Engine) {
	for i := range figureServices {
		name := model.ServiceName{Namespace: "default", Name: fmt.Sprintf("s%04d", i)}
		port := uint16(80)
		if i == figureServices-1 {
			name, port = model.ServiceName{Namespace: "kube-system", Name: "kube-dns"}, 53
		}
		e.Set(&model.Service{
			Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr(vip(i))},
			Ports: []model.ServicePort{{Proto: model.TCP, Port: port}},
		})
		s := &model.Slice{Name: model.SliceName(name), Service: name.Name, Ports: []model.SlicePort{{Proto: model.TCP, Port: 8080}}}
		for _, a := range []string{address(2 * i % figureEndpoints), address((2*i + 1) % figureEndpoints), address((4000 + i) % figureEndpoints)} {
			s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: netip.MustParseAddr(a), Node: "other", State: model.Ready | model.Serving})
		}
		e.Set(s)
	}
	e.Synced(true)
}

// vip is the cluster IP of a Service of fill and feed.
func vip(i int) string { return fmt.Sprintf("10.96.%d.%d", i/250, 1+i%250) }

// kubeProxyLeft leaves what kube-proxy has on an overlay: its own endpoints for
// cluster IPs and pods, the load balancers on them, and some of a node that had
// another address.
func (r *rig) kubeProxyLeft(services int) {
	for i := range services {
		node, mac := "192.0.2.1", hostMAC
		if i%2 == 0 {
			node, mac = "192.0.2.77", "00-15-5d-00-00-77"
		}
		provider := []hns.Policy{{Type: hns.PolicyProvider, Settings: []byte(`{"ProviderAddress":"` + node + `"}`)}}
		pod := address(2 * i)
		r.emu.Leave(hns.Endpoint{
			HostComputeNetwork: r.network, Flags: hns.FlagRemote, MacAddress: mac, Policies: provider, IpConfigurations: []hns.IpConfig{{IpAddress: vip(i)}},
		})
		id := r.emu.Leave(hns.Endpoint{
			HostComputeNetwork: r.network, Flags: hns.FlagRemote, MacAddress: "02-11-00-00-00-01", Policies: provider, IpConfigurations: []hns.IpConfig{{IpAddress: pod}},
		})
		r.emu.AddBalancer(hns.LoadBalancer{
			HostComputeEndpoints: []string{id}, FrontendVIPs: []string{vip(i)}, SourceVIP: "10.244.1.200",
			PortMappings: []hns.PortMapping{{Protocol: 6, InternalPort: 8080, ExternalPort: 80}},
		}, false)
	}
}

// A flannel overlay node is made from nothing, on a slow HNS: no source VIP, and
// what kube-proxy has left of a few Services. DNS is served within ten seconds,
// and within one hundredth of the whole; the proxy is alive all the time; and all
// Services are served in the end, by the same process.
func TestAColdStart(t *testing.T) {
	onNetwork(t, hnsemu.WS2019, hns.TypeOverlay, func(r *rig) {
		r.settings.SourceVIP = netip.Addr{}
		r.emu.SetPolicies(r.network, remoteSubnet("10.244.96.0/19", "192.0.2.5"))
		r.kubeProxyLeft(30)
		r.slow()
		r.restart()
		e := r.run()
		begun := time.Now()
		feed(e)
		var first time.Duration
		asked := 0
		for !e.Status().Synced {
			time.Sleep(time.Second / 2)
			asked++
			if h := question.HealthOf(e.Status(), 20*time.Second, nil); !h.Alive() {
				t.Fatalf("after %s the proxy is to be restarted: %v", time.Since(begun), h.Reasons)
			}
			if first == 0 && r.served(vip(figureServices-1)) != "" {
				first = time.Since(begun)
			}
			if time.Since(begun) > time.Hour {
				t.Fatalf("after an hour %+v", e.Status())
			}
		}
		whole := time.Since(begun)
		t.Logf("%d Services, %d remote endpoints: DNS after %s (%.2f %%), all after %s, %d calls of HNS, %d of them writes; alive %d times of %d",
			figureServices, figureEndpoints, first, 100*first.Seconds()/whole.Seconds(), whole, r.emu.Calls(), r.emu.Writes(), asked, asked)
		if first > 10*time.Second || first > whole/100 {
			t.Errorf("DNS is served after %s of %s", first, whole)
		}
		if err := e.Status().Err; err != nil {
			t.Error(err)
		}
		all := map[string]bool{}
		for _, lb := range r.emu.Balancers() {
			all[lb.FrontendVIPs[0]] = len(lb.HostComputeEndpoints) == 3 && lb.SourceVIP == "10.244.1.4"
		}
		for i := range figureServices {
			if !all[vip(i)] {
				t.Fatalf("%s is not served", vip(i))
			}
		}
		restartSlowly(r)
	})
}

// A process on that node holds a port, which HNS refuses as one that exists: each
// attempt at that Service lists all load balancers, which takes minutes of a cold
// start unless that is paced.
func TestAColdStartWithAPortThatIsHeld(t *testing.T) {
	on(t, hnsemu.WS2022, func(r *rig) {
		r.slow()
		lists := 0
		r.emu.Hook(func(c *hnsemu.Call) hns.Code {
			if c.Name == "HcnEnumerateLoadBalancers" {
				lists++
			}
			if c.Name == "HcnCreateLoadBalancer" && strings.Contains(c.Text, `"`+vip(7)+`"`) {
				return 0x803b0013
			}
			return 0
		})
		e := r.run()
		begun := time.Now()
		feed(e)
		for {
			time.Sleep(5 * time.Second)
			if s := e.Status(); s.Syncs > 0 && s.Deferred == 0 {
				break
			}
			if time.Since(begun) > 2*time.Hour {
				r.Fatalf("after two hours %+v", e.Status())
			}
		}
		r.Logf("%d Services after %s, load balancers listed %d times", figureServices, time.Since(begun), lists)
		if whole := time.Since(begun); whole > 30*time.Minute {
			r.Errorf("it took %s", whole)
		}
	})
}

// A namespace has thousands of frontends on the port of DNS, or one with hundreds of endpoints
// of its own: others' are programmed in turn, those of one change within the first Commit.
func TestNamespacesTakeTurnsOnASlowHNS(t *testing.T) {
	for name, hostile := range map[string]func(i int) *model.Port{
		"port 53": func(i int) *model.Port {
			return ported(model.KindClusterIP, vip(i)+":53", false, pool(1, func(int) string { return "10.244.1.2:8080" }))
		},
		"endpoints": func(i int) *model.Port {
			return ported(model.KindClusterIP, vip(i)+":53", false, pool(100, func(n int) string { return fmt.Sprintf("10.244.%d.%d:8080", 10+i%200, 1+n) }))
		},
	} {
		on(t, hnsemu.WS2019, func(r *rig) {
			r.begin()
			r.slow()
			for i := range 300 {
				p := hostile(i)
				p.ID.Service = model.ServiceName{Namespace: "a-hostile", Name: fmt.Sprint(i)}
				for n := range p.Frontends[0].On[0].Pool.Endpoints {
					e := &p.Frontends[0].On[0].Pool.Endpoints[n]
					e.Local = e.Addr.Addr() == netip.MustParseAddr("10.244.1.2")
				}
				r.backend.Update([]model.Delta{{New: p}})
			}
			r.set("web", "10.97.0.10", "10.244.1.2 10.244.2.2")
			r.set("kube-dns", "10.97.0.11", "10.244.1.3")
			start := time.Now()
			r.backend.Sync(r.Context())
			r.serves("10.97.0.10", "10.244.1.2 10.244.2.2")
			r.serves("10.97.0.11", "10.244.1.3")
			if took := time.Since(start); took > 4*time.Second {
				r.Errorf("%s: the first Commit took %s", name, took)
			}
			r.emu.Wait(false)
		})
	}
}

// restartSlowly is a second process on that node: reading takes minutes, changes
// nothing, and is no reason to be restarted.
func restartSlowly(r *rig) {
	r.Helper()
	r.restart()
	e := r.run()
	begun := time.Now()
	feed(e)
	for !e.Status().Adopted {
		time.Sleep(5 * time.Second)
		h := question.HealthOf(e.Status(), 20*time.Second, nil)
		if !h.Alive() || !strings.Contains(strings.Join(h.Reasons, "; "), "reading back the data plane") && !e.Status().Adopted {
			r.Fatalf("after %s of reading: alive %t, %v", time.Since(begun), h.Alive(), h.Reasons)
		}
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		if _, err := e.Snapshot(ctx); err != nil {
			r.Fatalf("after %s of reading there is no status: %v", time.Since(begun), err)
		}
		cancel()
		if time.Since(begun) > time.Hour {
			r.Fatalf("after an hour %+v", e.Status())
		}
	}
	if err := e.Status().Err; err != nil {
		r.Error(err)
	}
	r.Logf("a restart reads for %s", time.Since(begun))
}
