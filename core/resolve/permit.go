// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
)

// rejection states why a Service does not get an address; the zero value is none.
type rejection struct {
	why   model.Reason
	of    subject
	fixed bool   // no setting can allow it
	by    string // the process
}

// subject is what of an address is rejected.
type subject uint8

const (
	wholeAddress subject = iota
	addressPort          // that port of it
	ownPort              // a port of it that this node uses itself
	inUse                // its port, on which a process listens
	unchecked            // it is unknown whether a process listens on its port
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
		p.Detail += fmt.Sprintf("; this node uses port %d itself", a.At.Port())
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
	case model.Contains(g.Allowed, ip):
		return rejection{}
	case external && g.AllowedOnly:
		return rejection{why: model.WhyNotAllowed}
	case external && mine:
		return rejectOwn(host, a)
	case isFixed(host, ip) && a.Proto == model.TCP && slices.Contains(g.ProtectedPorts, a.At.Port()):
		return rejection{why: model.WhyNodeAddress, of: ownPort}
	case external && hasAPIServer(host, ip):
		return rejection{why: model.WhyAPIServer}
	case model.Contains(host.ServiceCIDRs, ip):
		return rejection{why: model.WhyServiceRange}
	case model.Contains(g.Pods, ip):
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
	return model.Contains(host.ServiceCIDRs, ip) || model.Contains(host.Guard.Pods, ip)
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
	return a.Kind == model.KindExternalIP && isOwn(host, ip) && !forPods(host, ip) && !g.AllowedOnly && !model.Contains(g.Allowed, ip) &&
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

// isFixed reports whether an address belongs to this node permanently, and to no other at another
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

// Yields reports whether an address gives way to other namespaces' load balancer IPs, whatever the port, and to other
// nodes' addresses: an external IP that is not allowed.
func Yields(host *model.Host, a Address) bool {
	return a.Kind == model.KindExternalIP && !model.Contains(host.Guard.Allowed, a.At.Addr())
}

// YieldsToEndpoints reports whether an address gives way to other namespaces' endpoints: one that Yields, but not on
// this node's own addresses. There the pods on the host's network listen, and ports on which no process listens
// are free.
func YieldsToEndpoints(host *model.Host, a Address) bool {
	return Yields(host, a) && !isOwn(host, a.At.Addr())
}

// YieldsNodePort reports whether a node port answers on an address, so that external and load balancer IPs with
// its number give way to it.
func YieldsNodePort(host *model.Host, ip netip.Addr) bool {
	return isOwn(host, ip) && host.NodePorts.Contains(ip)
}

// Affects reports whether a Service may come out differently on two hosts with the
// SamePorts, for what differs in their policy.
func Affects(old, now *model.Host, svc *model.Service, from []*model.Slice) bool {
	differs := func(a Address) bool {
		return reject(old, svc, a) != reject(now, svc, a) || asksOwn(old, a) != asksOwn(now, a) || Yields(old, a) != Yields(now, a) ||
			YieldsToEndpoints(old, a) != YieldsToEndpoints(now, a) || YieldsNodePort(old, a.At.Addr()) != YieldsNodePort(now, a.At.Addr())
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

// guard collects what Services must leave alone on this machine.
func guard(c *config.Config, node *model.Node, ips []netip.Addr, machine model.Machine) model.Guard {
	g := model.Guard{
		NodeIPs:        ownAddresses(ips, machine.Addresses),
		FixedIPs:       ownAddresses(ips, onNetworks(machine.Addresses)),
		Broadcasts:     broadcasts(machine),
		ProtectedPorts: ownPorts(c),
		Allowed:        model.Canonical(slices.Clone(c.ExternalIPs.Allowed)), AllowedOnly: c.ExternalIPs.Only,
		Listeners: machine.Listeners,
	}
	g.APIServers = slices.SortedFunc(slices.Values(machine.APIServers), netip.AddrPort.Compare)
	g.APIServers = slices.Compact(g.APIServers)
	g.Pods = podRanges(c, node, ips)
	return g
}

// ownAddresses are those of the Node object and those that the machine has.
func ownAddresses(ips []netip.Addr, machine []model.LocalAddress) []netip.Addr {
	all := slices.Clone(ips)
	for _, a := range machine {
		all = append(all, a.Prefix.Addr())
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// onNetworks are the addresses that the machine is on a network with. Without one,
// of an IPv4 or IPv6 address alone (/32, /128), they are what kube-vip and keepalived
// bind to one node at a time, unless the Node object has them.
func onNetworks(all []model.LocalAddress) []model.LocalAddress {
	return slices.DeleteFunc(slices.Clone(all), func(a model.LocalAddress) bool { return a.Prefix.IsSingleIP() })
}

// broadcasts are the last addresses of the IPv4 networks that the machine is in.
// Those of one or two addresses have none (RFC 3021).
func broadcasts(machine model.Machine) (all []netip.Addr) {
	for _, a := range machine.Addresses {
		if p := a.Prefix; p.Addr().Is4() && p.Bits() < p.Addr().BitLen()-1 {
			all = append(all, model.Last(p))
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// The TCP ports that no node can spare: to lose one locks the administrator out,
// or takes the node from the cluster.
const (
	sshPort     = 22
	kubeletPort = 10250
)

// ownPorts are those and the ones of this proxy's servers.
func ownPorts(c *config.Config) []uint16 {
	all := []uint16{sshPort, kubeletPort}
	for _, address := range []string{c.HealthAddress, c.HTTPAddress} {
		if _, port, err := net.SplitHostPort(address); err == nil {
			if n, err := strconv.ParseUint(port, 10, 16); err == nil && n != 0 {
				all = append(all, uint16(n))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// rolePorts are TCP ports that nodes of a control plane, and the network plugins of all nodes, are known
// to listen on. A Service does not get them on the node's own addresses while their programs restart,
// either.
var rolePorts = [...]struct{ first, last uint16 }{
	{53, 53}, {179, 179}, // DNS, BGP
	{2379, 2381}, {6443, 6443}, // etcd, the API server
	{10248, 10260}, // kubelet, kube-proxy, the controllers
}

// ownRole reports whether a TCP port is one of the node's own, whether or not it is in use.
func ownRole(g *model.Guard, port uint16) bool {
	for _, r := range rolePorts {
		if r.first <= port && port <= r.last {
			return true
		}
	}
	return slices.Contains(g.ProtectedPorts, port)
}

// podRanges are the ranges in which there are pods alone. Clouds whose pods share
// a network with nodes and load balancers give that as the cluster's or the node's:
// a range counts when the Node object's addresses of its family are known and outside.
// Those of bridges and tunnels, which no Node object has, are among the pods'.
func podRanges(c *config.Config, node *model.Node, ips []netip.Addr) (ranges []netip.Prefix) {
	for _, p := range slices.Concat(node.PodCIDRs, c.ClusterCIDRs) {
		same := func(a netip.Addr) bool { return model.FamilyOf(a) == model.FamilyOf(p.Addr()) }
		if slices.ContainsFunc(ips, same) && !slices.ContainsFunc(ips, p.Contains) {
			ranges = append(ranges, p)
		}
	}
	return model.Canonical(ranges)
}

// reserved is class E (RFC 1112, section 4). Most of the world drops it, but there
// are clouds that have pods or Services in it.
var reserved = netip.PrefixFrom(netip.AddrFrom4([4]byte{240, 0, 0, 0}), 4)

func usesReserved(c *config.Config, node *model.Node, h *model.Host) bool {
	inside := func(p netip.Prefix) bool { return reserved.Overlaps(p) && p.Bits() >= reserved.Bits() }
	return slices.ContainsFunc(slices.Concat(node.PodCIDRs, h.ServiceCIDRs, c.ClusterCIDRs), inside) ||
		slices.ContainsFunc(h.Guard.NodeIPs, reserved.Contains)
}

func containsSorted[A interface{ Compare(A) int }](sorted []A, a A) bool {
	_, found := slices.BinarySearchFunc(sorted, a, A.Compare)
	return found
}

// The limits of one Service. Users who may write Services and EndpointSlices in one
// namespace must not be able to delay the changes of all others, so the cost of
// one Service is bounded. The goal is 50 ms of one core from its objects to those of
// a data plane (core/track to core/ledger); core/test/conformance logs what each mode
// takes. core/manual/pages/limits.md lists the limits.
const (
	// MaxAddresses is how many cluster, external and load balancer IPs a Service
	// may have. One object of the API has room for 100,000; load balancers give a
	// Service a few, and external IPs are one a node at most.
	MaxAddresses = 1_000

	// MaxPorts is how many ports a Service may have. One object of the API has room
	// for some 20,000; there are 2,768 node ports by default.
	MaxPorts = 2_500

	// MaxFrontends is how many frontends those make: each port on each address, and on
	// the node port of each IP family. A frontend takes a data plane up to seven
	// objects (nftables), so these cost about as much as MaxEntries entries.
	MaxFrontends = 2_500

	// MaxEntries is how many entries of a data plane may follow from a Service:
	// each endpoint of a port for each of its frontends, and each source range for
	// each restricted one. It lets a Service have 10,000 endpoints on its cluster
	// IP, node port and load balancer IP, and one with a cluster IP alone 30,000:
	// Kubernetes is tested with 5,000 nodes, and with Services far smaller.
	MaxEntries = 30_000

	// MaxAPIServers is how many endpoints of default/kubernetes are protected from
	// other Services.
	MaxAPIServers = 1_000

	// maxAPIServerEntries is how many entries of its EndpointSlices, each endpoint with
	// each port, are looked at for them: many may be the same.
	maxAPIServerEntries = 30_000

	// maxSlicePorts is how many ports the EndpointSlices of a Service may list together,
	// those of its routes' backends included. Slices beyond it are ignored.
	maxSlicePorts = 30_000
)

// Entries estimates how many entries of a data plane a Service has with so many endpoints: at most MaxEntries.
func Entries(svc *model.Service, endpoints int) int {
	if svc == nil {
		return 0
	}
	if endpoints > 0 && svc.Choice.Scheduler == model.Maglev {
		endpoints = max(endpoints, model.MaglevSlots)
	}
	entries := min(frontendsOf(svc), MaxFrontends) * (perFrontend + min(endpoints, MaxEntries))
	return min(entries+rangesOf(svc), MaxEntries)
}

// perFrontend is how many entries a frontend is worth besides its endpoints.
const perFrontend = MaxEntries / MaxFrontends

// EntriesOf estimates how many entries of a data plane some ports have: the slots of each pool that a frontend leads
// to, which of a weighted pool, and of maglev, are many more than its endpoints.
func EntriesOf(ports ...*model.Port) (n int) {
	for _, p := range ports {
		for i := range p.Frontends {
			f := &p.Frontends[i]
			n += perFrontend + len(f.Allow)
			for origin, act := range f.On {
				if act.Pool != nil && !slices.ContainsFunc(f.On[:origin], func(o model.Action) bool { return o.Pool == act.Pool }) {
					n += act.Pool.Size()
				}
			}
		}
	}
	return n
}

// rangesOf is how many source ranges the frontends of a Service have together.
func rangesOf(svc *model.Service) int {
	if !svc.Restricted {
		return 0
	}
	return len(svc.LoadBalancerIPs) * len(svc.Ports) * len(svc.SourceRanges)
}

// Excess reports which limit a Service exceeds by itself, whatever its endpoints. It
// is rejected as a whole.
func Excess(svc *model.Service) (p model.Problem, over bool) {
	all := len(svc.ClusterIPs) + len(svc.ExternalIPs) + len(svc.LoadBalancerIPs)
	for _, l := range []struct {
		what       string
		found, max int
	}{
		{"addresses", all, MaxAddresses},
		{"ports", len(svc.Ports), MaxPorts},
		{"frontends (ports x addresses)", frontendsOf(svc), MaxFrontends},
		{"source ranges of frontends (ports x load balancer IPs x loadBalancerSourceRanges)", rangesOf(svc), MaxEntries},
	} {
		if l.found > l.max {
			return model.Problem{
				Object: "Service " + svc.Name.String(), Where: svc.Where, Why: model.WhyTooLarge,
				Detail: fmt.Sprintf("%d %s, limit %d", l.found, l.what, l.max),
			}, true
		}
	}
	return model.Problem{}, false
}

// frontendsOf is how many a Service asks for.
func frontendsOf(svc *model.Service) (n int) {
	for _, family := range model.Families() {
		addresses := addressCount(svc, family)
		for _, port := range svc.Ports {
			n += frontendCount(svc, port, addresses)
		}
	}
	return n
}

// addressCount is how many addresses a Service has in a family, those that are
// rejected and those of two kinds included.
func addressCount(svc *model.Service, family model.Family) (n int) {
	if !serves(svc, family) {
		return 0
	}
	for _, list := range [][]netip.Addr{svc.ClusterIPs, svc.ExternalIPs, svc.LoadBalancerIPs} {
		for _, ip := range list {
			if model.FamilyOf(ip) == family {
				n++
			}
		}
	}
	return n
}

// frontendCount is how many frontends a port has in a family where the Service has
// that many addresses.
func frontendCount(svc *model.Service, port model.ServicePort, addresses int) int {
	if addresses > 0 && hasNodePort(svc, port) {
		return addresses + 1
	}
	return addresses
}
