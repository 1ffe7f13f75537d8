// SPDX-License-Identifier: Apache-2.0

package question

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/track"
)

// ServiceHash is a hash of what all nodes should know of a Service alike: its object
// and its endpoints. What one node derives from it, by traffic policies, zones and its
// own addresses, and what it has seen of endpoints, is not in it, nor are resourceVersions: the same object may be known
// in another version that differs in nothing that counts.
func ServiceHash(s *track.View) string {
	h := hashService(s)
	return h.String()
}

func hashService(s *track.View) hasher {
	h := newHasher()
	h.service(s.Object)
	for _, slice := range s.Slices { // in order of their names
		h.slice(slice)
	}
	return *h
}

// hasher adds values in a form that no two sequences of them share: FNV-1a with 64 bits,
// as hash/fnv has it, but without an allocation for each value. A list of 10,000 Services
// is half a million of them.
type hasher struct{ sum uint64 }

// The constants of FNV-1a. To add a byte of zero is to multiply by the prime.
const (
	fnvBasis  uint64 = 14695981039346656037
	fnvPrime  uint64 = 1099511628211
	fnvPrime8 uint64 = 2232315406967589409 // its 8th power, modulo 2^64
)

func newHasher() *hasher { return &hasher{fnvBasis} }

func (h *hasher) String() string { return h.after("") }

// after returns a prefix and the hash.
func (h *hasher) after(prefix string) string {
	var buf [16]byte
	return prefix + string(h.appendTo(buf[:0]))
}

func (h *hasher) appendTo(b []byte) []byte {
	var buf [16]byte
	text := strconv.AppendUint(buf[:0], h.sum, 16)
	return append(append(b, "0000000000000000"[len(text):]...), text...)
}

func (h *hasher) text(s string) {
	h.number(uint64(len(s)))
	h.part(s)
}

// part adds a part of a text.
func (h *hasher) part(s string) { h.sum = mix(h.sum, s) }

func (h *hasher) bytes(text []byte) {
	h.number(uint64(len(text)))
	h.sum = mix(h.sum, text)
}

// mix adds bytes to a sum.
func mix[T string | []byte](sum uint64, text T) uint64 {
	for i := range len(text) {
		sum = (sum ^ uint64(text[i])) * fnvPrime
	}
	return sum
}

func (h *hasher) address(a netip.Addr) {
	var buf [64]byte
	h.bytes(a.AppendTo(buf[:0]))
}

// name adds the text of a name.
func (h *hasher) name(n model.ServiceName) {
	h.number(uint64(len(n.Namespace) + len("/") + len(n.Name)))
	h.part(n.Namespace)
	h.part("/")
	h.part(n.Name)
}

// hash adds the text of another hash.
func (h *hasher) hash(other hasher) {
	var buf [16]byte
	h.bytes(other.appendTo(buf[:0]))
}

// number adds 8 bytes, the lowest first: mostly one that is not zero.
func (h *hasher) number(n uint64) {
	if n < 1<<8 {
		h.sum = (h.sum ^ n) * fnvPrime8
		return
	}
	sum := h.sum
	for range 8 {
		sum = (sum ^ n&0xff) * fnvPrime
		n >>= 8
	}
	h.sum = sum
}

func (h *hasher) flag(is bool) {
	if is {
		h.number(1)
	} else {
		h.number(0)
	}
}

// addAll adds a list in an order of its own: that of the inputs may differ.
func addAll[T fmt.Stringer](h *hasher, all []T) {
	if len(all) < 2 { // most lists: no copy is made
		h.number(uint64(len(all)))
		for _, v := range all {
			h.text(v.String())
		}
		return
	}
	texts := make([]string, len(all))
	for i, v := range all {
		texts[i] = v.String()
	}
	slices.Sort(texts)
	h.number(uint64(len(texts)))
	for _, t := range texts {
		h.text(t)
	}
}

// service adds the name and the fields of a Service. Nodes of two versions are compared: what comes after the ports is newer
// than the first version.
func (h *hasher) service(s *model.Service) {
	h.name(s.Name)
	newer := false
	s.Fields(func(name string, field any) {
		if newer {
			h.newer(name, field)
			return
		}
		h.field(field)
		newer = field == any(&s.Ports)
	})
}

// newer adds a field and its name, but only where it is not zero.
func (h *hasher) newer(name string, field any) {
	if !reflect.ValueOf(field).Elem().IsZero() {
		h.text(name)
		h.field(field)
	}
}

// field adds what a pointer points to.
func (h *hasher) field(field any) {
	switch v := field.(type) {
	case *[]netip.Addr:
		addAll(h, *v)
	case *[]netip.Prefix:
		addAll(h, *v)
	case *[]model.ServicePort:
		each(h, *v, h.servicePort)
	default:
		h.value(reflect.ValueOf(field).Elem())
	}
}

func (h *hasher) servicePort(p model.ServicePort) {
	h.text(p.Name)
	h.number(uint64(p.Proto))
	h.number(uint64(p.Port))
	h.number(uint64(p.NodePort))
}

// value adds a value of numbers and texts, in the order of its fields.
func (h *hasher) value(v reflect.Value) {
	switch {
	case v.CanUint():
		h.number(v.Uint())
	case v.CanInt():
		h.number(uint64(v.Int()))
	case v.Kind() == reflect.Bool:
		h.flag(v.Bool())
	case v.CanFloat():
		h.number(math.Float64bits(v.Float()))
	case v.Kind() == reflect.String:
		h.text(v.String())
	default: // a struct
		for i := range v.NumField() {
			h.value(v.Field(i))
		}
	}
}

func (h *hasher) slice(s *model.Slice) {
	h.name(model.ServiceName(s.Name))
	h.number(uint64(s.Family))
	h.number(uint64(len(s.Ports)))
	for _, p := range s.Ports {
		h.text(p.Name)
		h.number(uint64(p.Proto))
		h.number(uint64(p.Port))
	}
	h.flag(s.Weighted)
	h.number(uint64(s.Weight))
	h.number(uint64(len(s.Endpoints)))
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		h.address(e.Addr)
		h.text(e.Node)
		h.number(uint64(e.State &^ model.Unanswered))
		h.flag(e.Hints != nil)
		if e.Hints != nil {
			for _, all := range [][]string{e.Hints.Zones, e.Hints.Nodes} {
				h.number(uint64(len(all)))
				for _, name := range all {
					h.text(name)
				}
			}
		}
	}
}

// portsScheme numbers what PortsHash makes of its input. Raise it when that changes: with a field of model.Host,
// model.Port or what these have, or with another number for a value of a type that is added as a number, such as
// model.Kind or model.Verdict; a reason counts by its name. Hashes of two schemes cannot be compared.
const portsScheme = "5:"

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
	reasons [math.MaxUint8 + 1]uint64 // hashes of their names: 0 for reasons that did not occur
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
	each(h, o.PodCIDRs, h.prefix)
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
