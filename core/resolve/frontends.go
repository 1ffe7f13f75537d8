// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// Address is an address that a Service answers on.
type Address struct {
	Kind  model.Kind
	Proto model.Proto
	At    netip.AddrPort // the unspecified address for KindNodePort
}

// Addresses lists every address a Service asks for, in all families it serves:
// each combination of protocol, address and port once.
func Addresses(svc *model.Service) []Address {
	if svc.Type == model.ClusterIP && len(svc.ClusterIPs) == 1 && len(svc.ExternalIPs) == 0 && len(svc.Ports) == 1 { // as of most: nothing comes up twice
		port := svc.Ports[0]
		return []Address{{model.KindClusterIP, port.Proto, netip.AddrPortFrom(svc.ClusterIPs[0], port.Port)}}
	}
	var all []Address
	var once seen
	for _, family := range model.Families() {
		if !serves(svc, family) {
			continue
		}
		on := vips(svc, family)
		for _, port := range svc.Ports {
			for _, a := range addressesOf(svc, port, family, on) {
				if once.first(a) {
					all = append(all, a)
				}
			}
		}
	}
	return all
}

// seen remembers which addresses a Service has used, whatever their kind.
type seen struct{ all model.Unique[Address] }

func (s *seen) first(a Address) bool {
	a.Kind = 0
	return s.all.Add(a)
}

// vip is an address of a Service, whatever the port.
type vip struct {
	kind model.Kind
	ip   netip.Addr
}

// vips lists the addresses of a Service in one family. One that comes up twice
// keeps the first kind, but for an external IP that is also the load balancer's: it
// is the latter.
func vips(svc *model.Service, family model.Family) (all []vip) {
	var once model.Unique[netip.Addr]
	add := func(kind model.Kind, ips []netip.Addr) {
		for _, ip := range ips {
			if model.FamilyOf(ip) == family && once.Add(ip) {
				all = append(all, vip{kind, ip})
			}
		}
	}
	add(model.KindClusterIP, svc.ClusterIPs)
	add(model.KindExternalIP, externalIPs(svc))
	if svc.Type == model.LoadBalancer {
		add(model.KindLoadBalancer, svc.LoadBalancerIPs)
	}
	return all
}

// addressesOf lists the addresses of one port in one family.
func addressesOf(svc *model.Service, port model.ServicePort, family model.Family, on []vip) []Address {
	all := make([]Address, 0, len(on)+1)
	for _, v := range on {
		all = append(all, Address{v.kind, port.Proto, netip.AddrPortFrom(v.ip, port.Port)})
	}
	if hasNodePort(svc, port) {
		all = append(all, Address{model.KindNodePort, port.Proto, netip.AddrPortFrom(family.Unspecified(), port.NodePort)})
	}
	return all
}

// AnyNodePort reports whether one of the Services has a node port.
func AnyNodePort(all []*model.Service) bool {
	return slices.ContainsFunc(all, func(s *model.Service) bool {
		return slices.ContainsFunc(s.Ports, func(p model.ServicePort) bool { return hasNodePort(s, p) })
	})
}

func hasNodePort(svc *model.Service, port model.ServicePort) bool {
	return svc.Type != model.ClusterIP && port.NodePort != 0
}

// externalIPs are those that are not the load balancer's as well.
func externalIPs(svc *model.Service) []netip.Addr {
	if svc.Type != model.LoadBalancer || len(svc.LoadBalancerIPs) == 0 || len(svc.ExternalIPs) == 0 {
		return svc.ExternalIPs
	}
	balanced := make(map[netip.Addr]struct{}, len(svc.LoadBalancerIPs))
	for _, ip := range svc.LoadBalancerIPs {
		balanced[ip] = struct{}{}
	}
	return slices.DeleteFunc(slices.Clone(svc.ExternalIPs), func(ip netip.Addr) bool {
		_, both := balanced[ip]
		return both
	})
}

// restricted reports whether loadBalancerSourceRanges apply to an address: to each
// that is a load balancer IP, whatever else it is.
func restricted(svc *model.Service, a Address) bool {
	if !svc.Restricted || svc.Type != model.LoadBalancer {
		return false
	}
	return a.Kind == model.KindLoadBalancer || a.Kind == model.KindClusterIP && slices.Contains(svc.LoadBalancerIPs, a.At.Addr())
}

// serves reports whether a Service has a cluster IP of a family. Without one it
// does not exist in that family, whatever other addresses it has.
func serves(svc *model.Service, family model.Family) bool {
	for _, ip := range svc.ClusterIPs {
		if model.FamilyOf(ip) == family {
			return true
		}
	}
	return false
}
