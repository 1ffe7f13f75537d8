// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/virtualserver"
)

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
// Persistent clients are connections of the kernel's (ip_vs_conn), whose number nothing bounds for one
// server or one namespace: those of one take no room from another's, but memory of the node.
func (p *portCompiler) server(k Key, pool *model.Pool) Value {
	s := virtualserver.Server{Scheduler: p.scheduler(pool)}
	switch {
	case p.port.SessionAffinity > 0 && k.Via != ByAddress:
		s.Scheduler = "sh"
	case p.port.SessionAffinity > 0:
		s.Flags, s.Timeout = virtualserver.Persistent, max(uint32(p.port.SessionAffinity.Seconds()), 1)
	}
	switch s.Scheduler { // a destination that drains has its clients still
	case "mh":
		s.Flags |= virtualserver.Fallback | virtualserver.MHPort
	case "sh":
		s.Flags |= virtualserver.Fallback
	}
	return Value{Server: s, Weighted: isWeighted(s.Scheduler) && pool != nil && pool.Weighted()}
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
