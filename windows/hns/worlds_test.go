// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/test/conformance"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// cni is what a CNI plug-in and the scripts around it leave in the HNS of a node, by their own
// sources, before a proxy starts. In the texts <ip> is a pod's address.
type cni struct {
	name    string
	sources []string // repository, file and what is in it
	network string   // of the pods, by the name that kube-proxy is given
	kind    string   // its type
	others  []hns.Network
	routes  bool           // the network knows which pods are behind which node
	own     []hns.Endpoint // the plug-in's, in the network of the pods; without an id
	pod     hns.Endpoint   // one of a pod; the address is filled in
	flags   config.Windows // that its kube-proxy is started with, but for the network's name; DSR is Tandem's default
	finds   string         // what is reported of that HNS where there is DSR; empty for nothing
	refuses string         // why there can be no Services in this HNS; empty where there can
	four    string         // where its sources give pods addresses of IPv4 only; empty if they have both
}

// The networks that come with containers, and those that are made for the virtual switch only.
var (
	nat      = hns.Network{Name: "nat", Type: "NAT"}
	external = func(name, kind string) hns.Network { return hns.Network{Name: name, Type: kind} }
)

func policy(kind, settings string) hns.Policy {
	return hns.Policy{Type: kind, Settings: json.RawMessage(settings)}
}

func at(ip string) []hns.IpConfig { return []hns.IpConfig{{IpAddress: ip, PrefixLength: 24}} }

// cnis are the plug-ins that Windows nodes have.
func cnis() []cni {
	const pods = `{"Exceptions":["10.244.0.0/16","10.96.0.0/16"]}`
	loopback := policy("OutBoundNAT", `{"Destinations":["<ip>"]}`)
	toServices, toNode := policy("SDNRoute", `{"DestinationPrefix":"10.96.0.0/16","NeedEncap":true}`), policy("SDNRoute", `{"DestinationPrefix":"192.0.2.1/32","NeedEncap":true}`)
	onNode := policy(hns.PolicyProvider, `{"ProviderAddress":"192.0.2.1"}`)
	return []cni{
		{
			name: "Azure CNI", network: "azure", kind: hns.TypeL2Bridge,
			sources: []string{
				"Azure/azure-container-networking network/network_windows.go: the network's type is l2bridge, its policy NetAdapterName",
				"Azure/azure-container-networking network/endpoint_windows.go: ConstructEndpointID: pods' endpoints are CONTAINER-INTERFACE",
				"Azure/AgentBaker New-ExternalHnsNetwork: the network ext, before the CNI plug-in makes that of the pods; azurecnifunc.ps1: LoopbackDSR",
			},
			others: []hns.Network{nat, external("ext", hns.TypeL2Bridge)},
			pod:    hns.Endpoint{Name: "1f2e3d4c-eth0", MacAddress: "00-15-5D-3B-00-01", Policies: []hns.Policy{policy("OutBoundNAT", pods), toServices, loopback}},
			flags:  config.Windows{DSR: true},
			four:   "Azure/azure-container-networking network/network_windows.go: without a second subnet",
		},
		{
			name: "Azure CNI, dual", network: "azure", kind: hns.TypeL2Bridge,
			sources: []string{
				"Azure/azure-container-networking network/endpoint_windows.go: configureHcnEndpoint gives an endpoint all addresses; network_windows.go: subnets of both families, addIPv6DefaultRoute for nodes with dual-stack overlay",
				"kubernetes.io, Windows networking: dual-stack needs l2bridge, and Server 2022",
			},
			others: []hns.Network{nat, external("ext", hns.TypeL2Bridge)},
			pod:    hns.Endpoint{Name: "1f2e3d4c-eth0", MacAddress: "00-15-5D-3B-00-01", Policies: []hns.Policy{policy("OutBoundNAT", pods), toServices, loopback}},
			flags:  config.Windows{DSR: true},
		},
		{
			name: "Calico BGP", network: "Calico", kind: hns.TypeL2Bridge,
			sources: []string{
				"projectcalico/calico cni-plugin/pkg/dataplane/windows/dataplane_windows.go: EnsureNetworkExists, CreateAndAttachHostEP (NAME_ep has the second address, on this node), createAndAttachContainerEP",
				"projectcalico/calico kube-proxy-service.ps1: it waits for the network Calico; DSR where the system has it; calico.psm1: the network External",
			},
			others: []hns.Network{nat, external("External", hns.TypeL2Bridge)},
			own:    []hns.Endpoint{{Name: "Calico_ep", MacAddress: "00-15-5D-3B-00-02", IpConfigurations: at("10.244.1.254")}},
			pod:    hns.Endpoint{Name: "1f2e3d4c_Calico", MacAddress: "00-15-5D-3B-00-01", Policies: []hns.Policy{policy("OutBoundNAT", pods), toServices, toNode, loopback}},
			flags:  config.Windows{DSR: true},
			four:   "projectcalico/calico cni-plugin/pkg/dataplane/windows/dataplane_windows.go: DoNetworking takes the first address of the result",
		},
		{
			name: "Calico VXLAN", network: "Calico", kind: hns.TypeOverlay, routes: true,
			sources: []string{
				"projectcalico/calico cni-plugin/pkg/dataplane/windows/dataplane_windows.go: ensureVxlanNetworkExists (HostRoute), createAndAttachVxlanHostEP: NAME_ep is a remote endpoint of the second address, behind this node",
				"projectcalico/calico kube-proxy-service.ps1: its address is kube-proxy's --source-vip",
			},
			others: []hns.Network{nat, external("External", hns.TypeOverlay)},
			own:    []hns.Endpoint{{Name: "Calico_ep", Flags: hns.FlagRemote, MacAddress: "02-11-c0-00-02-01", IpConfigurations: at("10.244.1.254"), Policies: []hns.Policy{onNode}}},
			pod:    hns.Endpoint{Name: "1f2e3d4c_Calico", MacAddress: "0E-2A-0a-f4-01-02", Policies: []hns.Policy{policy("OutBoundNAT", pods), onNode, loopback}},
			flags:  config.Windows{DSR: true, SourceVIP: "10.244.1.254"},
			four:   "projectcalico/calico cni-plugin/pkg/dataplane/windows/dataplane_windows.go: EnsureVXLANTunnelAddr has one of IPv4 only",
		},
		{
			name: "flannel host-gw", network: "cbr0", kind: hns.TypeL2Bridge,
			sources: []string{
				"flannel-io/flannel pkg/backend/hostgw/hostgw_windows.go: the network cbr0, and cbr0_ep with the second address, attached to the host",
				"containernetworking/plugins pkg/hns: endpoints are CONTAINER_NETWORK, policies as configured, loopbackDSR among them",
				"microsoft/SDN Kubernetes/flannel/l2bridge/start.ps1: the network External",
			},
			others: []hns.Network{nat, external("External", hns.TypeL2Bridge)},
			own:    []hns.Endpoint{{Name: "cbr0_ep", MacAddress: "00-15-5D-3B-00-02", IpConfigurations: at("10.244.1.254")}},
			pod:    hns.Endpoint{Name: "1f2e3d4c_cbr0", MacAddress: "00-15-5D-3B-00-01", Policies: []hns.Policy{policy("OutBoundNAT", pods), toServices, toNode, loopback}},
			flags:  config.Windows{DSR: true},
			four:   "flannel-io/flannel pkg/backend/hostgw/hostgw_windows.go: one subnet, of ParseIP4; containernetworking/plugins pkg/hns: GenerateHcnEndpoint has one address",
		},
		{
			name: "flannel VXLAN", network: "flannel.4096", kind: hns.TypeOverlay, routes: true,
			sources: []string{
				"flannel-io/flannel pkg/backend/vxlan/device_windows.go: the network, not persistent, with HostRoute and its own ProviderAddress",
				"containernetworking/plugins plugins/main/windows/win-overlay/win-overlay_windows.go: pods' MAC addresses are 0E-2A and the address; ProviderAddress",
				"kubernetes-sigs/sig-windows-tools hostprocess/flannel: the network External is an overlay; the source VIP is reserved with host-local, without an endpoint",
			},
			others: []hns.Network{nat, external("External", hns.TypeOverlay)},
			pod:    hns.Endpoint{Name: "1f2e3d4c_flannel.4096", MacAddress: "0E-2A-0a-f4-01-02", Policies: []hns.Policy{policy("OutBoundNAT", pods), toServices, onNode, loopback}},
			flags:  config.Windows{DSR: true, SourceVIP: "10.244.1.254"},
			four:   "containernetworking/plugins pkg/hns: GenerateHcnEndpoint has one address",
		},
		{
			name: "Antrea", network: "antrea-hnsnetwork", kind: "Transparent",
			sources: []string{
				"antrea-io/antrea pkg/agent/util/net_windows.go: the network's type is Transparent, with the extension of Open vSwitch",
			},
			others:  []hns.Network{nat},
			pod:     hns.Endpoint{Name: "1f2e3d4c", MacAddress: "00-15-5D-3B-00-01"},
			refuses: "Transparent",
			four:    "it has no Services in HNS",
		},
		{
			name: "OVN-Kubernetes", network: "OVNKubernetesHybridOverlayNetwork", kind: hns.TypeOverlay, routes: true,
			sources: []string{
				"ovn-org/ovn-kubernetes go-controller/hybrid-overlay/pkg/controller/node_windows.go: the networks, RemoteSubnetRoute for each node, HostRoute",
				"openshift/windows-machine-config-operator pkg/nodeconfig/payload: VIPEndpoint, whose address is kube-proxy's sourceVip; enableDSR; win-overlay's policies, without loopbackDSR",
			},
			finds:  "3 pods cannot reach themselves through a Service",
			others: []hns.Network{nat, {Name: "BaseOVNKubernetesHybridOverlayNetwork", Type: hns.TypeOverlay, Policies: []hns.Policy{policy("AutomaticDNS", `{}`)}}},
			own:    []hns.Endpoint{{Name: "VIPEndpoint", MacAddress: "00-15-5D-3B-00-02", IpConfigurations: at("10.244.1.254")}},
			pod:    hns.Endpoint{Name: "1f2e3d4c_OVNKubernetesHybridOverlayNetwork", MacAddress: "0E-2A-0a-f4-01-02", Policies: []hns.Policy{policy("OutBoundNAT", pods), toServices, onNode}},
			flags:  config.Windows{DSR: true, SourceVIP: "10.244.1.254"},
			four:   "containernetworking/plugins pkg/hns: GenerateHcnEndpoint has one address",
		},
	}
}

// build makes such a node, before and after the network of the pods is there.
func (c cni) build(e *hnsemu.Emulator) {
	for _, n := range c.others {
		e.AddNetwork(n.Name, n.Type, n.Policies...)
	}
	var policies []hns.Policy
	if c.kind == hns.TypeOverlay {
		policies = append(policies, policy("HostRoute", `{}`), policy(hns.PolicyProvider, `{"ProviderAddress":"192.0.2.1"}`))
	}
	if c.routes {
		policies = append(policies, overlay()...)
	}
	network := e.AddNetwork(c.network, c.kind, policies...)
	for _, p := range c.own {
		p.HostComputeNetwork = network
		e.AddEndpoint(p)
	}
	for i, ip := range []string{"10.244.1.2", "10.244.1.3", "10.244.1.10"} {
		p := c.pod
		if p.HostComputeNetwork, p.IpConfigurations = network, at(ip); c.four == "" {
			p.IpConfigurations = append(p.IpConfigurations, hns.IpConfig{IpAddress: "fd00:10:244:1::" + strings.TrimPrefix(ip, "10.244.1."), PrefixLength: 64})
		}
		p.Name = fmt.Sprintf("%d%s", i, p.Name)
		p.MacAddress = fmt.Sprintf("%s%d", p.MacAddress[:len(p.MacAddress)-1], i)
		p.Policies = nil
		for _, o := range c.pod.Policies {
			p.Policies = append(p.Policies, policy(o.Type, strings.ReplaceAll(string(o.Settings), "<ip>", ip)))
		}
		e.AddEndpoint(p)
	}
}

// worldServices are the Services of each node, and their packets.
const worldServices = `# One Service of each kind.
-- services.yaml --
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec: {clusterIP: 10.96.0.53, ports: [{name: dns, protocol: UDP, port: 53, targetPort: 5353}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
ports: [{name: dns, protocol: UDP, port: 5353}]
endpoints: [{addresses: [10.244.2.3], nodeName: node-2}, {addresses: [10.244.3.3], nodeName: node-3}]
---
apiVersion: v1
kind: Service
metadata: {name: shop, namespace: default}
spec: {type: NodePort, clusterIP: 10.96.0.10, ports: [{name: http, port: 80, targetPort: 8080, nodePort: 30080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: shop, namespace: default, labels: {kubernetes.io/service-name: shop}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.244.1.2], nodeName: node-1}, {addresses: [10.244.2.2], nodeName: node-2}]
---
apiVersion: v1
kind: Service
metadata: {name: front, namespace: default}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, clusterIP: 10.96.0.11, ports: [{name: http, port: 443, targetPort: 8443, nodePort: 30443}]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.1}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: front, namespace: default, labels: {kubernetes.io/service-name: front}}
addressType: IPv4
ports: [{name: http, port: 8443}]
endpoints: [{addresses: [10.244.1.3], nodeName: node-1}, {addresses: [10.244.3.2], nodeName: node-3}]
---
apiVersion: v1
kind: Service
metadata: {name: kubernetes, namespace: default}
spec: {clusterIP: 10.96.0.1, ports: [{name: https, port: 443, targetPort: 6443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kubernetes, namespace: default, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IPv4
ports: [{name: https, port: 6443}]
endpoints: [{addresses: [192.0.2.2]}]
-- packets --
pod     udp 10.96.0.53:53     -> 10.244.2.3:5353 10.244.3.3:5353
host    udp 10.96.0.53:53     -> 10.244.2.3:5353 10.244.3.3:5353 snat
pod     tcp 10.96.0.10:80     -> 10.244.1.2:8080 10.244.2.2:8080
outside tcp 192.0.2.1:30080   -> 10.244.1.2:8080 10.244.2.2:8080 snat
pod     tcp 10.96.0.11:443    -> 10.244.1.3:8443 10.244.3.2:8443
outside tcp 203.0.113.1:443   -> 10.244.1.3:8443
outside tcp 192.0.2.1:30443   -> 10.244.1.3:8443
pod     tcp 10.96.0.1:443     -> 192.0.2.2:6443
`

// both is a Service of both families, and its packets.
const both = `
apiVersion: v1
kind: Service
metadata: {name: both, namespace: default}
spec: {type: LoadBalancer, ipFamilyPolicy: RequireDualStack, ipFamilies: [IPv4, IPv6], clusterIP: 10.96.0.12, clusterIPs: [10.96.0.12, "fd00:10:96::12"], ports: [{name: http, port: 80, targetPort: 8080, nodePort: 30081}]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.2}, {ip: "2001:db8:cafe::2"}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: both-4, namespace: default, labels: {kubernetes.io/service-name: both}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.244.1.2], nodeName: node-1}, {addresses: [10.244.2.2], nodeName: node-2}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: both-6, namespace: default, labels: {kubernetes.io/service-name: both}}
addressType: IPv6
ports: [{name: http, port: 8080}]
endpoints: [{addresses: ["fd00:10:244:1::2"], nodeName: node-1}, {addresses: ["fd00:10:244:2::2"], nodeName: node-2}]
-- packets --
pod     tcp 10.96.0.12:80     -> 10.244.1.2:8080 10.244.2.2:8080
pod     tcp [fd00:10:96::12]:80 -> [fd00:10:244:1::2]:8080 [fd00:10:244:2::2]:8080
host    tcp [fd00:10:96::12]:80 -> [fd00:10:244:1::2]:8080 [fd00:10:244:2::2]:8080 snat
outside tcp [2001:db8:cafe::2]:80 -> [fd00:10:244:1::2]:8080 [fd00:10:244:2::2]:8080 snat
outside tcp [2001:db8::1]:30081 -> [fd00:10:244:1::2]:8080 [fd00:10:244:2::2]:8080 snat
`

// services are the Services of a node with this plug-in, and their packets.
func (c cni) services() string {
	if c.four != "" {
		return worldServices
	}
	return strings.Replace(worldServices, "-- packets --\n", "---"+both, 1)
}

// on reports whether there are nodes with this plug-in and this HNS.
func (c cni) on(v hns.Version) bool { return c.four != "" || v.Features().DualStack }

// worldRun is one CNI plug-in on one version of HNS, with an emulator for each life of the node.
type worldRun struct {
	cni     cni
	version hns.Version
	faults  hnsemu.Behaviour
	journal string
	emu     *hnsemu.Emulator
	backend dataplane.Backend
	host    *model.Host
	ports   []*model.Port
	packets []oracle.Packet
	dsr     bool
}

func newWorldRun(t *testing.T, c cni, v hns.Version, faults hnsemu.Behaviour) *worldRun {
	s, err := conformance.Parse("worlds_test.go", []byte(c.services()))
	if err != nil {
		t.Fatal(err)
	}
	w := &worldRun{cni: c, version: v, faults: faults, journal: filepath.Join(t.TempDir(), "journal"), emu: hnsemu.New(v), dsr: c.flags.DSR && v.Features().DSR}
	w.host, w.ports, err = conformance.NewWorld(s)(s.Steps[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range s.Steps[0].Packets {
		for _, wrong := range conformance.JudgeRow(s, w.host, w.ports, row) {
			t.Errorf("%s: %s", row, wrong)
		}
		w.packets = append(w.packets, s.Oracle(w.host, row))
	}
	w.emu.Behave(faults)
	c.build(w.emu)
	if w.judge() == nil {
		t.Error("the packets arrive before anything runs")
	}
	return w
}

func (w *worldRun) settings() hns.Settings {
	s := settings()
	s.Journal = w.journal
	return s
}

// start is a new process, that programs everything.
func (w *worldRun) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c := config.Config{Windows: w.cni.flags}
	c.Windows.NetworkName, c.Windows.RootHNSEndpoint = w.cni.network, "cbr0" // its default
	w.emu.Forget()
	b, err := hns.Open(ctx, w.emu.Client(), &c, w.settings())
	if err != nil {
		return err
	}
	w.backend = b
	if err := b.Adopt(ctx); err != nil {
		return err
	}
	b.SetHost(w.host)
	var all []model.Delta
	for _, p := range w.ports {
		all = append(all, model.Delta{New: p})
	}
	b.Update(all)
	for range 3 { // what waits for another object is done in the next
		if _, err = b.Sync(ctx); err == nil {
			break
		}
	}
	if found := b.Health().Problems; w.cni.finds == "" && len(found) > 0 || w.cni.finds != "" && w.dsr && (len(found) != 1 || !strings.HasPrefix(found[0].Detail, w.cni.finds)) {
		err = errors.Join(err, fmt.Errorf("reported: %v", found))
	}
	return errors.Join(err, w.judge())
}

// judge sends the packets, and looks for damage to others' objects.
func (w *worldRun) judge() (err error) {
	decide := hnsemu.VFP{HNS: w.emu, Host: w.host, Uplink: conformance.Uplink}.Decide
	for _, p := range w.packets {
		want, got := oracle.Decide(w.host, w.ports, p), decide(p)
		if d := conformance.Diff(want, got); d != "" && excuse(w.dsr)(w.host, p, want, got) == "" {
			err = errors.Join(err, fmt.Errorf("%s: %s", conformance.Show(p), d))
		}
	}
	return errors.Join(err, w.emu.Check())
}

// end is the end of a process.
func (w *worldRun) end() error {
	if w.backend == nil {
		return nil
	}
	defer func() { w.backend = nil }()
	return w.backend.Close()
}

// restart is another process. Nothing has to be written.
func (w *worldRun) restart(ctx context.Context) error {
	err := errors.Join(w.end(), w.start(ctx))
	if n := w.emu.Writes(); n != 0 {
		err = errors.Join(err, fmt.Errorf("%d writes", n))
	}
	return err
}

// cleanup leaves what there was before.
func (w *worldRun) cleanup(ctx context.Context) error {
	err := errors.Join(w.end(), hns.Remove(ctx, w.emu.Client(), w.settings()), w.emu.Check())
	before := hnsemu.New(w.version)
	w.cni.build(before)
	if a, b := len(before.Endpoints()), len(w.emu.Endpoints()); a != b {
		err = errors.Join(err, fmt.Errorf("%d endpoints, %d before", b, a))
	}
	if n := len(w.emu.Balancers()); n != 0 {
		err = errors.Join(err, fmt.Errorf("%d load balancers are left", n))
	}
	return err
}

// takeover is a node on which kube-proxy has run: its load balancers are the same, its endpoints
// have no names, and there is no journal (TestWinkernel). One load balancer is of a Service that
// is gone since.
func (w *worldRun) takeover(ctx context.Context, t *testing.T) error {
	kube := newWorldRun(t, w.cni, w.version, w.faults)
	if err := errors.Join(kube.start(ctx), kube.end()); err != nil {
		return err
	}
	now := newWorldRun(t, w.cni, w.version, w.faults)
	ids := map[string]string{} // in the HNS of now
	there, network := map[string]string{}, ""
	for _, e := range now.emu.Endpoints() {
		there[e.Name], network = e.ID, e.HostComputeNetwork
	}
	for _, e := range kube.emu.Endpoints() {
		if id, ok := there[e.Name]; ok {
			ids[e.ID] = id
			continue
		}
		id := e.ID
		e.Name, e.HostComputeNetwork = "", network
		ids[id] = now.emu.Leave(e)
	}
	for _, lb := range kube.emu.Balancers() {
		for i, id := range lb.HostComputeEndpoints {
			lb.HostComputeEndpoints[i] = ids[id]
		}
		now.emu.AddBalancer(lb, false)
		if lb.FrontendVIPs != nil && lb.FrontendVIPs[0] == "10.96.0.10" {
			lb.FrontendVIPs = []string{"10.96.0.99"}
			now.emu.AddBalancer(lb, true)
		}
	}
	n := len(now.emu.Balancers())
	err := now.start(ctx)
	if got := len(now.emu.Balancers()); got != n {
		err = errors.Join(err, fmt.Errorf("%d load balancers, kube-proxy had %d", got, n))
	}
	if writes := now.emu.Writes(); writes != 0 {
		err = errors.Join(err, fmt.Errorf("%d writes, though all is right", writes))
	}
	return errors.Join(err, now.restart(ctx), now.end())
}

// TestWorlds starts on the nodes that CNI plug-ins make, restarts, cleans up, and takes over from
// kube-proxy, under the rules of HNS of which each may be. The manual has its table.
func TestWorlds(t *testing.T) {
	servers := []struct {
		name    string
		version hns.Version
	}{{"2019", hnsemu.WS2019}, {"2022", hnsemu.WS2022}, {"2025", hnsemu.WS2025}}
	phases := []string{"first start", "restart", "cleanup", "takeover"}
	table := "| CNI plug-in | Network of the pods | Families | Server 2019 | 2022 | 2025 |\n|---|---|---|---|---|---|\n"
	for _, c := range cnis() {
		t.Logf("%s, by:\n%s", c.name, strings.Join(c.sources, "\n"))
		families := "IPv4"
		switch {
		case c.refuses != "":
			families = "none"
		case c.four == "":
			families = "IPv4, IPv6"
		}
		table += fmt.Sprintf("| %s | %s | %s |", c.name, c.kind, families)
		for _, s := range servers {
			if !c.on(s.version) {
				table += " no such node |"
				continue
			}
			result := "pass"
			var wrong []string
			for _, faults := range []hnsemu.Behaviour{{}, {Twins: true}, {DeleteInUse: true}, {DeleteFailsOnce: true, Exists: 0x803b002f}} {
				synctest.Test(t, func(t *testing.T) {
					w := newWorldRun(t, c, s.version, faults)
					for phase, run := range []func(context.Context) error{
						w.start, w.restart, w.cleanup,
						func(ctx context.Context) error { return w.takeover(ctx, t) },
					} {
						err := run(t.Context())
						switch refuses := c.refuses != "" && phases[phase] != "cleanup"; {
						case refuses && err != nil && strings.Contains(err.Error(), c.refuses) && w.emu.Writes() == 0:
							result = "refused"
						case refuses || err != nil:
							wrong = append(wrong, fmt.Sprintf("%s, %+v: %v", phases[phase], faults, err))
						}
					}
				})
			}
			for _, what := range wrong { // a bubble that fails would end the test
				result = "FAIL"
				t.Errorf("%s on Server %s, %s", c.name, s.name, what)
			}
			table += " " + result + " |"
		}
		table += "\n"
	}
	if page, err := os.ReadFile("../../core/manual/pages/modes.md"); err != nil || !strings.Contains(string(page), table) {
		t.Errorf("modes.md has another table of these nodes (%v) than\n%s", err, table)
	}
}

// Without the name of a network the one of the pods is found, and none before it is there: the
// CNI plug-in makes it with the first pod, after networks that exist for the virtual switch.
func TestWorldsWithoutANetworksName(t *testing.T) {
	for _, c := range cnis() {
		n, err := hns.FindNetwork(append(slices.Clone(c.others), hns.Network{Name: c.network, Type: c.kind}), "")
		if before, _ := hns.FindNetwork(c.others, ""); before.Name != "" {
			t.Errorf("%s: %s is taken before the network of the pods is there", c.name, before.Name)
		}
		if c.refuses == "" && (err != nil || n.Name != c.network) || c.refuses != "" && err == nil {
			t.Errorf("%s: %q, %v", c.name, n.Name, err)
		}
	}
}

// On an overlay Calico's endpoint for the source VIP is a remote one: it serves as it is, named
// or not, and stays.
func TestTheSourceVIPOfCalico(t *testing.T) {
	for _, set := range []string{"", "10.244.1.250"} {
		onNetwork(t, hnsemu.WS2022, hns.TypeOverlay, func(r *rig) {
			r.settings.SourceVIP, _ = netip.ParseAddr(set)
			r.emu.AddEndpoint(hns.Endpoint{Name: "Calico_ep", Flags: hns.FlagRemote, HostComputeNetwork: r.network, MacAddress: "02-11-c0-00-02-01", IpConfigurations: at("10.244.1.250")})
			r.restart()
			web(r)
			r.sourced("10.244.1.250")
			if e := r.at("10.244.1.250"); e.Name != "Calico_ep" {
				r.Errorf("the source VIP has %q", e.Name)
			}
			r.audit()
			r.resume()
		})
	}
}
