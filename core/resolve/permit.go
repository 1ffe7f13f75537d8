// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
)

// rejection states why a Service does not get an address; the zero value is none.
type rejection struct {
	why    model.Reason
	detail string
	fix    string // by an administrator; empty where nobody can allow it
}

// Permits reports whether a Service can have an address on a host at all, whatever
// other Services have.
func Permits(host *model.Host, svc *model.Service, a Address) bool {
	return reject(host, svc, a) == rejection{}
}

func reject(host *model.Host, svc *model.Service, a Address) rejection {
	switch a.Kind {
	case model.KindClusterIP:
		return rejectClusterIP(host, svc, a)
	case model.KindExternalIP, model.KindLoadBalancer:
		return rejectExternal(host, a)
	case model.KindNodePort:
		return rejectNodePort(host, a)
	}
	return rejection{}
}

// rejectClusterIP judges cluster IPs, which the API server gives out of ranges of
// its own and manifests may make up. They reject all other ports: an address of
// the node or of the API server would be cut off.
func rejectClusterIP(host *model.Host, svc *model.Service, a Address) rejection {
	ip := a.At.Addr()
	switch {
	case isOwn(host, ip):
		return rejection{why: model.WhyNodeAddress, detail: fmt.Sprintf("%s %s", a.Kind, ip)}
	case svc.Name != APIService && hasAPIServer(host, ip):
		return rejection{why: model.WhyAPIServer, detail: fmt.Sprintf("%s %s", a.Kind, ip)}
	}
	return rejection{}
}

// rejectExternal judges external and load balancer IPs: see the package's
// documentation for the rules and their reasons.
func rejectExternal(host *model.Host, a Address) rejection {
	g, ip := &host.Guard, a.At.Addr()
	external := a.Kind == model.KindExternalIP
	switch mine := isOwn(host, ip); {
	case a.Proto == model.TCP && containsSorted(g.APIServers, a.At):
		return rejection{why: model.WhyAPIServer, detail: fmt.Sprintf("%s %s", a.Kind, a.At)}
	case contains(g.Allowed, ip):
		return rejection{}
	case external && g.AllowedOnly:
		return unlessAllowed(model.WhyNotAllowed, a, "")
	case external && mine:
		return unlessAllowed(model.WhyNodeAddress, a, "")
	case isFixed(host, ip) && a.Proto == model.TCP && slices.Contains(g.ProtectedPorts, a.At.Port()):
		return unlessAllowed(model.WhyNodeAddress, a, fmt.Sprintf(", whose port %d this node uses itself", a.At.Port()))
	case external && hasAPIServer(host, ip):
		return unlessAllowed(model.WhyAPIServer, a, "")
	case contains(host.ServiceCIDRs, ip):
		return unlessAllowed(model.WhyServiceRange, a, "")
	case contains(g.Pods, ip):
		return unlessAllowed(model.WhyPodRange, a, "")
	}
	return rejection{}
}

// rejectNodePort judges node ports, which take a port of this node's addresses:
// --service-node-port-range may have any.
func rejectNodePort(host *model.Host, a Address) rejection {
	g, port := &host.Guard, a.At.Port()
	answers := func(api netip.AddrPort) bool {
		ip := api.Addr()
		return api.Port() == port && ip.Is4() == a.At.Addr().Is4() && isOwn(host, ip) && host.NodePorts.Contains(ip)
	}
	switch {
	case a.Proto != model.TCP:
	case slices.Contains(g.ProtectedPorts, port):
		return rejection{why: model.WhyNodeAddress, detail: fmt.Sprintf("node port %d, which this node uses itself", port)}
	case slices.ContainsFunc(g.APIServers, answers):
		return rejection{why: model.WhyAPIServer, detail: fmt.Sprintf("node port %d, which the API server uses on this node", port)}
	}
	return rejection{}
}

// unlessAllowed is a rejection that an administrator can lift.
func unlessAllowed(why model.Reason, a Address, more string) rejection {
	ip := a.At.Addr()
	return rejection{
		why: why, detail: fmt.Sprintf("%s %s%s", a.Kind, ip, more),
		fix: fmt.Sprintf("to allow it, add %s to --%s", netip.PrefixFrom(ip, ip.BitLen()), config.AllowedExternalIPs),
	}
}

// isOwn reports whether an address is one of this node's.
func isOwn(host *model.Host, ip netip.Addr) bool {
	return slices.Contains(host.IPs, ip) || containsSorted(host.Guard.NodeIPs, ip)
}

// isFixed reports whether an address is one of this node's, and of no other at another
// time.
func isFixed(host *model.Host, ip netip.Addr) bool {
	return slices.Contains(host.IPs, ip) || containsSorted(host.Guard.FixedIPs, ip)
}

// APIService is the Service of the API server itself: its endpoints are API
// servers.
var APIService = model.ServiceName{Namespace: "default", Name: "kubernetes"}

// hasAPIServer reports whether an address is one that the API server answers on.
func hasAPIServer(host *model.Host, ip netip.Addr) bool {
	all := host.Guard.APIServers
	i, _ := slices.BinarySearchFunc(all, netip.AddrPortFrom(ip, 0), netip.AddrPort.Compare)
	return i < len(all) && all[i].Addr() == ip
}

// WithAPIServers returns a host that knows the endpoints of APIService, too, as
// API servers, but no more than MaxAPIServers of them.
func WithAPIServers(host *model.Host, from []*model.Slice) *model.Host {
	found, _ := apiServers(from)
	if len(found) == 0 {
		return host
	}
	all := slices.Concat(host.Guard.APIServers, found)
	slices.SortFunc(all, netip.AddrPort.Compare)
	more := *host
	more.Guard.APIServers = slices.Compact(all)
	return &more
}

// apiServers returns the first endpoints of slices, each once, and whether there are
// more than it looks at.
func apiServers(from []*model.Slice) (all []netip.AddrPort, more bool) {
	var once model.Unique[netip.AddrPort]
	looked := 0
	for _, s := range from {
		for _, port := range s.Ports {
			for i := range s.Endpoints {
				if looked == maxAPIServerEntries {
					return once.List(), true
				}
				looked++
				if once.Add(netip.AddrPortFrom(s.Endpoints[i].Addr, port.Port)) && len(once.List()) > MaxAPIServers {
					return once.List()[:MaxAPIServers], true
				}
			}
		}
	}
	return once.List(), false
}

// OutrankedBy returns the addresses that come before an external or load balancer IP,
// if another Service has them: any port of a cluster IP, with port 0, since all ports
// that the Service does not have are rejected; and on this node's own addresses the node
// port of the same number.
func OutrankedBy(host *model.Host, a Address) []Address {
	if a.Kind != model.KindExternalIP && a.Kind != model.KindLoadBalancer {
		return nil
	}
	above := []Address{{Kind: model.KindClusterIP, At: netip.AddrPortFrom(a.At.Addr(), 0)}}
	if isOwn(host, a.At.Addr()) && host.NodePorts.Contains(a.At.Addr()) {
		above = append(above, NodePortOf(a))
	}
	return above
}

// NodePortOf is the node port with an address's number.
func NodePortOf(a Address) Address {
	any := model.FamilyOf(a.At.Addr()).Unspecified()
	return Address{Kind: model.KindNodePort, Proto: a.Proto, At: netip.AddrPortFrom(any, a.At.Port())}
}

// Affects reports whether a Service may come out differently on two hosts with the
// SamePorts, for what differs in their policy.
func Affects(old, now *model.Host, svc *model.Service, from []*model.Slice) bool {
	differs := func(a Address) bool {
		return reject(old, svc, a) != reject(now, svc, a) || len(OutrankedBy(old, a)) != len(OutrankedBy(now, a))
	}
	for _, ip := range svc.ClusterIPs { // whatever the port
		if differs(Address{Kind: model.KindClusterIP, At: netip.AddrPortFrom(ip, 0)}) {
			return true
		}
	}
	others := len(svc.ExternalIPs)+len(svc.LoadBalancerIPs) > 0 || svc.Type != model.ClusterIP
	if others && slices.ContainsFunc(Addresses(svc), differs) {
		return true
	}
	if old.Guard.Reserved == now.Guard.Reserved && slices.Equal(old.Guard.Broadcasts, now.Guard.Broadcasts) {
		return false
	}
	for _, s := range from {
		for i := range s.Endpoints {
			if ip := s.Endpoints[i].Addr; unusableEndpoint(old, ip) != unusableEndpoint(now, ip) {
				return true
			}
		}
	}
	return false
}

// unusableEndpoint reports why nothing can be an endpoint at an address, empty if something
// can. Addresses that are never a destination, on any host, are not in slices any more.
func unusableEndpoint(host *model.Host, ip netip.Addr) string {
	switch {
	case reserved.Contains(ip) && !host.Guard.Reserved:
		return "in 240.0.0.0/4, which is reserved"
	case containsSorted(host.Guard.Broadcasts, ip):
		return "the broadcast address of a network of this node"
	}
	return ""
}
