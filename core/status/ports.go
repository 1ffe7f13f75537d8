// SPDX-License-Identifier: Apache-2.0

package status

import (
	"encoding/binary"
	"math"
	"net/netip"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
)

// portsScheme numbers what PortsHash makes of its input. Raise it when that changes: with a field of model.Host,
// model.Port or what these have, or with another number for a value of a type that is added as a number, such as
// model.Kind or model.Verdict; a reason counts by its name. Hashes of two schemes cannot be compared.
const portsScheme = "4:"

// PortsHash is a hash of what a node programs: its host and its resolved ports, in their order, slots
// included, after the number of its scheme. Ports that are not Equal have another hash, but for collisions of 64 bits.
// With a mode and a configuration it determines the plan.
func PortsHash(host *model.Host, ports []*model.Port) string {
	h := HashHost(host)
	h.Add(ports)
	return h.String()
}

// PortsHashComparable reports whether a PortsHash of some version of Tandem can be compared with those of this one.
func PortsHashComparable(hash string) bool { return strings.HasPrefix(hash, portsScheme) }

// PortsHasher makes a PortsHash of the ports of one Service after the other.
type PortsHasher struct {
	hasher
	reasons [math.MaxUint8 + 1]uint64 // hashes of their names: 0 for those that did not occur
}

// HashHost begins with a host, which may be nil.
func HashHost(host *model.Host) *PortsHasher {
	h := &PortsHasher{hasher: *newHasher()}
	h.flag(host != nil)
	if host != nil {
		h.host(host)
	}
	return h
}

// String returns the hash of what was added so far.
func (h *PortsHasher) String() string { return h.after(portsScheme) }

// Add adds ports.
func (h *PortsHasher) Add(ports []*model.Port) {
	for _, p := range ports {
		h.port(p)
	}
}

func (h *hasher) host(o *model.Host) {
	h.text(o.Name)
	h.text(o.Zone)
	each(h, o.IPs, h.binary)
	each(h, o.Pods.CIDRs, h.prefix)
	h.text(o.Pods.Interface)
	h.text(o.Pods.Prefix)
	each(h, o.NodePorts.Prefixes, h.prefix)
	for _, on := range o.NodePorts.Loopback {
		h.flag(on)
	}
	h.flag(o.NodePorts.LoopbackTCPOnly)
	h.flag(o.MasqueradeAll)
	h.number(o.Salt)
	each(h, o.ServiceCIDRs, h.prefix)
	g := &o.Guard
	each(h, g.NodeIPs, h.binary)
	each(h, g.FixedIPs, h.binary)
	each(h, g.Broadcasts, h.binary)
	each(h, g.APIServers, h.addrPort)
	each(h, g.Pods, h.prefix)
	each(h, g.ProtectedPorts, func(port uint16) { h.number(uint64(port)) })
	h.flag(g.Reserved)
	each(h, g.Allowed, h.prefix)
	h.flag(g.AllowedOnly)
}

// each adds a list, in its order.
func each[T any](h *hasher, all []T, add func(T)) {
	h.number(uint64(len(all)))
	for _, v := range all {
		add(v)
	}
}

func (h *PortsHasher) port(p *model.Port) {
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
	each(&h.hasher, p.Draining, h.addrPort)
	h.number(uint64(len(p.Frontends)))
	var known [2]*model.Pool // there are at most two of a port: each is added in full once
	for i := range p.Frontends {
		h.frontend(&p.Frontends[i], &known)
	}
}

func (h *PortsHasher) frontend(f *model.Frontend, known *[2]*model.Pool) {
	h.number(uint64(f.Kind))
	h.addrPort(f.At)
	h.flag(f.Restricted)
	each(&h.hasher, f.Allow, h.prefix)
	for _, act := range f.On {
		h.number(uint64(act.Verdict))
		h.number(uint64(act.Policy))
		h.flag(act.SNAT)
		h.reason(act.Why)
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

// reason adds the name of a reason, at the cost of a small number: each frontend has three.
func (h *PortsHasher) reason(r model.Reason) {
	name := &h.reasons[r]
	if *name == 0 {
		one := hasher{fnvBasis}
		one.text(r.String())
		*name = one.sum
	}
	h.sum = (h.sum ^ *name) * fnvPrime
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

func (h *hasher) prefix(r netip.Prefix) {
	h.binary(r.Addr())
	h.number(uint64(r.Bits() + 1)) // -1 where it is not valid
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
