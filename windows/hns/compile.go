// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
)

// Options are the features of a node's HNS, and the user's settings. They are constant
// while a proxy runs.
type Options struct {
	Overlay   bool // the network is an overlay: VIPs need endpoints, and there is no IPv6
	DSR       bool // HNS supports DSR, which policy Local needs to keep clients' addresses
	ClientDSR bool // DSR is used for cluster IPs, too (--enable-dsr)
	Affinity  bool // HNS supports session affinity
	DualStack bool // HNS supports IPv6
	Trust     bool // source ranges are left to the cloud's load balancers (--winkernel-source-ranges)
	Failover  bool // the user asked for endpoints that stop answering to be ejected, or reported
	Probes    Probes

	// Subnets are the network's own ranges, by family. An address in both these and the Node's
	// podCIDRs is of a pod of this node. One of the two does not suffice: Azure's network
	// has all of a VNet, and Calico gives nodes other ranges than the Node object.
	Subnets [2]netip.Prefix
}

// Probes are the health checks that cloud load balancers send to their own VIPs.
type Probes struct {
	Forward bool   // they reach this node (--forward-healthcheck-vip)
	Port    uint16 // for Services without healthCheckNodePort: the proxy's own health port; 0 for none
}

// Newest are the options of a current Windows with DSR on, on an l2bridge
// network.
func Newest() Options { return Options{DSR: true, ClientDSR: true, Affinity: true, DualStack: true} }

// Compiler turns Service ports into objects (dataplane.Compiler). It has no state.
type Compiler struct {
	dataplane.SimpleCompiler[Key, Value]
	options Options
}

// NewCompiler returns a compiler.
func NewCompiler(o Options) *Compiler { return &Compiler{options: o} }

func (c *Compiler) Equal(a, b Value) bool { return a.equal(b) }

// portDNS is the frontend port whose load balancers come first (turns).
const portDNS = 53

// Rank puts referenced objects before those that refer to them.
func (c *Compiler) Rank(k Key) int {
	switch {
	case k.Kind == KindNode:
		return 0
	case k.Kind == KindSource:
		return 1
	case k.Kind == KindDuplicate, k.Kind == KindSurplus: // deleted first: while they exist other objects may have no effect
		return 4
	case k.Kind != KindBalancer:
		return 2
	}
	return 3
}

// deleteDelay delays the deletion of a remote endpoint that no load balancer needs: HNS takes
// up to seconds to create one, and addresses of restarting pods come back.
const deleteDelay = time.Minute

func (c *Compiler) DeleteDelay(k Key) time.Duration {
	if k.Kind == KindRemote || k.Kind == KindVIP {
		return deleteDelay
	}
	return 0
}

// Base emits the node's own addresses, and on an overlay the source VIP's endpoint.
func (c *Compiler) Base(host *model.Host, emit func(Key, Value)) {
	for _, f := range model.Families() {
		node, _ := host.Primary(f)
		emit(nodeAddress(f), Value{Node: node})
	}
	if c.options.Overlay {
		emit(sourceKey(), Value{})
	}
}

func (c *Compiler) Port(host *model.Host, port *model.Port, emit func(Key, Value)) []model.Gap {
	p := portCompiler{options: c.options, host: host, port: port, emit: emit, known: map[Key]bool{}}
	p.node, _ = host.Primary(port.ID.Family)
	if p.servesProto() && p.servesFamily() {
		p.affinity()
		p.balancing()
		p.failover()
		for i := range port.Frontends {
			p.frontend(&port.Frontends[i])
		}
	}
	return p.gaps
}

// portCompiler compiles one port.
type portCompiler struct {
	options Options
	host    *model.Host
	port    *model.Port
	emit    func(Key, Value)
	node    netip.Addr
	known   map[Key]bool // endpoints emitted: a port emits nothing twice
	gaps    []model.Gap
}

func (p *portCompiler) gap(f *model.Frontend, format string, args ...any) {
	p.add(gapOf(f, format, args...))
}

// missing is gap for a frontend, or with nil all frontends, not programmed at all.
func (p *portCompiler) missing(f *model.Frontend, format string, args ...any) {
	g := gapOf(f, format, args...)
	g.Missing = true
	p.add(g)
}

func gapOf(f *model.Frontend, format string, args ...any) model.Gap {
	g := model.Gap{Detail: fmt.Sprintf(format, args...)}
	if f != nil {
		g.Frontend = f.At
	}
	return g
}

func (p *portCompiler) add(g model.Gap) {
	if !slices.Contains(p.gaps, g) {
		p.gaps = append(p.gaps, g)
	}
}

// failover reports that endpoints cannot be ejected, if the user asked for that.
func (p *portCompiler) failover() {
	if p.options.Failover && p.port.ID.Proto == model.TCP {
		p.add(model.Gap{Failover: true, Detail: "endpoints that stop answering are not ejected: HNS does not show which connections wait for an answer"})
	}
}

// balancing reports schedulers and weights, which HNS does not have.
func (p *portCompiler) balancing() {
	if s := p.port.Scheduler; s != model.DefaultScheduler && s != model.Random {
		p.gap(nil, "scheduler %s is not supported: HNS chooses endpoints itself", s)
	}
	if slices.ContainsFunc(p.port.Pools(), (*model.Pool).Weighted) {
		p.gap(nil, "endpoints have equal shares: HNS has no weights")
	}
}

// servesProto reports whether HNS can serve the port's protocol. Kubernetes
// documents that SCTP is not supported on Windows (service-protocol-reference).
func (p *portCompiler) servesProto() bool {
	if p.port.ID.Proto == model.SCTP {
		p.missing(nil, "SCTP is not served: load balancers of HNS support TCP and UDP only")
		return false
	}
	return true
}

// servesFamily reports whether HNS can serve the port's IP family.
func (p *portCompiler) servesFamily() bool {
	switch {
	case p.port.ID.Family == model.IPv4:
		return true
	case p.options.Overlay:
		p.missing(nil, "IPv6 is not served: HNS has no IPv6 on overlay networks")
	case !p.options.DualStack:
		p.missing(nil, "IPv6 is not served: this HNS is older than 11.10")
	default:
		return true
	}
	return false
}

// affinity reports what HNS lacks of session affinity.
func (p *portCompiler) affinity() {
	if p.port.SessionAffinity == 0 {
		return
	}
	if !p.options.Affinity { // affinity is requested anyway, as kube-proxy does
		p.gap(nil, "session affinity may not work: this HNS is older than 12.0")
		return
	}
	p.gap(nil, "session affinity does not expire: HNS has no affinity timeout")
}

// frontend emits the objects of one frontend, or states why there are none.
func (p *portCompiler) frontend(f *model.Frontend) {
	if !p.serves(f) {
		return
	}
	p.probe(f)
	act := p.answer(f)
	if act.Verdict != model.Balance {
		if act.Verdict == model.Reject {
			p.gap(f, "without endpoints connections time out: HNS cannot reject")
		}
		return
	}
	b := p.balancer(f, act)
	if b == nil {
		return
	}
	if f.Kind == model.KindClusterIP && p.options.Overlay {
		p.endpoint(KindVIP, f.At.Addr(), Value{Node: p.node})
	}
	for _, e := range b.Endpoints {
		if !e.Local {
			p.endpoint(KindRemote, e.Addr, Value{})
		}
	}
	p.emit(Key{KindBalancer, p.port.ID.Proto, f.At.Port(), f.At.Addr()}, Value{Node: p.node, Balancer: b})
}

// probe emits the load balancer that leads health checks of a VIP to this node. The ports
// of a Service share it.
func (p *portCompiler) probe(f *model.Frontend) {
	port := cmp.Or(p.port.HealthPort, p.options.Probes.Port)
	if f.Kind != model.KindLoadBalancer || !p.options.Probes.Forward || port == 0 {
		return
	}
	k := Key{KindBalancer, model.TCP, port, f.At.Addr()}
	if p.port.ID.Proto == k.Proto && f.At.Port() == k.Port {
		p.gap(f, "health checks do not reach this node: the Service itself uses their port")
		return
	}
	p.emit(k, Value{Node: p.node, Balancer: &Balancer{
		Port: port, Endpoints: []Target{self(p.port.ID.Family)}, PreserveDestination: p.preserves(),
	}})
}

func (p *portCompiler) endpoint(kind Kind, addr netip.Addr, v Value) {
	k := Key{Kind: kind, Addr: addr}
	if !p.known[k] {
		p.known[k] = true
		p.emit(k, v)
	}
}

// serves reports whether a frontend can be served to the permitted clients only, and on the
// addresses that node ports have. Others are not programmed.
func (p *portCompiler) serves(f *model.Frontend) bool {
	if f.Restricted && !p.options.Trust {
		p.add(model.Gap{Frontend: f.At, Missing: true, Unserved: true, Detail: "not programmed: HNS cannot block clients outside loadBalancerSourceRanges"})
		return false
	}
	if f.Restricted {
		p.gap(f, "programmed for all clients: loadBalancerSourceRanges are left to the cloud's load balancer (--winkernel-source-ranges=trust)")
	}
	if f.Kind != model.KindNodePort {
		return true
	}
	if p.host.NodePorts.Loopback[p.port.ID.Family] {
		p.gap(f, "node ports do not answer on loopback addresses in this mode")
	}
	for _, a := range p.host.IPs {
		if model.FamilyOf(a) == p.port.ID.Family && !p.host.NodePorts.Contains(a) {
			p.missing(f, "not programmed: HNS opens node ports on all of the node's addresses, and %s is excluded by nodePortAddresses", a)
			return false
		}
	}
	return p.hasNodePorts(f)
}

// hasNodePorts reports whether nodePortAddresses has a range of the frontend's family.
func (p *portCompiler) hasNodePorts(f *model.Frontend) bool {
	return slices.ContainsFunc(p.host.NodePorts.Prefixes, func(r netip.Prefix) bool {
		return model.FamilyOf(r.Addr()) == model.FamilyOf(f.At.Addr())
	})
}

// answer returns the one Action of a frontend in HNS, which does not match a packet's
// origin: the Action for pods on cluster IPs, the one for clients outside on all other
// frontends.
func (p *portCompiler) answer(f *model.Frontend) model.Action {
	chosen := model.FromOutside
	if f.Kind == model.KindClusterIP {
		chosen = model.FromPod
	}
	act := f.On[chosen]
	for _, other := range f.On {
		if other.Verdict != act.Verdict || !other.Pool.Equal(act.Pool) {
			p.gap(f, "this node's own pods and processes are treated as clients from outside: HNS cannot tell them apart")
			break
		}
	}
	return act
}

// maxEndpoints is the most endpoints that a load balancer of HNS can have (kubernetes.io,
// "Networking on Windows").
const maxEndpoints = 1024

// balancer returns the load balancer of a frontend, nil if HNS can reach none of
// the endpoints.
func (p *portCompiler) balancer(f *model.Frontend, act model.Action) *Balancer {
	keep := p.keeps(f)
	usable := p.usable(f, act.Pool.Endpoints)
	switch {
	case keep:
		usable = p.local(f, usable, "HNS cannot preserve the destination to other nodes")
		if act.SNAT {
			p.gap(f, "endpoints see their clients' addresses: where HNS preserves the destination it does no SNAT")
		}
	case f.Kind == model.KindNodePort && p.preserves():
		usable = p.local(f, usable, "health checks of a preserve-destination Service must not reach other nodes")
	}
	if len(usable) == 0 {
		return nil
	}
	b := &Balancer{
		Port:                usable[0].Addr.Port(),
		External:            f.Kind != model.KindClusterIP,
		SessionAffinity:     p.port.SessionAffinity > 0,
		PreserveDestination: keep,
	}
	b.DSR = p.options.DSR && (!act.SNAT || keep)
	if f.Kind == model.KindClusterIP {
		b.DSR = p.options.DSR && p.options.ClientDSR
	} else if !act.SNAT && !b.DSR {
		p.gap(f, "endpoints do not see their clients' addresses: this HNS has no DSR")
	}
	if b.External && !b.DSR {
		b.Namespace = p.port.ID.Service.Namespace
	}
	b.Endpoints = make([]Target, len(usable))
	for i, e := range usable {
		b.Endpoints[i] = Target{e.Addr.Addr(), e.Local || p.ours(e.Addr.Addr())}
	}
	slices.SortFunc(b.Endpoints, func(a, b Target) int { return a.Addr.Compare(b.Addr) })
	return b
}

// ours reports whether only a pod of this node can have an address, whatever node the EndpointSlice names:
// with a remote endpoint, a later pod with the address would have no network.
func (p *portCompiler) ours(a netip.Addr) bool {
	return p.options.Subnets[model.FamilyOf(a)].Contains(a) &&
		model.Contains(p.host.PodCIDRs, a)
}

// keeps reports whether endpoints see the frontend's address as the destination, and why
// not.
func (p *portCompiler) keeps(f *model.Frontend) bool {
	if f.Kind != model.KindLoadBalancer || !p.port.PreserveDestination {
		return false
	}
	if !p.options.DSR {
		p.gap(f, "endpoints see their own address as the destination: this HNS has no DSR")
	}
	return p.options.DSR
}

// preserves reports whether the Service has the annotation preserve-destination, and HNS
// can do it.
func (p *portCompiler) preserves() bool { return p.port.PreserveDestination && p.options.DSR }

// local returns the endpoints of this node, and reports why the others are left out.
func (p *portCompiler) local(f *model.Frontend, all []model.Endpoint, why string) []model.Endpoint {
	before := len(all)
	local := slices.DeleteFunc(all, func(e model.Endpoint) bool { return !e.Local })
	if n := before - len(local); n > 0 {
		p.gap(f, "%d of %d endpoints are left out: %s", n, before, why)
	}
	return local
}

// usable returns the endpoints that one load balancer can have: none with the node's own
// address, all on one port, at most maxEndpoints.
func (p *portCompiler) usable(f *model.Frontend, all []model.Endpoint) []model.Endpoint {
	usable := make([]model.Endpoint, 0, len(all))
	for _, e := range all {
		// HNS has no endpoint for pods with hostNetwork and processes of this node.
		if !slices.Contains(p.host.IPs, e.Addr.Addr()) {
			usable = append(usable, e)
		}
	}
	if n := len(all) - len(usable); n > 0 {
		p.gap(f, "%d of %d endpoints are left out: HNS has no endpoint for the node's own address", n, len(all))
	}
	if port, mixed := commonest(usable); mixed {
		before := len(usable)
		usable = slices.DeleteFunc(usable, func(e model.Endpoint) bool { return e.Addr.Port() != port })
		p.gap(f, "%d of %d endpoints are left out: they are not on port %d, and HNS has one port for all", before-len(usable), before, port)
	}
	if len(usable) > maxEndpoints {
		p.gap(f, "%d of %d endpoints are left out: HNS takes at most %d", len(usable)-maxEndpoints, len(usable), maxEndpoints)
		usable = usable[:maxEndpoints] // slots are stable, so these stay the same
	}
	return usable
}

// commonest returns the port that most endpoints have, of several the lowest, and whether
// the endpoints have different ports; without, port is 0.
func commonest(all []model.Endpoint) (port uint16, mixed bool) {
	if !slices.ContainsFunc(all, func(e model.Endpoint) bool { return e.Addr.Port() != all[0].Addr.Port() }) {
		return 0, false
	}
	count := map[uint16]int{}
	for _, e := range all {
		count[e.Addr.Port()]++
	}
	for n, c := range count {
		if best := count[port]; c > best || c == best && n < port {
			port = n
		}
	}
	return port, true
}
