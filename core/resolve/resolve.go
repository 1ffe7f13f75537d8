// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// Service resolves a Service with its slices, which must be sorted by name, and the
// routes that have it as a parent, in the order of their precedence. It
// gives one Port for each port and each IP family in which the Service has a
// cluster IP. Pools are in address order; see Reslot. The Service must be within
// the limits (Excess); of endpoints beyond them some are left out.
func Service(host *model.Host, svc *model.Service, from []*model.Slice, routes ...Route) Result {
	var r Result
	r.known = model.IndexPorts(nil)
	r.index = r.indexSlices(host, svc, from, routes)
	if svc.Name == APIService {
		if _, more := apiServers(from); more {
			r.Problem(svc, model.WhyTooLarge, "more than %d endpoints; only these are protected from other Services as API servers", MaxAPIServers)
		}
	}
	for _, family := range model.Families() {
		if !serves(svc, family) {
			continue
		}
		first, on := len(r.Ports), vips(svc, family)
		for _, port := range svc.Ports {
			r.port(host, svc, port, family, on)
		}
		r.setHealth(svc, r.Ports[first:])
	}
	return r
}

func (r *Result) port(host *model.Host, svc *model.Service, port model.ServicePort, family model.Family, on []vip) {
	id := model.PortID{Service: svc.Name, Name: port.Name, Proto: port.Proto, Family: family}
	if r.known.List = r.Ports; r.known.Find(id, len(r.Ports)) != nil {
		r.Problem(svc, model.WhyDuplicateFrontend, "a second port named %q (%s)", port.Name, port.Proto)
		return
	}
	again := r.used.again(svc, port, family)
	addresses := slices.DeleteFunc(appendAddressesOf(make([]Address, 0, len(on)+1), svc, port, family, on), func(a Address) bool {
		return !r.usable(host, svc, a, again)
	})
	r.reportClosed(svc, addresses)
	all := r.endpoints(host, svc, port, family, addresses)
	route := r.index.routes[routedPort{port.Name, port.Proto}]
	pools := r.choosePools(host, svc, all, route)
	r.countLocal(svc, all)
	p := &model.Port{ID: id, SessionAffinity: svc.SessionAffinity, Scheduler: r.schedule(svc, pools), PreserveDestination: svc.PreserveDestination, Frontends: frontends(host, svc, addresses, pools)}
	if route != nil {
		p.Route = &route.Name
		r.reportIdle(svc, route, id, pools)
	}
	if port.Proto != model.TCP {
		p.Draining = draining(all, pools)
	}
	r.Ports = append(r.Ports, p)
}

// usable reports whether a Service can have an address of a port, and states why not.
func (r *Result) usable(host *model.Host, svc *model.Service, a Address, again repeats) bool {
	no := reject(host, svc, a)
	switch {
	case no != rejection{}:
		r.Note(func() model.Problem { return no.problem(svc, a) })
	case again.of(a):
		r.Problem(svc, model.WhyDuplicateFrontend, "%s %s (%s)", a.Kind, a.At, a.Proto)
	default:
		return true
	}
	return false
}

// HealthPort returns the port on which load balancers ask whether this node has
// endpoints of a Service, or 0. Only policy Local makes that a question.
func HealthPort(svc *model.Service) uint16 {
	if svc.Type == model.LoadBalancer && svc.External == model.Local {
		return svc.HealthCheckNodePort
	}
	return 0
}

// countLocal notes which of a port's endpoints a load balancer may count on: the
// ready ones of this node. Those that terminate still serve, but the balancer
// must send nothing new to them (KEP-1669).
func (r *Result) countLocal(svc *model.Service, all []endpoint) {
	if HealthPort(svc) == 0 {
		return
	}
	for i := range all {
		if e := &all[i]; e.local && ready(e) {
			if r.local == nil {
				r.local = map[netip.Addr]struct{}{}
			}
			r.local[e.addr.Addr()] = struct{}{}
		}
	}
}

// setHealth sets the answer to load balancers' health checks on all ports of a family. A pod that
// serves several ports counts as one endpoint.
func (r *Result) setHealth(svc *model.Service, ports []*model.Port) {
	for _, p := range ports {
		p.HealthPort, p.LocalReady = HealthPort(svc), len(r.local)
	}
	clear(r.local)
}

// reportClosed reports addresses that allow no client, for want of a source range of their
// family.
func (r *Result) reportClosed(svc *model.Service, addresses []Address) {
	for _, a := range addresses {
		if restricted(svc, a) && !slices.ContainsFunc(svc.SourceRanges, func(p netip.Prefix) bool {
			return model.FamilyOf(p.Addr()) == model.FamilyOf(a.At.Addr())
		}) {
			r.Problem(svc, model.WhyClosed, "%s %s", a.Kind, a.At.Addr())
		}
	}
}

// Result is what policy makes of one Service.
type Result struct {
	Ports    []*model.Port
	Problems []model.Problem // at most model.MaxProblems
	More     int             // problems that there are beside them

	used  seen
	known model.Index[model.PortID, *model.Port] // of Ports
	local map[netip.Addr]struct{}                // ready endpoints on this node, in the family in work
	index sliceIndex

	hashed []*model.Pool // that have tables (model.Maglev), no two the same
}

// Problem notes a problem of a Service, once. Beyond those that are reported they
// are only counted: there may be one for each endpoint of each port.
func (r *Result) Problem(svc *model.Service, why model.Reason, format string, args ...any) {
	r.Note(func() model.Problem {
		return model.Problem{Object: "Service " + svc.Name.String(), Where: svc.Where, Why: why, Detail: fmt.Sprintf(format, args...)}
	})
}

// Note notes a problem, which is made only where it is reported.
func (r *Result) Note(problem func() model.Problem) {
	if len(r.Problems) == model.MaxProblems {
		r.More++
		return
	}
	if p := problem(); !slices.Contains(r.Problems, p) {
		r.Problems = append(r.Problems, p)
	}
}

// Address is an address that a Service answers on.
type Address struct {
	Kind  model.Kind
	Proto model.Proto
	At    netip.AddrPort // the unspecified address for KindNodePort
}

// Addresses lists every address a Service asks for, in all families it serves:
// each combination of protocol, address and port once.
func Addresses(svc *model.Service) []Address { return AppendAddresses(nil, svc) }

// AppendAddresses is Addresses, after what is in a list.
func AppendAddresses(all []Address, svc *model.Service) []Address {
	if svc.Type == model.ClusterIP && len(svc.ClusterIPs) == 1 && len(svc.ExternalIPs) == 0 && len(svc.Ports) == 1 { // as of most: nothing comes up twice
		port := svc.Ports[0]
		return append(all, Address{model.KindClusterIP, port.Proto, netip.AddrPortFrom(svc.ClusterIPs[0], port.Port)})
	}
	all = slices.Grow(all, min(frontendsOf(svc), MaxFrontends))
	var once seen
	for _, family := range model.Families() {
		if !serves(svc, family) {
			continue
		}
		on := vips(svc, family)
		for _, port := range svc.Ports {
			first := len(all)
			all = appendAddressesOf(all, svc, port, family, on)
			if again := once.again(svc, port, family); again != (repeats{}) {
				all = all[:first+len(slices.DeleteFunc(all[first:], again.of))]
			}
		}
	}
	return all
}

// seen remembers which ports a Service has used in each family: all of its addresses are on each of them.
type seen struct{ all model.Unique[number] }

// number is a port, or a node port, in a family.
type number struct {
	family model.Family
	proto  model.Proto
	port   uint16
	node   bool
}

// repeats are whether the addresses of a port have come up before: those on its number, and its node port.
type repeats struct{ port, node bool }

func (r repeats) of(a Address) bool {
	if a.Kind == model.KindNodePort {
		return r.node
	}
	return r.port
}

func (s *seen) again(svc *model.Service, port model.ServicePort, family model.Family) repeats {
	return repeats{
		port: !s.all.Add(number{family, port.Proto, port.Port, false}),
		node: hasNodePort(svc, port) && !s.all.Add(number{family, port.Proto, port.NodePort, true}),
	}
}

// vip is an address of a Service, whatever the port.
type vip struct {
	kind model.Kind
	ip   netip.Addr
}

// vips lists the addresses of a Service in one family. One that is in two of its lists
// keeps the first kind, but for an external IP that is also the load balancer's: it
// is the latter.
func vips(svc *model.Service, family model.Family) (all []vip) {
	all = make([]vip, 0, addressCount(svc, family))
	var cluster model.Unique[netip.Addr]
	for _, ip := range svc.ClusterIPs {
		if model.FamilyOf(ip) == family && cluster.Add(ip) {
			all = append(all, vip{model.KindClusterIP, ip})
		}
	}
	add := func(kind model.Kind, ips []netip.Addr) {
		for _, ip := range ips {
			if model.FamilyOf(ip) == family && !cluster.Has(ip) {
				all = append(all, vip{kind, ip})
			}
		}
	}
	add(model.KindExternalIP, externalIPs(svc))
	if svc.Type == model.LoadBalancer {
		add(model.KindLoadBalancer, svc.LoadBalancerIPs)
	}
	return all
}

// appendAddressesOf lists the addresses of one port in one family.
func appendAddressesOf(all []Address, svc *model.Service, port model.ServicePort, family model.Family, on []vip) []Address {
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

type actions = [model.Origins]model.Action

// internal is what a cluster IP does (internalTrafficPolicy, KEP-2086).
//
// Clients other than pods of this node are SNATed, since the endpoint's reply must
// come back through this node. When pods cannot be recognised no client is: SNAT
// for all would hide every client, and a cluster that works without a detector
// routes Service answers by other means.
func internal(host *model.Host, svc *model.Service, family model.Family, p pools) (on actions) {
	act := balance(svc.Internal, p)
	known := host.Pods.Known(family)
	for origin := range on {
		a := act
		a.SNAT = act.Verdict == model.Balance && (host.MasqueradeAll || known && model.Origin(origin) != model.FromPod)
		on[origin] = a
	}
	return on
}

// external is what external IPs, load balancer IPs and node ports do
// (externalTrafficPolicy).
//
// Under Cluster everything is SNATed, because the answer of an endpoint on
// another node must come back through here. Under Local the client's address is
// kept, and only this node's endpoints serve clients from outside. This node's
// own pods and processes are not outside: they may use the whole cluster's
// endpoints, as they would through the cluster IP.
func external(host *model.Host, svc *model.Service, family model.Family, p pools) (on actions) {
	if svc.External == model.Cluster {
		act := balance(model.Cluster, p)
		act.SNAT = act.Verdict == model.Balance
		return actions{act, act, act}
	}
	outside, short := balance(model.Local, p), balance(model.Cluster, p)
	if short.Verdict == model.Balance {
		short.Why = model.WhyShortCircuit
	}
	on[model.FromOutside] = outside
	on[model.FromHost] = short
	on[model.FromHost].SNAT = short.Verdict == model.Balance
	on[model.FromPod] = short
	if !host.Pods.Known(family) {
		on[model.FromPod] = outside
	}
	return on
}

// balance is the Action over the pool of a policy, or its replacement when the pool is
// empty: reject when there is no endpoint anywhere, so that clients fail at once;
// drop when other nodes could serve, so that a load balancer or a retry
// finds them.
func balance(policy model.TrafficPolicy, p pools) model.Action {
	pool, why := p.cluster, p.whyCluster
	if policy == model.Local {
		pool, why = p.local, p.whyLocal
	}
	switch {
	case pool != nil:
		return model.Action{Verdict: model.Balance, Pool: pool, Policy: policy, Why: why}
	case p.cluster == nil:
		return model.Action{Verdict: model.Reject, Why: model.WhyNoEndpoints}
	}
	return model.Action{Verdict: model.Drop, Why: model.WhyNoLocalEndpoints}
}

func frontends(host *model.Host, svc *model.Service, addresses []Address, p pools) []model.Frontend {
	fs := make([]model.Frontend, len(addresses))
	for i, a := range addresses {
		family := model.FamilyOf(a.At.Addr())
		f := model.Frontend{Kind: a.Kind, At: a.At}
		if a.Kind == model.KindClusterIP {
			f.On = internal(host, svc, family, p)
		} else {
			f.On = external(host, svc, family, p)
		}
		if restricted(svc, a) {
			f.Restricted, f.Allow = true, allowed(host, svc.SourceRanges, a.At.Addr())
		}
		fs[i] = f
	}
	return fs
}

// allowed returns the source ranges of a load balancer address, canonical. When
// they let this node in, they also let in the address itself: a packet that the
// node sends to its own load balancer carries that as its source where the
// address is bound locally.
func allowed(host *model.Host, ranges []netip.Prefix, vip netip.Addr) []netip.Prefix {
	family := model.FamilyOf(vip)
	var mine []netip.Prefix
	for _, r := range ranges {
		if model.FamilyOf(r.Addr()) == family {
			mine = append(mine, r.Masked())
		}
	}
	if primary, ok := host.Primary(family); ok && model.Contains(mine, primary) {
		mine = append(mine, netip.PrefixFrom(vip, vip.BitLen()))
	}
	return model.Canonical(mine)
}
