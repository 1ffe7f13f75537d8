// SPDX-License-Identifier: Apache-2.0

package status

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// PortsHash is a hash of what a node programs: its host and its resolved ports, in their order, slots
// included. Ports that are not Equal have another, but for accidents of 64 bits. With a mode and a configuration
// it determines the plan.
func PortsHash(host *model.Host, ports []*model.Port) string {
	h := HashHost(host)
	h.Add(ports)
	return h.String()
}

// PortsHasher makes a PortsHash of the ports of one Service after the other.
type PortsHasher struct{ hasher }

// HashHost begins with a host, which may be nil.
func HashHost(host *model.Host) *PortsHasher {
	h := &PortsHasher{*newHasher()}
	if host != nil {
		h.text(fmt.Sprintf("%+v", *host)) // empty lists, which may be nil, and addresses have one text
	}
	return h
}

// Add adds ports.
func (h *PortsHasher) Add(ports []*model.Port) {
	for _, p := range ports {
		h.port(p)
	}
}

func (h *hasher) port(p *model.Port) {
	h.text(p.ID.Service.Namespace)
	h.text(p.ID.Service.Name)
	h.text(p.ID.Name)
	h.number(uint64(p.ID.Proto))
	h.number(uint64(p.ID.Family))
	h.number(uint64(p.SessionAffinity))
	h.number(uint64(p.Scheduler))
	h.flag(p.Route != nil)
	if p.Route != nil {
		h.number(uint64(p.Route.Proto))
		h.text(p.Route.Namespace)
		h.text(p.Route.Name)
	}
	h.flag(p.PreserveDestination)
	h.number(uint64(p.HealthPort))
	h.number(uint64(p.LocalReady))
	h.number(uint64(len(p.Draining)))
	for _, a := range p.Draining {
		h.addrPort(a)
	}
	h.number(uint64(len(p.Frontends)))
	var known [2]*model.Pool // there are at most two of a port: each is added in full once
	for i := range p.Frontends {
		h.frontend(&p.Frontends[i], &known)
	}
}

func (h *hasher) frontend(f *model.Frontend, known *[2]*model.Pool) {
	h.number(uint64(f.Kind))
	h.addrPort(f.At)
	h.flag(f.Restricted)
	h.number(uint64(len(f.Allow)))
	for _, r := range f.Allow {
		h.binary(r.Addr())
		h.number(uint64(r.Bits() + 1)) // -1 where it is not valid
	}
	for _, act := range f.On {
		h.number(uint64(act.Verdict))
		h.flag(act.SNAT)
		h.number(uint64(act.Why))
		switch act.Pool {
		case nil:
			h.number(0)
		case known[0]:
			h.number(1)
		case known[1]:
			h.number(2)
		default:
			known[0], known[1] = act.Pool, known[0]
			h.number(3)
			h.pool(act.Pool)
		}
	}
}

func (h *hasher) pool(p *model.Pool) {
	h.number(uint64(len(p.Endpoints)))
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		h.addrPort(e.Addr)
		h.flag(e.Local)
		h.flag(e.NodeUnknown)
		h.number(uint64(e.Weight))
	}
	h.number(uint64(len(p.Table)))
	for _, slot := range p.Table {
		h.number(uint64(slot))
	}
}

func (h *hasher) addrPort(a netip.AddrPort) {
	h.binary(a.Addr())
	h.number(uint64(a.Port()))
}

// binary adds an address without a zone, as all in the model are.
func (h *hasher) binary(a netip.Addr) {
	b := a.As16()
	if a.Is4() {
		h.number(uint64(binary.BigEndian.Uint32(b[12:])))
		return
	}
	h.number(math.MaxUint64) // no IPv4 address
	h.number(binary.BigEndian.Uint64(b[:8]))
	h.number(binary.BigEndian.Uint64(b[8:]))
}
