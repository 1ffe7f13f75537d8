package ipvs

import (
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// A virtual server by address has one set of destinations for whoever asks. It
// gets the pool of packets from outside, or where those are not balanced the
// pool of somebody else. Where yet another origin has another pool, as pods and
// the host under externalTrafficPolicy Local, its packets get a mark that leads
// them to a virtual server by mark, which IPVS looks for first.

// main is the pool of the virtual server by address.
func (f *place) main() *model.Pool {
	for _, o := range []model.Origin{model.FromOutside, model.FromPod, model.FromHost} {
		if pool := f.On[o].Pool; pool != nil {
			return pool
		}
	}
	return nil
}

// common is the answer that all origins look at first: it is right for packets
// from outside, and where there is a choice for the others, too.
func (p *portCompiler) common(f *place) Mark {
	outside, pod, host := f.On[model.FromOutside], f.On[model.FromPod], f.On[model.FromHost]
	switch {
	case outside.Verdict != model.Balance:
		return p.marks.verdict(outside.Verdict)
	case outside.SNAT && !pod.SNAT && host.SNAT:
		return p.marks.asIs()
	}
	return p.marks.plain(outside.SNAT)
}

// exceptions emits entries for origins whose answer is not the common one. A
// packet that the host sends from an address of the pods' range is a pod's, and
// meets both sets: so where the host has an entry, pods have one.
func (p *portCompiler) exceptions(f *place, common Mark) {
	pod, host := p.answer(f, model.FromPod), p.answer(f, model.FromHost)
	own := host != Value{Mark: p.seen(common, model.FromHost)}
	if own {
		p.exception(f, Host, host)
	}
	if own && p.host.Pods.Known(p.port.ID.Family) || pod != (Value{Mark: p.seen(common, model.FromPod)}) {
		p.exception(f, Pods, pod)
	}
}

func (p *portCompiler) exception(f *place, set SetID, v Value) {
	k := p.key(KindEntry, f.at)
	k.Set = set
	p.emit(k, v)
}

// answer is what an origin gets.
func (p *portCompiler) answer(f *place, o model.Origin) Value {
	act := f.On[o]
	if act.Verdict != model.Balance {
		return Value{Mark: p.marks.verdict(act.Verdict)}
	}
	if act.Pool == f.main() {
		return Value{Mark: p.marks.plain(act.SNAT)}
	}
	server := p.byMark[snatIndex(act.SNAT)]
	return Value{Mark: p.marks.byMark(act.SNAT), Server: server.at, Via: viaOf(act.SNAT)}
}

// seen is what an origin gets of the common answer.
func (p *portCompiler) seen(common Mark, o model.Origin) Mark {
	if common == p.marks.asIs() {
		return p.marks.plain(o != model.FromPod)
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

// measure finds out which virtual servers by mark the port needs.
func (p *portCompiler) measure() {
	for i := range p.places {
		f := &p.places[i]
		for _, o := range []model.Origin{model.FromPod, model.FromHost} {
			act := f.On[o]
			if act.Pool == nil || act.Pool == f.main() {
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
	for i := range p.places {
		f := &p.places[i]
		k := p.key(KindServer, f.at)
		p.emit(k, p.server(k))
		p.destinations(k, f.main())
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
		server.Kind, server.To = KindDest, e.Addr
		p.emit(server, Value{})
	}
}
