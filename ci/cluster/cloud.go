// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// cleanupFinalizer keeps a Service until its load balancer is gone.
const cleanupFinalizer = "service.kubernetes.io/load-balancer-cleanup"

// cloud is what a cloud keeps about load balancers: each is an address of each family of its Service
// that routes of the control machine lead to nodes.
type cloud struct {
	nodes []node
	used  map[netip.Addr]string // addresses, and the Services that have them
}

// balanced reports whether a Service is to have a load balancer of this cloud.
func balanced(s *corev1.Service) bool {
	return s.DeletionTimestamp == nil && s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.LoadBalancerClass == nil
}

// addresses are those of a Service's load balancer. It keeps what it has; a new one gets what is asked for,
// or the next that is free.
func (c *cloud) addresses(s *corev1.Service) (all []netip.Addr, err error) {
	for _, f := range s.Spec.IPFamilies {
		net := balancerNets[0]
		if f == corev1.IPv6Protocol {
			net = balancerNets[1]
		}
		a, err := c.address(key(s), net, s.Spec.LoadBalancerIP)
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

func (c *cloud) address(key string, net netip.Prefix, wanted string) (netip.Addr, error) {
	free := netip.Addr{}
	for i := 253; i > 0; i-- {
		switch a := nth(net, i); c.used[a] {
		case key:
			return a, nil
		case "":
			free = a
		}
	}
	if a, err := netip.ParseAddr(wanted); err == nil && net.Contains(a) && c.used[a] == "" {
		free = a
	}
	if !free.IsValid() {
		return free, fmt.Errorf("no address of %s is free", net)
	}
	c.used[free] = key
	return free, nil
}

// forget frees the addresses of Services that are not among the keys, and returns them.
func (c *cloud) forget(keep map[string]bool) (gone []netip.Addr) {
	for a, key := range c.used {
		if !keep[key] {
			gone = append(gone, a)
			delete(c.used, a)
		}
	}
	return gone
}

// route is the command of ip(8) for an address: over the nodes that are healthy, from the client's
// address, or to nowhere.
func (c *cloud) route(a netip.Addr, healthy []node) string {
	family, client := 0, nth(balancerNets[0], 254)
	if a.Is6() {
		family, client = 1, nth(balancerNets[1], 254)
	}
	hops := ""
	for _, n := range healthy {
		if family < len(n.Addr) {
			hops += fmt.Sprintf(" nexthop via %s", n.Addr[family])
		}
	}
	if hops == "" {
		return fmt.Sprintf("route replace %s dev nowhere", netip.PrefixFrom(a, a.BitLen()))
	}
	return fmt.Sprintf("route replace %s src %s%s", netip.PrefixFrom(a, a.BitLen()), client, hops)
}

// status is what the Service says of its load balancer.
func status(all []netip.Addr) (s corev1.LoadBalancerStatus) {
	mode := corev1.LoadBalancerIPModeVIP
	for _, a := range all {
		s.Ingress = append(s.Ingress, corev1.LoadBalancerIngress{IP: a.String(), IPMode: &mode})
	}
	return s
}

// sameStatus compares the addresses.
func sameStatus(a, b corev1.LoadBalancerStatus) bool {
	return slices.EqualFunc(a.Ingress, b.Ingress, func(x, y corev1.LoadBalancerIngress) bool { return x.IP == y.IP })
}

// checked reports whether the load balancer asks nodes for their health: with the policy Local.
func checked(s *corev1.Service) bool {
	return s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && s.Spec.HealthCheckNodePort != 0
}

// key tells a Service from a later one of the same name.
func key(s *corev1.Service) string { return fmt.Sprintf("%s/%s %s", s.Namespace, s.Name, s.UID) }
