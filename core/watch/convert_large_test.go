// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Objects as large as the API server takes them are converted in time that is
// linear in their size: ten times the size takes ten times as long, and would take a
// hundred times as long if it were quadratic.
func TestLargeObjects(t *testing.T) {
	const n, most = 100_000, 40
	small, large := conversions(n/10), conversions(n)
	for name := range large {
		ratio := 0.0
		for range 5 { // a busy machine: one quiet moment is enough
			if ratio = float64(took(t, name, n, large[name])) / float64(took(t, name, n/10, small[name])); ratio <= most {
				break
			}
		}
		if ratio > most {
			t.Errorf("%s: ten times as many take %.0f times as long", name, ratio)
		}
	}
}

// took is how long a conversion takes, which must give n.
func took(t *testing.T, name string, n int, convert func() int) time.Duration {
	t.Helper()
	start := time.Now()
	if got := convert(); got != n {
		t.Errorf("%s: %d of %d are there", name, got, n)
	}
	return time.Since(start)
}

// conversions are conversions of objects with n of something, which return how many
// they have kept.
func conversions(n int) map[string]func() int {
	var ips, cidrs []string
	var ingress []corev1.LoadBalancerIngress
	var addresses []corev1.NodeAddress
	for i, a := 0, netip.MustParseAddr("198.18.0.0"); i < n; i, a = i+1, a.Next() {
		ips = append(ips, a.String())
		cidrs = append(cidrs, a.String()+"/32")
		ingress = append(ingress, corev1.LoadBalancerIngress{IP: a.String()})
		addresses = append(addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	service := func(change func(*corev1.Service)) func() int {
		s := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.1"}}
		change(s)
		return func() int {
			m, _ := Service(s)
			return len(m.ExternalIPs) + len(m.SourceRanges) + len(m.LoadBalancerIPs)
		}
	}
	return map[string]func() int{
		"external IPs":      service(func(s *corev1.Service) { s.Spec.ExternalIPs = ips }),
		"source ranges":     service(func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = cidrs }),
		"load balancer IPs": service(func(s *corev1.Service) { s.Status.LoadBalancer.Ingress = ingress }),
		"node addresses": func() int {
			m, _ := Node(&corev1.Node{Status: corev1.NodeStatus{Addresses: addresses}})
			return len(m.IPs)
		},
		"slice ports": func() int {
			s := sliceFor("web")
			for i := range n {
				name, number := fmt.Sprint("p", i), int32(i%65535+1)
				s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Port: &number})
			}
			m, _ := Slice(s)
			return len(m.Ports)
		},
	}
}

// Hints are looked through for each endpoint and each port: there are no more than
// the API server admits.
func TestHintsAreBounded(t *testing.T) {
	e := discoveryv1.Endpoint{Addresses: []string{"10.0.0.1"}, Hints: &discoveryv1.EndpointHints{}}
	for i := range 1000 {
		e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: fmt.Sprint("zone-", i)})
		e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: fmt.Sprint("node-", i)})
	}
	s := sliceFor("web")
	s.Endpoints = []discoveryv1.Endpoint{e}
	m, problems := Slice(s)
	expect(t, problems, "Invalid: endpoints[0].hints: 1000 (more than 8, the rest is ignored)")
	if h := m.Endpoints[0].Hints; len(h.Zones) != maxHints || len(h.Nodes) != maxHints {
		t.Errorf("%d zones, %d nodes", len(h.Zones), len(h.Nodes))
	}
}

func sliceFor(service string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
	s.Labels = map[string]string{discoveryv1.LabelServiceName: service}
	return s
}
