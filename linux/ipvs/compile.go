// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/ipset"
	"github.com/tandem-proxy/tandem/linux/virtualserver"
)

// Options are the settings of this data plane.
type Options struct {
	// Mark is the fwmark bit of packets to be masqueraded; 0 means config.DefaultMark.
	Mark uint32
	// Families are the IP families to serve; none means both. A port of another family is a
	// Gap.
	Families []model.Family
	// Scheduler is the kernel's scheduler for all virtual servers of Services that
	// choose none; empty is rr.
	Scheduler string
	// Schedulers are the schedulers that this kernel has, for Services that choose one or have
	// weights; nil means all.
	Schedulers []string
	// Weighted makes Services use a weighted scheduler even before endpoints have weights: while the
	// kernel exchanges the scheduler of a virtual server, it rejects connections.
	Weighted bool
	// NoRandomFully is set if this iptables lacks MASQUERADE --random-fully.
	NoRandomFully bool
}

// optionsOf returns the options that a configuration asks for.
func optionsOf(c *config.Config) Options {
	return Options{Mark: 1 << c.MasqueradeBit, Scheduler: c.IPVS.Scheduler, Weighted: true}
}

func (o Options) families() []model.Family { return model.FamiliesOr(o.Families) }

func (o Options) scheduler() string { return cmp.Or(o.Scheduler, "rr") }

// Compiler turns ports into objects (dataplane.Compiler). It is safe for
// concurrent use.
type Compiler struct {
	dataplane.SimpleCompiler[Key, Value]
	options Options
	bits    markBits
}

// NewCompiler returns a compiler.
func NewCompiler(o Options) *Compiler { return &Compiler{options: o, bits: bitsFor(o.Mark)} }

// Equal: a weighted scheduler equals the unweighted one while all weights are the same, so that
// an existing server is kept.
func (c *Compiler) Equal(a, b Value) bool {
	if !a.Weighted && !b.Weighted && (weighted[a.Scheduler] == b.Scheduler || weighted[b.Scheduler] == a.Scheduler) {
		a.Scheduler = b.Scheduler
	}
	return a == b
}

// Rank: no packet is marked before its virtual server exists, so chains and the jumps to them
// come last; source ranges come before the frontend that they restrict. IPVS serves node ports,
// whose addresses are the node's, even without a mark. Their entries may deny that, so these come before the
// server, and the entries for pods and the host, whose action may differ, come before them.
func (c *Compiler) Rank(k Key) int {
	switch k.Kind {
	case kindLink, kindRule, kindRoute, KindSet:
		return 0
	case kindServer:
		if k.Via != ByAddress {
			return 4
		}
		return 8
	case kindDest:
		return c.Rank(k.serverOf()) + 1
	case kindAddress:
		return 12
	case KindChain:
		return 13
	case kindJump:
		return 14
	}
	switch k.Set {
	case SourceRanges:
		return 1
	case Restricted:
		return 2
	case loopBack:
		return 3
	case Pods, Host:
		return 6
	case nodePortTCP, nodePortUDP, nodePortSCTP:
		return 7
	case virtualIPs:
		return 11
	}
	return 10
}

// Admits returns, for a source range, the entry that restricts its frontend, and the range.
func (*Compiler) Admits(k Key) (guard Key, clients netip.Prefix) {
	if k.Kind != kindEntry || k.Set != SourceRanges {
		return guard, clients
	}
	clients = k.Peer.network()
	k.Set, k.Peer = Restricted, Peer{}
	return k, clients
}

func (c *Compiler) Port(host *model.Host, port *model.Port, emit func(Key, Value)) []model.Gap {
	if !slices.Contains(c.options.families(), port.ID.Family) {
		return []model.Gap{model.MissingFamily(port.ID.Family, "iptables")}
	}
	p := portCompiler{options: c.options, bits: c.bits, host: host, port: port, emit: emit}
	for i := range port.Frontends {
		p.expand(&port.Frontends[i])
	}
	for i := range p.frontends {
		p.frontend(&p.frontends[i])
	}
	p.servers()
	p.hairpins()
	if port.HealthPort != 0 {
		k := p.key(kindEntry, dstPort(port.HealthPort))
		k.Set, k.Proto = healthCheckPort, 0
		emit(k, Value{})
	}
	return p.gaps
}

// expand lists the addresses of a frontend.
func (p *portCompiler) expand(f *model.Frontend) {
	if f.Kind != model.KindNodePort {
		p.frontends = append(p.frontends, frontendAddr{f, f.At, true})
		return
	}
	if p.host.NodePorts.Loopback[p.port.ID.Family] {
		p.gap(f, "node ports do not answer on loopback addresses in this mode")
	}
	for i, a := range p.nodeAddresses() {
		p.frontends = append(p.frontends, frontendAddr{f, netip.AddrPortFrom(a, f.At.Port()), i == 0})
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

// frontend emits the entries and addresses for packets to one address.
func (p *portCompiler) frontend(f *frontendAddr) {
	common := p.commonMark(f)
	if f.Restricted {
		p.restrict(f)
	}
	p.exceptions(f, common)
	entry := p.key(kindEntry, f.at)
	entry.Set = p.markSet(f.Kind)
	if entry.Set.kind() == ipset.BitmapPort {
		entry.Dst = dstPort(f.at.Port())
		entry.Proto = 0
		if !f.first {
			return
		}
	}
	p.emit(entry, Value{Mark: common})
	k := Key{Kind: kindRoute, Family: entry.Family, Dst: dstAddr(f.at.Addr())}
	switch f.Kind {
	case model.KindClusterIP:
		k.Kind = kindAddress
		p.emit(k, Value{})
		k.Kind, k.Set = kindEntry, virtualIPs
		p.emit(k, Value{})
	case model.KindExternalIP, model.KindLoadBalancer:
		p.emit(k, Value{})
	}
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
		return nodePortTCP
	case model.UDP:
		return nodePortUDP
	}
	return nodePortSCTP
}

func (p *portCompiler) restrict(f *frontendAddr) {
	k := p.key(kindEntry, f.at)
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
			if seen[e.Addr] || !p.host.NeedsHairpinSNAT(e) {
				continue
			}
			seen[e.Addr] = true
			k := p.key(kindEntry, e.Addr)
			k.Set, k.Peer = loopBack, peerClient(e.Addr.Addr())
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
	tenant    uint32 // see tenantNumber; 0 before its first call
}

// frontendAddr is a frontend at one address: a node port has one for each address
// of the host.
type frontendAddr struct {
	*model.Frontend
	at    netip.AddrPort
	first bool // of the frontend's addresses
}

func (p *portCompiler) key(kind Kind, at netip.AddrPort) Key {
	return Key{Kind: kind, Family: p.port.ID.Family, Proto: p.port.ID.Proto, Dst: at}
}

func (p *portCompiler) gap(f *model.Frontend, detail string) {
	p.gaps = append(p.gaps, model.Gap{Frontend: f.At, Detail: detail})
}

// Which clients a virtual server is for does not change with its endpoints. The one by address
// has the endpoints for packets from outside, or none. Packets of other origins, if another
// policy chooses their endpoints, get the fwmark of the frontend's virtual server by fwmark, which
// IPVS looks up first, also while both policies choose the same endpoints.

// via returns how balanced packets of an origin find their virtual server.
func (f *frontendAddr) via(o model.Origin) Via {
	outside, act := f.On[model.FromOutside], f.On[o]
	switch {
	case outside.Pool != nil && outside.Policy == act.Policy:
		return ByAddress
	case act.SNAT:
		return ByMarkSNAT
	}
	return ByMark
}

// pool is the pool of a virtual server of the frontend; nil for none.
func (f *frontendAddr) pool(via Via) *model.Pool {
	if via == ByAddress {
		return f.On[model.FromOutside].Pool
	}
	for _, o := range []model.Origin{model.FromPod, model.FromHost} {
		if pool := f.On[o].Pool; pool != nil && f.via(o) == via {
			return pool
		}
	}
	return nil
}

// commonMark is the mark that packets of all origins get first: it is right for
// packets from outside and, if possible, for the others.
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

// exceptions emits entries for origins whose mark is not the common one. A packet
// that the host sends from an address in the pods' range counts as a pod's, but is
// looked up in both sets: so if the host has an entry, pods have one, too.
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
	k := p.key(kindEntry, f.at)
	k.Set = set
	p.emit(k, v)
}

// originMark is the mark for packets of one origin.
func (p *portCompiler) originMark(f *frontendAddr, o model.Origin) Value {
	act := f.On[o]
	if act.Verdict != model.Balance {
		return Value{Mark: p.bits.deny(act.Verdict)}
	}
	via := f.via(o)
	if via == ByAddress {
		return Value{Mark: p.bits.byAddress(act.SNAT)}
	}
	return Value{Mark: p.bits.byMark(act.SNAT), ByMark: f.At, Via: via}
}

// commonFor is the effect of the common mark on packets of one origin.
func (p *portCompiler) commonFor(common Mark, o model.Origin) Mark {
	if common == p.bits.snatByChain() {
		return p.bits.byAddress(o != model.FromPod)
	}
	return common
}

// gapOnce adds a gap of the whole port, unless it was added before.
func (p *portCompiler) gapOnce(format string, args ...any) {
	g := model.Gap{Detail: fmt.Sprintf(format, args...)}
	if !slices.Contains(p.gaps, g) {
		p.gaps = append(p.gaps, g)
	}
}

// servers emits the virtual servers and their destinations. A node port has one by address for
// each address of the host, and those by mark once.
func (p *portCompiler) servers() {
	for i := range p.frontends {
		f := &p.frontends[i]
		p.serve(p.key(kindServer, f.at), f.pool(ByAddress))
		for _, via := range []Via{ByMark, ByMarkSNAT} {
			if pool := f.pool(via); pool != nil && f.first {
				k := p.key(kindServer, f.At)
				k.Via = via
				p.serve(k, pool)
			}
		}
	}
}

// serve emits a virtual server and its destinations.
func (p *portCompiler) serve(k Key, pool *model.Pool) {
	p.emit(k, p.server(k, pool))
	if pool == nil {
		return
	}
	for _, e := range pool.Endpoints {
		p.emit(k.dest(e.Addr), Value{Weight: max(e.Weight, 1)})
	}
}

// server is the definition of a virtual server. One by fwmark cannot be persistent:
// the kernel would send persistent clients to the destination port of the packet, not
// the endpoint's. It has session affinity by the source hashing scheduler instead.
// The kernel has a connection (ip_vs_conn) for each persistent client. Their number is not bounded:
// they take memory of the node, but no room from other Services.
func (p *portCompiler) server(k Key, pool *model.Pool) Value {
	s := virtualserver.Server{Scheduler: p.scheduler(pool)}
	switch {
	case p.port.SessionAffinity > 0 && k.Via != ByAddress:
		s.Scheduler = "sh"
	case p.port.SessionAffinity > 0:
		s.Flags, s.Timeout = virtualserver.Persistent, max(uint32(p.port.SessionAffinity.Seconds()), 1)
	}
	switch s.Scheduler { // without Fallback, clients that hash to a draining destination are rejected
	case "mh":
		s.Flags |= virtualserver.Fallback | virtualserver.MHPort
	case "sh":
		s.Flags |= virtualserver.Fallback
	}
	if k.Via != ByAddress {
		s.Flags |= p.tenantNumber() << tenantShift
	}
	return Value{Server: s, Weighted: isWeighted(s.Scheduler) && pool != nil && pool.Weighted()}
}

// tenantNumber returns a hash of the namespace, by which its virtual servers by mark are counted.
// Namespaces with the same hash share one quota.
func (p *portCompiler) tenantNumber() uint32 {
	if p.tenant == 0 {
		sum := p.host.Number("namespace", []byte(p.port.ID.Service.Namespace))
		p.tenant = 1 + binary.BigEndian.Uint32(sum[:])%(tenantBits>>tenantShift)
	}
	return p.tenant
}

// tenant returns the tenantNumber of a virtual server; 0 if unknown, and for servers by address.
func (v Value) tenant() uint32 { return v.Flags & tenantBits >> tenantShift }

// The kernel's schedulers that Services can choose, and the weighted ones.
var (
	chosen   = map[model.Scheduler]string{model.RoundRobin: "rr", model.LeastConnections: "lc", model.SourceHash: "sh", model.Maglev: "mh"}
	weighted = map[string]string{"rr": "wrr", "lc": "wlc"}
)

func isWeighted(scheduler string) bool { return scheduler == "wrr" || scheduler == "wlc" }

// scheduler returns the kernel's scheduler for a pool. If the kernel lacks the wanted one, that is a gap.
func (p *portCompiler) scheduler(pool *model.Pool) string {
	usual := p.options.scheduler()
	name, known := chosen[p.port.Scheduler]
	switch {
	case p.port.Scheduler == model.DefaultScheduler:
		name = usual
	case !known:
		p.gapOnce("IPVS has no scheduler %s; using %s", p.port.Scheduler, usual)
		name = usual
	}
	has := func(name string) bool {
		return p.options.Schedulers == nil || slices.Contains(p.options.Schedulers, name)
	}
	if by := weighted[name]; by != "" && (pool != nil && pool.Weighted() || p.options.Weighted && has(by)) {
		name = by
	}
	if name != usual && !has(name) {
		p.gapOnce("kernel module ip_vs_%s is missing; using scheduler %s", name, usual)
		return usual
	}
	return name
}
