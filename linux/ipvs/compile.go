// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/virtualserver"
)

// Options are the settings of this data plane.
type Options struct {
	// Mark is the bit of the packet mark that says "masquerade"; 0 means
	// DefaultMark.
	Mark uint32
	// Families are those to serve; none means both. Ports of another family are
	// a Gap.
	Families []model.Family
	// Scheduler is the kernel's scheduler for all virtual servers; empty is rr.
	Scheduler string
	// NoRandomFully says that this iptables cannot choose the source ports of
	// masqueraded connections at random.
	NoRandomFully bool
}

// optionsOf returns the options that a configuration asks for.
func optionsOf(c *config.Config) Options {
	return Options{Mark: 1 << c.MasqueradeBit, Scheduler: c.IPVS.Scheduler}
}

func (o Options) families() []model.Family {
	if len(o.Families) > 0 {
		return o.Families
	}
	both := model.Families()
	return both[:]
}

func (o Options) scheduler() string {
	if o.Scheduler == "" {
		return "rr"
	}
	return o.Scheduler
}

// Compiler turns ports into objects (dataplane.Compiler). It is safe for
// concurrent use.
type Compiler struct {
	options Options
	bits    markBits
}

// NewCompiler returns a compiler.
func NewCompiler(o Options) *Compiler { return &Compiler{options: o, bits: bitsFor(o.Mark)} }

// Equal implements dataplane.Compiler.
func (c *Compiler) Equal(a, b Value) bool { return a == b }

// DeleteDelay implements dataplane.Compiler.
func (c *Compiler) DeleteDelay(Key) time.Duration { return 0 }

// Rank implements dataplane.Compiler: no packet is marked before there is
// a virtual server for it, so chains and the jumps to them come last of all, and a
// frontend is never open to all before its source ranges hold.
func (c *Compiler) Rank(k Key) int {
	switch k.Kind {
	case KindLink, KindRule, KindRoute, KindSet:
		return 0
	case KindServer:
		return 1
	case KindDest:
		return 2
	case KindAddress:
		return 9
	case KindChain:
		return 10
	case KindJump:
		return 11
	}
	switch k.Set {
	case SourceRanges:
		return 3
	case Restricted:
		return 4
	case LoopBack:
		return 5
	case Pods, Host:
		return 6
	case VirtualIPs:
		return 8
	}
	return 7
}

// Port implements dataplane.Compiler.
func (c *Compiler) Port(host *model.Host, port *model.Port, emit func(Key, Value)) []model.Gap {
	if !slices.Contains(c.options.families(), port.ID.Family) {
		return []model.Gap{{Detail: port.ID.Family.String() + " is not served: this host has no iptables for it"}}
	}
	p := portCompiler{options: c.options, bits: c.bits, host: host, port: port, emit: emit}
	for i := range port.Frontends {
		p.expand(&port.Frontends[i])
	}
	p.assignByMark()
	for i := range p.frontends {
		p.frontend(&p.frontends[i])
	}
	p.servers()
	p.hairpins()
	if port.HealthPort != 0 {
		k := p.key(KindEntry, dstPort(port.HealthPort))
		k.Set, k.Proto = HealthCheckPort, 0
		emit(k, Value{})
	}
	return p.gaps
}

// expand lists the addresses of a frontend.
func (p *portCompiler) expand(f *model.Frontend) {
	if f.Kind != model.KindNodePort {
		p.frontends = append(p.frontends, frontendAddr{f, f.At})
		return
	}
	if p.host.NodePorts.Loopback {
		p.gap(f, "node ports do not answer on loopback addresses in this mode")
	}
	for _, a := range p.nodeAddresses() {
		p.frontends = append(p.frontends, frontendAddr{f, netip.AddrPortFrom(a, f.At.Port())})
	}
}

// nodeAddresses are the host's own addresses on which node ports answer.
func (p *portCompiler) nodeAddresses() (all []netip.Addr) {
	for _, a := range p.host.IPs {
		if model.FamilyOf(a) == p.port.ID.Family && !a.IsLoopback() && p.host.NodePorts.Contains(a) && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// frontend emits what tells packets to one address what to do.
func (p *portCompiler) frontend(f *frontendAddr) {
	common := p.commonMark(f)
	if f.Restricted {
		p.restrict(f)
	}
	p.exceptions(f, common)
	entry := p.key(KindEntry, f.at)
	entry.Set = p.markSet(f.Kind)
	if entry.Set.kind() == bitmapPort {
		entry.Dst = dstPort(f.at.Port())
		entry.Proto = 0
		if f.at != p.firstOf(f.Frontend) {
			return
		}
	}
	p.emit(entry, Value{Mark: common})
	k := Key{Kind: KindRoute, Family: entry.Family, Dst: dstAddr(f.at.Addr())}
	switch f.Kind {
	case model.KindClusterIP:
		k.Kind = KindAddress
		p.emit(k, Value{})
		k.Kind, k.Set = KindEntry, VirtualIPs
		p.emit(k, Value{})
	case model.KindExternalIP, model.KindLoadBalancer:
		p.emit(k, Value{})
	}
}

func (p *portCompiler) firstOf(f *model.Frontend) netip.AddrPort {
	i := slices.IndexFunc(p.frontends, func(q frontendAddr) bool { return q.Frontend == f })
	return p.frontends[i].at
}

func (p *portCompiler) markSet(k model.Kind) SetID {
	switch k {
	case model.KindClusterIP:
		return ClusterIPs
	case model.KindExternalIP:
		return ExternalIPs
	case model.KindLoadBalancer:
		return LoadBalancer
	}
	switch p.port.ID.Proto {
	case model.TCP:
		return NodePortTCP
	case model.UDP:
		return NodePortUDP
	}
	return NodePortSCTP
}

func (p *portCompiler) restrict(f *frontendAddr) {
	k := p.key(KindEntry, f.at)
	k.Set = SourceRanges
	for _, r := range f.Allow {
		emitPrefix(k, r, p.emit)
	}
	k.Set = Restricted
	p.emit(k, Value{})
}

// hairpins emits the endpoints whose connections to themselves must be masqueraded.
func (p *portCompiler) hairpins() {
	seen := map[netip.AddrPort]bool{}
	for _, pool := range p.port.Pools() {
		for _, e := range pool.Endpoints {
			if !e.Hairpins() || seen[e.Addr] || slices.Contains(p.host.IPs, e.Addr.Addr()) {
				continue
			}
			seen[e.Addr] = true
			k := p.key(KindEntry, e.Addr)
			k.Set, k.Peer = LoopBack, peerClient(e.Addr.Addr())
			p.emit(k, Value{})
		}
	}
}

// portCompiler compiles one port.
type portCompiler struct {
	options   Options
	bits      markBits
	host      *model.Host
	port      *model.Port
	emit      func(Key, Value)
	gaps      []model.Gap
	frontends []frontendAddr
	byMark    [2]byMark // without SNAT, and with
}

// frontendAddr is a frontend at one address: a node port has one for each address
// of the host.
type frontendAddr struct {
	*model.Frontend
	at netip.AddrPort
}

// byMark is a virtual server by mark, which all frontends of a port share.
type byMark struct {
	pool *model.Pool
	at   netip.AddrPort // its name: the lowest frontend that leads there
}

func (p *portCompiler) key(kind Kind, at netip.AddrPort) Key {
	return Key{Kind: kind, Family: p.port.ID.Family, Proto: p.port.ID.Proto, Dst: at}
}

func (p *portCompiler) gap(f *model.Frontend, detail string) {
	p.gaps = append(p.gaps, model.Gap{Frontend: f.At, Detail: detail})
}

// A virtual server by address has one set of destinations for all origins. It
// gets the pool of packets from outside, or where those are not balanced that of
// another origin. Where yet another origin has another pool, its packets get a mark
// that leads them to a virtual server by mark, which IPVS looks for first.

// mainPool is the pool of the virtual server by address.
func (f *frontendAddr) mainPool() *model.Pool {
	for _, o := range []model.Origin{model.FromOutside, model.FromPod, model.FromHost} {
		if pool := f.On[o].Pool; pool != nil {
			return pool
		}
	}
	return nil
}

// commonMark is the answer that all origins look at first: it is right for packets
// from outside, and where there is a choice for the others, too.
func (p *portCompiler) commonMark(f *frontendAddr) Mark {
	outside, pod, host := f.On[model.FromOutside], f.On[model.FromPod], f.On[model.FromHost]
	switch {
	case outside.Verdict != model.Balance:
		return p.bits.deny(outside.Verdict)
	case outside.SNAT && !pod.SNAT && host.SNAT:
		return p.bits.snatByChain()
	}
	return p.bits.byAddress(outside.SNAT)
}

// exceptions emits entries for origins whose answer is not the common one. A
// packet that the host sends from an address of the pods' range is a pod's, and
// meets both sets: so where the host has an entry, pods have one.
func (p *portCompiler) exceptions(f *frontendAddr, common Mark) {
	pod, host := p.originMark(f, model.FromPod), p.originMark(f, model.FromHost)
	own := host != Value{Mark: p.commonFor(common, model.FromHost)}
	if own {
		p.exception(f, Host, host)
	}
	if own && p.host.Pods.Known(p.port.ID.Family) || pod != (Value{Mark: p.commonFor(common, model.FromPod)}) {
		p.exception(f, Pods, pod)
	}
}

func (p *portCompiler) exception(f *frontendAddr, set SetID, v Value) {
	k := p.key(KindEntry, f.at)
	k.Set = set
	p.emit(k, v)
}

// originMark is what an origin gets.
func (p *portCompiler) originMark(f *frontendAddr, o model.Origin) Value {
	act := f.On[o]
	if act.Verdict != model.Balance {
		return Value{Mark: p.bits.deny(act.Verdict)}
	}
	if act.Pool == f.mainPool() {
		return Value{Mark: p.bits.byAddress(act.SNAT)}
	}
	server := p.byMark[snatIndex(act.SNAT)]
	return Value{Mark: p.bits.byMark(act.SNAT), ByMark: server.at, Via: viaOf(act.SNAT)}
}

// commonFor is what an origin gets of the common answer.
func (p *portCompiler) commonFor(common Mark, o model.Origin) Mark {
	if common == p.bits.snatByChain() {
		return p.bits.byAddress(o != model.FromPod)
	}
	return common
}

func snatIndex(snat bool) int {
	if snat {
		return 1
	}
	return 0
}

func viaOf(snat bool) Via { return [...]Via{ByMark, ByMarkSNAT}[snatIndex(snat)] }

// assignByMark finds out which virtual servers by mark the port needs.
func (p *portCompiler) assignByMark() {
	for i := range p.frontends {
		f := &p.frontends[i]
		for _, o := range []model.Origin{model.FromPod, model.FromHost} {
			act := f.On[o]
			if act.Pool == nil || act.Pool == f.mainPool() {
				continue
			}
			s := &p.byMark[snatIndex(act.SNAT)]
			if s.pool == nil {
				*s = byMark{act.Pool, f.at}
			}
			if f.at.Compare(s.at) < 0 {
				s.at = f.at
			}
			if s.pool != act.Pool { // at most two pools: the other one is main
				p.gap(f.Frontend, "a third set of endpoints, for packets from "+o.String())
			}
		}
	}
}

// servers emits the virtual servers and their destinations.
func (p *portCompiler) servers() {
	for i := range p.frontends {
		f := &p.frontends[i]
		k := p.key(KindServer, f.at)
		p.emit(k, p.server(k))
		p.destinations(k, f.mainPool())
	}
	for i, s := range p.byMark {
		if s.pool != nil {
			k := p.key(KindServer, s.at)
			k.Via = viaOf(i == 1)
			p.emit(k, p.server(k))
			p.destinations(k, s.pool)
		}
	}
}

// server is the definition of a virtual server. One by mark cannot be persistent:
// the kernel would send persistent clients to the port that they asked for, not
// to the endpoint's. There, clients stay because the destination is chosen by a
// hash of their address.
func (p *portCompiler) server(k Key) Value {
	s := virtualserver.Server{Scheduler: p.options.scheduler()}
	switch {
	case p.port.SessionAffinity > 0 && k.Via != ByAddress:
		return Value{Server: virtualserver.Server{Scheduler: "sh", Flags: virtualserver.SHFallback}}
	case p.port.SessionAffinity > 0:
		s.Flags, s.Timeout = virtualserver.Persistent, max(uint32(p.port.SessionAffinity.Seconds()), 1)
	}
	if s.Scheduler == "mh" {
		s.Flags |= virtualserver.MHPort // as kube-proxy sets it
	}
	return Value{Server: s}
}

func (p *portCompiler) destinations(server Key, pool *model.Pool) {
	if pool == nil {
		return
	}
	seen := make(map[netip.AddrPort]struct{}, len(pool.Endpoints))
	for _, e := range pool.Endpoints {
		if _, twice := seen[e.Addr]; twice {
			continue
		}
		seen[e.Addr] = struct{}{}
		p.emit(server.dest(e.Addr), Value{})
	}
}
