// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"encoding/json"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/watch/gateway"
)

// FuzzConvert feeds any JSON to all converters. They must not panic, and what
// they let through must keep the promises of the model.
func FuzzConvert(f *testing.F) {
	for _, s := range []string{
		`{}`, `null`,
		`{"metadata":{"name":"web","namespace":"default"},"spec":{"type":"LoadBalancer","clusterIP":"10.96.0.1","ports":[{"port":80,"nodePort":30080}],
		"loadBalancerSourceRanges":["10.0.0.0/8"],"sessionAffinity":"ClientIP","externalIPs":["1.2.3.4","::ffff:1.2.3.4"]},
		"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.1","ipMode":"VIP"}]}}}`,
		`{"metadata":{"labels":{"kubernetes.io/service-name":"web"}},"addressType":"IPv4","ports":[{},{"port":8080}],
		"endpoints":[{"addresses":["10.0.0.1"],"conditions":{},"hints":{"forZones":[{"name":"a"}]}},{}]}`,
		`{"metadata":{"name":"n","labels":{"topology.kubernetes.io/zone":"a"}},"spec":{"podCIDRs":["10.0.0.0/24"]},
		"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}`,
		`{"metadata":{"name":"split","namespace":"a"},"spec":{"parentRefs":[{"group":"","kind":"Service","name":"web","port":80,"sectionName":"http"},{"name":"gw"}],
		"rules":[{"backendRefs":[{"name":"v1","port":80,"weight":80},{"name":"v2","namespace":"b","port":0,"weight":-1},{"group":"x","kind":"y"}]},{}]},"status":{"parents":[]}}`,
		`{"metadata":{"name":"g","namespace":"a"},"spec":{"from":[{"group":"gateway.networking.k8s.io","kind":"UDPRoute","namespace":"b"}],"to":[{"group":"","kind":"Service","name":"x"},{"kind":"Service"}]}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var s corev1.Service
		if json.Unmarshal(data, &s) == nil {
			fuzzService(t, &s)
		}
		var e discoveryv1.EndpointSlice
		if json.Unmarshal(data, &e) == nil {
			fuzzSlice(t, &e)
		}
		var n corev1.Node
		if json.Unmarshal(data, &n) == nil {
			if node, problems := Node(&n); node == nil || len(problems) > model.MaxProblems {
				t.Fatalf("%v, %d problems", node, len(problems))
			}
		}
		var r gateway.TCPRoute
		if json.Unmarshal(data, &r) == nil {
			fuzzRoute(t, &r)
		}
		var g gateway.ReferenceGrant
		if json.Unmarshal(data, &g) == nil {
			if grant, problems := ReferenceGrant(&g); len(problems) > model.MaxProblems || grant != nil && (len(grant.From) > maxGrants || len(grant.To) > maxGrants) {
				t.Fatalf("%+v, %d problems", grant, len(problems))
			}
		}
	})
}

func fuzzService(t *testing.T, s *corev1.Service) {
	svc, problems := Service(s)
	if len(problems) > model.MaxProblems {
		t.Fatalf("%d problems", len(problems))
	}
	if svc == nil {
		return
	}
	if len(svc.ClusterIPs) == 0 {
		t.Fatal("served without a cluster IP")
	}
	for _, list := range [][]netip.Addr{svc.ClusterIPs, svc.ExternalIPs, svc.LoadBalancerIPs} {
		for _, a := range list {
			vip(t, a)
		}
	}
	for _, p := range svc.SourceRanges {
		if p != p.Masked() || p.Addr().Is4In6() {
			t.Fatalf("source range %s", p)
		}
	}
	for _, p := range svc.Ports {
		if p.Port == 0 || !portName(p.Name) || p.Proto.String() == "unknown" {
			t.Fatalf("port %+v", p)
		}
	}
}

func fuzzRoute(t *testing.T, o *gateway.TCPRoute) {
	r, problems := route(model.TCP, &o.Route)
	if len(problems) > model.MaxProblems {
		t.Fatalf("%d problems", len(problems))
	}
	if r == nil {
		return
	}
	if len(r.Parents) == 0 || len(r.Parents) > maxParents || len(r.Backends) > maxBackends {
		t.Fatalf("%d parents, %d backends", len(r.Parents), len(r.Backends))
	}
	for _, b := range r.Backends {
		if b.Port == 0 || b.Weight > largestShare || !portName(b.Service.Name) || b.Service.Name == "" {
			t.Fatalf("backend %+v", b)
		}
	}
}

func fuzzSlice(t *testing.T, e *discoveryv1.EndpointSlice) {
	slice, problems := Slice(e)
	if len(problems) > model.MaxProblems {
		t.Fatalf("%d problems", len(problems))
	}
	if slice == nil {
		return
	}
	for _, p := range slice.Endpoints {
		if vip(t, p.Addr); int(slice.Family) != (p.Addr.BitLen()-32)/96 {
			t.Fatalf("%s in a slice of %s", p.Addr, slice.Family)
		}
	}
}

func vip(t *testing.T, a netip.Addr) {
	if !a.IsValid() || a.Is4In6() || a.Zone() != "" || a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast() {
		t.Fatalf("address %s was let through", a)
	}
}
