// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"fmt"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// A Service with two endpoints, one of them on this node: what the policy makes of
// it, and what happens to packets of a pod, of another machine, and to a port that
// the Service does not have.
func Example() {
	host := &model.Host{
		Name: "node-1", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		Pods: model.PodMatch{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}},
	}
	web := &model.Service{
		Name:       model.ServiceName{Namespace: "default", Name: "web"},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports:      []model.ServicePort{{Name: "http", Proto: model.TCP, Port: 80}},
	}
	slice := &model.Slice{
		Name: model.SliceName{Namespace: "default", Name: "web-1"}, Service: "web",
		Ports: []model.SlicePort{{Name: "http", Proto: model.TCP, Port: 8080}},
		Endpoints: []model.SliceEndpoint{
			{Addr: netip.MustParseAddr("10.244.1.2"), Node: "node-1", State: model.Ready | model.Serving},
			{Addr: netip.MustParseAddr("10.244.2.2"), Node: "node-2", State: model.Ready | model.Serving},
		},
	}
	ports := resolve.Service(host, web, []*model.Slice{slice}).Ports
	for _, p := range ports {
		for _, f := range p.Frontends {
			fmt.Printf("%s: %s %s, %d endpoints\n", p.ID, f.Kind, f.At, len(f.On[model.FromPod].Pool.Endpoints))
		}
	}
	show := func(src, iface, dst string) {
		packet := oracle.Packet{Src: netip.MustParseAddr(src), Iface: iface, Proto: model.TCP, Dst: netip.MustParseAddrPort(dst)}
		got := oracle.Decide(host, ports, packet)
		fmt.Printf("%s -> %s: %s (%s)\n", src, dst, got.Fate, got.Why.Text())
		for _, e := range got.Endpoints {
			fmt.Printf("  %s SNAT=%t\n", e.Addr, e.SNAT)
		}
	}
	show("10.244.1.9", "veth0", "10.96.0.10:80")
	show("10.244.1.2", "veth1", "10.96.0.10:80") // an endpoint as client of its own Service
	show("192.0.2.99", "eth0", "10.96.0.10:80")
	show("10.244.1.9", "veth0", "10.96.0.10:81")
	// Output:
	// default/web:http: cluster IP 10.96.0.10:80, 2 endpoints
	// 10.244.1.9 -> 10.96.0.10:80: forward (balanced over ready endpoints of the cluster)
	//   10.244.1.2:8080 SNAT=false
	//   10.244.2.2:8080 SNAT=false
	// 10.244.1.2 -> 10.96.0.10:80: forward (balanced over ready endpoints of the cluster)
	//   10.244.1.2:8080 SNAT=true
	//   10.244.2.2:8080 SNAT=false
	// 192.0.2.99 -> 10.96.0.10:80: forward (balanced over ready endpoints of the cluster)
	//   10.244.1.2:8080 SNAT=true
	//   10.244.2.2:8080 SNAT=true
	// 10.244.1.9 -> 10.96.0.10:81: reject (no such port on this cluster IP: rejected)
}
