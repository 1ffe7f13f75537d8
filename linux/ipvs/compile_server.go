// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/virtualserver"
)

// servers emits the virtual servers and their destinations.
func (p *portCompiler) servers() {
	for i := range p.frontends {
		f := &p.frontends[i]
		k := p.key(kindServer, f.at)
		p.emit(k, p.server(k, f.mainPool()))
		p.destinations(k, f.mainPool())
	}
	for i, s := range p.byMark {
		if s.pool != nil {
			k := p.key(kindServer, s.at)
			k.Via = viaOf(i == 1)
			p.emit(k, p.server(k, s.pool))
			p.destinations(k, s.pool)
		}
	}
}

// server is the definition of a virtual server. One by fwmark cannot be persistent:
// the kernel would send persistent clients to the destination port of the packet, not
// the endpoint's. It has session affinity by the source hashing scheduler instead.
func (p *portCompiler) server(k Key, pool *model.Pool) Value {
	s := virtualserver.Server{Scheduler: p.scheduler(pool)}
	switch {
	case p.port.SessionAffinity > 0 && k.Via != ByAddress:
		return Value{Server: virtualserver.Server{Scheduler: "sh", Flags: virtualserver.SHFallback}}
	case p.port.SessionAffinity > 0:
		s.Flags, s.Timeout = virtualserver.Persistent, max(uint32(p.port.SessionAffinity.Seconds()), 1)
	}
	switch {
	case s.Scheduler == "mh":
		s.Flags |= virtualserver.MHPort // as kube-proxy sets it
	case s.Scheduler == "sh" && p.port.Scheduler == model.SourceHash:
		s.Flags |= virtualserver.SHFallback // a destination that drains has its clients still
	}
	return Value{Server: s, Weighted: isWeighted(s.Scheduler) && pool != nil && pool.Weighted()}
}

// destinations emits the destinations of a virtual server.
func (p *portCompiler) destinations(server Key, pool *model.Pool) {
	if pool == nil {
		return
	}
	for _, e := range pool.Endpoints {
		p.emit(server.dest(e.Addr), Value{Weight: max(e.Weight, 1)})
	}
}

// The kernel's schedulers that Services can choose, and the weighted ones.
var (
	chosen   = map[model.Scheduler]string{model.RoundRobin: "rr", model.LeastConnections: "lc", model.SourceHash: "sh", model.Maglev: "mh"}
	weighted = map[string]string{"rr": "wrr", "lc": "wlc"}
)

func isWeighted(scheduler string) bool { return scheduler == "wrr" || scheduler == "wlc" }

// scheduler is the one for a pool. One that this kernel does not have is a gap.
func (p *portCompiler) scheduler(pool *model.Pool) string {
	usual := p.options.scheduler()
	name, known := chosen[p.port.Scheduler]
	switch {
	case p.port.Scheduler == model.DefaultScheduler:
		name = usual
	case !known:
		p.once("IPVS has no scheduler %s: %s instead", p.port.Scheduler, usual)
		name = usual
	}
	has := func(name string) bool {
		return p.options.Schedulers == nil || slices.Contains(p.options.Schedulers, name)
	}
	if by := weighted[name]; by != "" && (pool != nil && pool.Weighted() || p.options.Weighted && has(by)) {
		name = by
	}
	if name != usual && !has(name) {
		p.once("this kernel has no scheduler ip_vs_%s: %s instead", name, usual)
		return usual
	}
	return name
}
