// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func balancer(name string, uid types.UID) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
	}}
}

// TestCloud gives load balancers addresses: each its own, the same every time, and free again when the
// Service is gone.
func TestCloud(t *testing.T) {
	c := cloud{used: map[netip.Addr]string{}}
	a, b := balancer("a", "1"), balancer("b", "2")
	first, err := c.addresses(a)
	if err != nil || len(first) != 2 || !first[0].Is4() || !first[1].Is6() {
		t.Fatal(first, err)
	}
	if again, err := c.addresses(a); err != nil || !reflect.DeepEqual(again, first) {
		t.Errorf("at first %v, then %v, %v", first, again, err)
	}
	if other, err := c.addresses(b); err != nil || other[0] == first[0] || other[1] == first[1] {
		t.Errorf("two Services have %v and %v, %v", first, other, err)
	}
	asked := balancer("c", "3")
	asked.Spec.LoadBalancerIP = "192.0.2.77"
	if got, err := c.addresses(asked); err != nil || got[0] != netip.MustParseAddr("192.0.2.77") {
		t.Errorf("asked for 192.0.2.77, got %v, %v", got, err)
	}
	if gone := c.forget(map[string]bool{key(b): true}); len(gone) != 4 || len(c.used) != 2 {
		t.Errorf("gone are %v, used %v", gone, c.used)
	}
}

func TestBalanced(t *testing.T) {
	class, now := "other", metav1.Now()
	for name, change := range map[string]func(*corev1.Service){
		"deleted":            func(s *corev1.Service) { s.DeletionTimestamp = &now },
		"of another type":    func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort },
		"of another cloud's": func(s *corev1.Service) { s.Spec.LoadBalancerClass = &class },
	} {
		s := balancer("a", "1")
		if !balanced(s) {
			t.Error("a load balancer is none")
		}
		if change(s); balanced(s) {
			t.Errorf("one %s has a load balancer", name)
		}
	}
}

func TestRoutes(t *testing.T) {
	p, err := newPlan(shape{Nodes: 2, Zones: 1})
	if err != nil {
		t.Fatal(err)
	}
	c := cloud{nodes: p.Workers}
	for _, r := range []struct {
		to      string
		healthy []node
		want    string
	}{
		{"192.0.2.1", p.Workers, "route replace 192.0.2.1/32 src 192.0.2.254 nexthop via 172.18.0.11 nexthop via 172.18.0.12"},
		{"192.0.2.1", nil, "route replace 192.0.2.1/32 dev nowhere"},
		{"2001:db8:192::1", p.Workers[1:], "route replace 2001:db8:192::1/128 src 2001:db8:192::fe nexthop via fd00:172:18::c"},
	} {
		if got := c.route(netip.MustParseAddr(r.to), r.healthy); got != r.want {
			t.Errorf("route %q, want %q", got, r.want)
		}
	}
	if !sameStatus(status([]netip.Addr{netip.MustParseAddr("192.0.2.1")}), corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}}) {
		t.Error("the same status is another")
	}
}
