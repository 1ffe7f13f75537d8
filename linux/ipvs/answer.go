// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"net/netip"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
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
	return Value{Mark: p.bits.byMark(act.SNAT), Server: server.at, Via: viaOf(act.SNAT)}
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

// Flags of virtual servers (include/uapi/linux/ip_vs.h).
const (
	flagPersistent = 1 << 0
	flagHashed     = 1 << 1 // the kernel's own
	flagFallback   = 1 << 3 // sh: another destination where the one is not available
	flagPort       = 1 << 4 // mh: clients are told apart by port, too, as kube-proxy sets it
)

// server is the definition of a virtual server. One by mark cannot be persistent:
// the kernel would send persistent clients to the port that they asked for, not
// to the endpoint's. There, clients stay because the destination is chosen by a
// hash of their address.
func (p *portCompiler) server(k Key) Value {
	v := Value{Scheduler: p.options.scheduler()}
	switch {
	case p.port.SessionAffinity > 0 && k.Via != ByAddress:
		return Value{Scheduler: "sh", Flags: flagFallback}
	case p.port.SessionAffinity > 0:
		v.Flags, v.Timeout = flagPersistent, max(uint32(p.port.SessionAffinity.Seconds()), 1)
	}
	if v.Scheduler == "mh" {
		v.Flags |= flagPort
	}
	return v
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
		server.Kind, server.Peer = KindDest, peerEndpoint(e.Addr)
		p.emit(server, Value{})
	}
}
