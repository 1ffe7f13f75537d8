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
	why   model.Reason
	of    subject
	fixed bool   // nobody can allow it
	by    string // the process
}

// subject is what of an address is rejected.
type subject uint8

const (
	wholeAddress subject = iota
	addressPort          // that port of it
	ownPort              // its port, which this node uses itself
	inUse                // its port, on which a process listens
	unchecked            // its port: nobody can tell whether a process listens
	nodePort
)

// problem describes a rejection.
func (no rejection) problem(svc *model.Service, a Address) model.Problem {
	ip := a.At.Addr()
	p := model.Problem{Object: "Service " + svc.Name.String(), Where: svc.Where, Why: no.why, Detail: fmt.Sprintf("%s %s", a.Kind, ip)}
	switch {
	case no.of == addressPort:
		p.Detail = fmt.Sprintf("%s %s", a.Kind, a.At)
	case no.of == ownPort:
		p.Detail += fmt.Sprintf(", whose port %d this node uses itself", a.At.Port())
	case no.of == inUse:
		p.Detail += fmt.Sprintf(", on whose port %d (%s) this node's own %s listens", a.At.Port(), a.Proto, no.by)
	case no.of == unchecked:
		p.Detail += fmt.Sprintf(", on whose port %d (%s) a process of this node may listen", a.At.Port(), a.Proto)
	case no.of == nodePort && no.why == model.WhyAPIServer:
		p.Detail = fmt.Sprintf("node port %d, which the API server uses on this node", a.At.Port())
	case no.of == nodePort:
		p.Detail = fmt.Sprintf("node port %d, which this node uses itself", a.At.Port())
	}
	if !no.fixed {
		p.Fix = AllowFix(ip)
	}
	return p
}

// AllowFix states how an administrator allows an external IP.
func AllowFix(ip netip.Addr) string {
	return fmt.Sprintf("to allow it, add %s to --%s", netip.PrefixFrom(ip, ip.BitLen()), config.AllowedExternalIPs)
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
		return rejection{why: model.WhyNodeAddress, fixed: true}
	case svc.Name != APIService && hasAPIServer(host, ip):
		return rejection{why: model.WhyAPIServer, fixed: true}
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
		return rejection{why: model.WhyAPIServer, of: addressPort, fixed: true}
	case contains(g.Allowed, ip):
		return rejection{}
	case external && g.AllowedOnly:
		return rejection{why: model.WhyNotAllowed}
	case external && mine:
		return rejectOwn(host, a)
	case isFixed(host, ip) && a.Proto == model.TCP && slices.Contains(g.ProtectedPorts, a.At.Port()):
		return rejection{why: model.WhyNodeAddress, of: ownPort}
	case external && hasAPIServer(host, ip):
		return rejection{why: model.WhyAPIServer}
	case contains(host.ServiceCIDRs, ip):
		return rejection{why: model.WhyServiceRange}
	case contains(g.Pods, ip):
		return rejection{why: model.WhyPodRange}
	}
	return rejection{}
}

// rejectOwn judges external IPs that are this node's own addresses, which is how clusters without a
// load balancer publish Services. One gets a port that is none of the node's and that no process
// listens on. Other nodes leave the address to this one.
func rejectOwn(host *model.Host, a Address) rejection {
	g := &host.Guard
	switch {
	case forPods(host, a.At.Addr()):
		return rejection{why: model.WhyNodeAddress}
	case a.Proto == model.TCP && ownRole(g, a.At.Port()):
		return rejection{why: model.WhyNodeAddress, of: ownPort}
	}
	if g.Listeners == nil {
		return rejection{why: model.WhyNodeAddress, of: unchecked}
	}
	if l, is := g.Listeners.Find(a.Proto, a.At); is {
		return rejection{why: model.WhyNodeAddress, of: inUse, by: l.Name}
	}
	return rejection{}
}

// forPods reports whether an address is in a range of pods or cluster IPs: one of this node's own there is
// their gateway, and nobody else's.
func forPods(host *model.Host, ip netip.Addr) bool {
	return contains(host.ServiceCIDRs, ip) || contains(host.Guard.Pods, ip)
}

// AsksOwn lists the places on this node's own addresses that a Service gets if no process listens
// there.
func AsksOwn(host *model.Host, svc *model.Service) (all []model.Listener) {
	if svc == nil || len(svc.ExternalIPs) == 0 {
		return nil
	}
	for _, a := range Addresses(svc) {
		if asksOwn(host, a) {
			all = append(all, model.Listener{Proto: a.Proto, At: a.At})
		}
	}
	return all
}

func asksOwn(host *model.Host, a Address) bool {
	g, ip := &host.Guard, a.At.Addr()
	return a.Kind == model.KindExternalIP && isOwn(host, ip) && !forPods(host, ip) && !g.AllowedOnly && !contains(g.Allowed, ip) &&
		!(a.Proto == model.TCP && (ownRole(g, a.At.Port()) || containsSorted(g.APIServers, a.At)))
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
		return rejection{why: model.WhyNodeAddress, of: nodePort, fixed: true}
	case slices.ContainsFunc(g.APIServers, answers):
		return rejection{why: model.WhyAPIServer, of: nodePort, fixed: true}
	}
	return rejection{}
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

// Authority ranks the kinds of addresses by who may write the field: those of lower rank come first, whatever
// their age. Cluster IPs and node ports are given out by the API server, load balancer IPs are in a status that
// controllers write, and external IPs are in the spec, which every user of a namespace may write.
func Authority(k model.Kind) int {
	switch k {
	case model.KindLoadBalancer:
		return 1
	case model.KindExternalIP:
		return 2
	}
	return 0
}

// Yields reports whether an address gives way to other namespaces' load balancer IPs, whatever the port, and
// endpoints, and to other nodes' addresses: an external IP that is not allowed.
func Yields(host *model.Host, a Address) bool {
	return a.Kind == model.KindExternalIP && !contains(host.Guard.Allowed, a.At.Addr())
}

// YieldsNodePort reports whether a node port answers on an address, so that external and load balancer IPs with
// its number give way to it.
func YieldsNodePort(host *model.Host, ip netip.Addr) bool {
	return isOwn(host, ip) && host.NodePorts.Contains(ip)
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
		return reject(old, svc, a) != reject(now, svc, a) || asksOwn(old, a) != asksOwn(now, a) || Yields(old, a) != Yields(now, a) ||
			YieldsNodePort(old, a.At.Addr()) != YieldsNodePort(now, a.At.Addr())
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
