// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// left leaves a remote endpoint as kube-proxy makes them: without a name.
func (r *rig) left(addr, mac, node string) string {
	e := hns.Endpoint{
		HostComputeNetwork: r.network, Flags: hns.FlagRemote, MacAddress: mac, IpConfigurations: []hns.IpConfig{{IpAddress: addr}},
	}
	if node != "" {
		e.Policies = []hns.Policy{{Type: hns.PolicyProvider, Settings: []byte(`{"ProviderAddress":"` + node + `"}`)}}
	}
	return r.emu.Leave(e)
}

// at returns the only endpoint with an address.
func (r *rig) at(addr string) (e hns.Endpoint) {
	r.Helper()
	n := 0
	for _, o := range r.emu.Endpoints() {
		if o.IpConfigurations[0].IpAddress == addr {
			e = o
			n++
		}
	}
	if n != 1 {
		r.Fatalf("%d endpoints have %s", n, addr)
	}
	return e
}

// What kube-proxy has left on an overlay, under the rules of HNS of which each may
// be: two endpoints with one address or not, deletion of what is in use or not.
// Right endpoints stay unchanged, wrong ones are replaced.
func TestKubeProxyOnAnOverlay(t *testing.T) {
	for _, b := range []hnsemu.Behaviour{{}, {Twins: true}, {DeleteInUse: true}, {Exists: 0x803b002f}} {
		onNetwork(t, hnsemu.WS2022, hns.TypeOverlay, func(r *rig) {
			r.emu.Behave(b)
			good := r.left("10.96.0.10", hostMAC, "192.0.2.1")
			r.left("10.96.0.11", "00-15-5d-00-00-99", "192.0.2.99") // the node had another address
			pod := r.left("10.244.2.2", "02-11-0a-f4-02-02", "192.0.2.2")
			moved := r.left("10.244.2.3", "02-11-0a-f4-02-03", "192.0.2.99")
			r.emu.AddBalancer(hns.LoadBalancer{
				HostComputeEndpoints: []string{pod, moved}, FrontendVIPs: []string{"10.96.0.11"}, SourceVIP: "10.244.1.254", Flags: hns.FlagDSR,
				PortMappings: []hns.PortMapping{{Protocol: 6, InternalPort: 8080, ExternalPort: 80}},
			}, false)
			web(r)
			r.settle()
			served(r)
			if r.at("10.96.0.10").ID != good || r.at("10.244.2.2").ID != pod {
				r.Error("correct objects were made again")
			}
			if e := r.at("10.96.0.11"); e.MacAddress != hostMAC || !strings.Contains(provider(e), "192.0.2.1") {
				r.Errorf("the cluster IP leads to %s behind %s", e.MacAddress, provider(e))
			}
			if e := r.at("10.244.2.3"); !strings.Contains(provider(e), "192.0.2.2") {
				r.Errorf("the pod is behind %s", provider(e))
			}
			r.differs()
			if drift := r.audit(); drift != 0 {
				r.Errorf("drift: %d", drift)
			}
			r.resume()
		})
	}
}

// A node comes back with another address, and HNS allows neither two endpoints with
// one address nor the deletion of one in use.
func TestAProviderAddressChanges(t *testing.T) {
	for _, v := range []hns.Version{hnsemu.WS2019, hnsemu.WS2025} {
		onNetwork(t, v, hns.TypeOverlay, func(r *rig) {
			web(r)
			r.emu.SetPolicies(r.network, remoteSubnet("10.244.2.0/24", "192.0.2.99"))
			if drift := r.audit(); drift == 0 {
				r.Fatal("not noticed")
			}
			r.settle()
			for _, a := range []string{"10.244.2.2", "10.244.2.3"} {
				if e := r.at(a); !strings.Contains(provider(e), "192.0.2.99") {
					r.Errorf("%s is behind %s", a, provider(e))
				}
			}
			served(r)
			if drift := r.audit(); drift != 0 {
				r.Errorf("drift: %d", drift)
			}
		})
	}
}

// A pod of this node gets an address that has a remote endpoint still: kube-proxy's,
// one of ours that no Service needs any more, or one that is in use. Beside it the
// pod has no network (Windows-Containers#631), whether a Service has the pod or
// not.
func TestADuplicateIsDeletedAtOnce(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		displaced := r.displaced()
		r.left("10.244.1.50", "02-11-0a-f4-01-32", "") // there before us
		r.emu.AddPod(r.network, "10.244.1.50")
		web(r)
		if got := r.remotes(); got != "10.244.2.2 10.244.2.3" {
			r.Errorf("after the start: %s", got)
		}
		r.set("api", "10.96.0.11", "10.244.2.2") // 10.244.2.3 is not needed any more, but lingers
		r.sync()
		r.emu.AddPod(r.network, "10.244.2.3")
		r.left("10.244.1.51", "02-11-0a-f4-01-33", "")
		r.emu.AddPod(r.network, "10.244.1.51")
		r.audit()
		if got := r.remotes(); got != "10.244.2.2" {
			r.Errorf("after a look: %s", got)
		}
		pod := r.emu.AddPod(r.network, "10.244.2.2") // in use, and the slices say nothing yet
		r.audit()
		if got := r.remotes(); got != "" {
			r.Errorf("in use: %s", got)
		}
		if lb := r.balancer("10.96.0.11"); lb.HostComputeEndpoints[0] != pod {
			r.Errorf("balanced over %v", lb.HostComputeEndpoints)
		}
		if n := displaced(); n != 2 { // those of kube-proxy
			r.Errorf("%d endpoints of other programs are logged", n)
		}
		r.settle()
	})
}

// displaced restarts the proxy with a log, and returns how often that says that an endpoint of
// another program was deleted.
func (r *rig) displaced() func() int {
	var log bytes.Buffer
	r.settings.Log = slog.New(slog.NewTextHandler(&log, nil))
	r.restart()
	return func() int { return strings.Count(log.String(), "deleted conflicting endpoint of another program") }
}

// A Service's slice names the pod before any look: kube-proxy's remote endpoint
// is deleted with that change.
func TestADuplicateOfKubeProxyGoesWithTheChange(t *testing.T) {
	on(t, hnsemu.WS2019, func(r *rig) {
		r.left("10.244.1.50", "02-11-0a-f4-01-32", "")
		web(r)
		r.emu.AddPod(r.network, "10.244.1.50")
		r.set("web", "10.96.0.10", "10.244.1.50")
		r.sync()
		if got := r.remotes(); strings.Contains(got, "10.244.1.50") {
			r.Errorf("remote endpoints: %s", got)
		}
	})
}

// HNS is restarted: handles from before are answered with errors of RPC. One call
// may fail with it, not every one from now on.
func TestHandlesFromBeforeARestart(t *testing.T) {
	for _, code := range []hns.Code{0x6ba, 0x6be, 0x6bf, 6} {
		on(t, hnsemu.WS2025, func(r *rig) {
			r.emu.Behave(hnsemu.Behaviour{StaleHandle: code})
			web(r)
			r.emu.Down(true)
			r.emu.Down(false)
			r.set("web", "10.96.0.10", "10.244.2.9")
			r.backend.Sync(r.Context())
			r.settle()
			r.serves("10.96.0.10", "10.244.2.9")
		})
	}
}

// preserve-destination is for health checks that must not be answered for another
// node: the node port has local endpoints only, and probes keep their destination,
// as winkernel does it.
func TestPreserveDestination(t *testing.T) {
	o := hns.Newest()
	o.Probes = hns.Probes{Forward: true, Port: 10256}
	lb := public("web", "203.0.113.1:80", "10.244.2.1:8080", 31000)
	lb.Frontends[0].On[model.FromOutside].Pool.Endpoints = []model.Endpoint{
		{Addr: lb.Frontends[0].On[0].Pool.Endpoints[0].Addr}, {Addr: pool(1, func(int) string { return "10.244.1.2:8080" }).Endpoints[0].Addr, Local: true},
	}
	node31 := lb.Frontends[0]
	node31.Kind, node31.At = model.KindNodePort, pool(1, func(int) string { return "0.0.0.0:31080" }).Endpoints[0].Addr
	lb.Frontends = append(lb.Frontends, node31)
	lb.PreserveDestination = true
	got := map[uint16]*hns.Balancer{}
	gaps := hns.NewCompiler(o).Port(node, lb, func(k hns.Key, v hns.Value) {
		if v.Balancer != nil {
			got[k.Port] = v.Balancer
		}
	})
	for port, keeps := range map[uint16]bool{80: true, 31080: false, 31000: true} {
		b := got[port]
		if b == nil || len(b.Endpoints) != 1 || !b.Endpoints[0].Local || b.PreserveDestination != keeps {
			t.Errorf("port %d: %+v", port, b)
		}
	}
	if len(gaps) == 0 {
		t.Error("left out without a report")
	}
}

// A Service has the address of a pod of this node. Whatever HNS does about that, the
// pod keeps its endpoint.
func TestAPodIsNotReplacedByAVirtualIP(t *testing.T) {
	for _, b := range []hnsemu.Behaviour{{}, {Twins: true}} {
		onNetwork(t, hnsemu.WS2022, hns.TypeOverlay, func(r *rig) {
			r.emu.Behave(b)
			web(r)
			pod := r.at("10.244.1.2").ID
			r.set("thief", "10.244.1.2", "10.244.2.2")
			_, _ = r.backend.Sync(r.Context()) // it may be refused
			for _, e := range r.emu.Endpoints() {
				if e.ID == pod {
					return
				}
			}
			r.Errorf("Twins %t: the pod has lost its endpoint", b.Twins)
		})
	}
}
