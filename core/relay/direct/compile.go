// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/relay"
)

// Compiler turns ports into listeners (dataplane.Compiler).
type Compiler struct {
	dataplane.SimpleCompiler[Key, Value]
	placement Placement
}

var _ dataplane.Compiler[Key, Value] = (*Compiler)(nil)

// NewCompiler returns a compiler whose relays listen where p places them.
func NewCompiler(p Placement) *Compiler { return &Compiler{placement: p} }

func (c *Compiler) Base(host *model.Host, emit func(Key, Value)) {
	emit(Key{Kind: kindHost}, Value{Host: host})
}

// The gaps of this mode.
const (
	noSCTP   = "relays support TCP and UDP only"
	noSource = "endpoints see an address of this machine, not the client's"
	noIface  = "pods cannot be detected by interface"
	noReject = "clients to be rejected are accepted and reset"
	noDrop   = "clients to be dropped are rejected or reset"
)

func (c *Compiler) Port(host *model.Host, port *model.Port, emit func(Key, Value)) (gaps []model.Gap) {
	switch {
	case !c.placed(host, port):
		return nil
	case port.ID.Proto == model.SCTP:
		return []model.Gap{{Missing: true, Detail: noSCTP}}
	}
	if note := c.placement.Note(); note != "" {
		gaps = append(gaps, model.Gap{Detail: note})
	}
	if why := relay.Unscheduled(port.Scheduler); why != "" {
		gaps = append(gaps, model.Gap{Detail: why})
	}
	gaps = append(gaps, model.Gap{Detail: noSource, Source: true})
	shared := map[*model.Pool]relay.Answer{}
	seen := map[Key]bool{} // frontends of several kinds may have one address
	for i := range port.Frontends {
		f := &port.Frontends[i]
		at, why := c.placement.Addresses(host, port.ID.Proto, f)
		if len(at) == 0 && why == "" {
			continue
		}
		if why != "" {
			gaps = append(gaps, model.Gap{Frontend: f.At, Missing: len(at) == 0, Detail: why})
		}
		gaps = append(gaps, c.missing(host, f)...)
		for _, a := range at {
			assigned := Key{Kind: kindAddress, At: netip.AddrPortFrom(a.Addr(), 0)}
			if c.placement.NeedsAddresses() && f.Kind != model.KindNodePort && !slices.Contains(host.IPs, a.Addr()) && !seen[assigned] {
				seen[assigned] = true
				emit(assigned, Value{})
			}
			k := Key{Kind: kindListener, Proto: port.ID.Proto, At: a, Frontend: f.At}
			if c.serves(f) && !seen[k] {
				seen[k] = true
				emit(k, Value{Policy: policy(port, f, shared)})
			}
		}
	}
	return gaps
}

// placed reports whether a port has a frontend that listeners are for, or should be.
func (c *Compiler) placed(host *model.Host, port *model.Port) bool {
	for i := range port.Frontends {
		if at, why := c.placement.Addresses(host, port.ID.Proto, &port.Frontends[i]); len(at) > 0 || why != "" {
			return true
		}
	}
	return false
}

// serves reports whether any origin that reaches the listeners has endpoints.
func (c *Compiler) serves(f *model.Frontend) bool {
	for o, a := range f.On {
		if a.Verdict == model.Balance && c.placement.Reached(model.Origin(o)) {
			return true
		}
	}
	return false
}

// missing returns what listeners cannot do for a frontend.
func (c *Compiler) missing(host *model.Host, f *model.Frontend) (gaps []model.Gap) {
	gap := func(detail string) { gaps = append(gaps, model.Gap{Frontend: f.At, Detail: detail}) }
	rejects, drops := false, f.Restricted
	for o, a := range f.On {
		if c.placement.Reached(model.Origin(o)) {
			rejects = rejects || a.Verdict == model.Reject
			drops = drops || a.Verdict == model.Drop
		}
	}
	if drops {
		gap(noDrop)
	}
	if rejects && c.serves(f) {
		gap(noReject)
	}
	byIface := host.Pods.Interface != "" || host.Pods.Prefix != ""
	if pod, other := f.On[model.FromPod], f.On[model.FromOutside]; byIface && (pod.Verdict != other.Verdict || !pod.Pool.Equal(other.Pool)) {
		gap(noIface)
	}
	return gaps
}

// policy is that of a frontend's listeners. Frontends share the parts derived from a pool.
func policy(port *model.Port, f *model.Frontend, shared map[*model.Pool]relay.Answer) *relay.Policy {
	p := &relay.Policy{
		Port: port.ID, Restricted: f.Restricted, Allow: f.Allow, SessionAffinity: port.SessionAffinity, Draining: port.Draining,
	}
	for from, a := range f.On {
		p.On[from] = relay.Answer{Verdict: a.Verdict}
		if a.Pool == nil {
			continue
		}
		answer, ok := shared[a.Pool]
		if !ok {
			answer = relay.Balance(a.Pool, port.Scheduler)
			shared[a.Pool] = answer
		}
		p.On[from] = answer
	}
	return p
}

func (c *Compiler) Rank(k Key) int { return int(k.Kind) }

func (c *Compiler) Equal(a, b Value) bool { return a.equal(b) }

// Placement chooses the addresses on which relays listen for a frontend. It is pure.
type Placement interface {
	// Addresses returns them with their ports, or why there are none.
	Addresses(host *model.Host, proto model.Proto, f *model.Frontend) (at []netip.AddrPort, why string)
	// NeedsAddresses reports whether frontend addresses have to be assigned to an
	// adapter.
	NeedsAddresses() bool
	// Reached reports whether clients of an origin reach these addresses.
	Reached(model.Origin) bool
	// Note is a gap that every port has; empty for none.
	Note() string
}

// Adapter has relays listen on the frontend addresses themselves, and for node
// ports on the addresses of the node.
type Adapter struct{}

var _ Placement = Adapter{}

func (Adapter) Addresses(host *model.Host, proto model.Proto, f *model.Frontend) (at []netip.AddrPort, why string) {
	if f.Kind != model.KindNodePort {
		return []netip.AddrPort{f.At}, ""
	}
	for _, a := range host.IPs {
		if model.FamilyOf(a) == model.FamilyOf(f.At.Addr()) && host.NodePorts.Contains(a) {
			at = append(at, netip.AddrPortFrom(a, f.At.Port()))
		}
	}
	if l := model.FamilyOf(f.At.Addr()).Loopback(); host.NodePorts.Answers(l, proto) {
		at = append(at, netip.AddrPortFrom(l, f.At.Port()))
	}
	return at, ""
}

func (Adapter) Reached(model.Origin) bool { return true }

func (Adapter) NeedsAddresses() bool { return true }

func (Adapter) Note() string { return "" }

// Loopback makes relays listen on loopback addresses: 127.x.y.z for a.x.y.z, so that
// nearly all Services have different, recognisable ones. It needs no privileges.
type Loopback struct{}

var _ Placement = Loopback{}

func (Loopback) Addresses(_ *model.Host, _ model.Proto, f *model.Frontend) (at []netip.AddrPort, why string) {
	switch {
	case f.At.Addr().Is6():
		return nil, "IPv6 has only one loopback address; not served"
	case f.Kind == model.KindNodePort:
		return []netip.AddrPort{netip.AddrPortFrom(model.FamilyOf(f.At.Addr()).Loopback(), f.At.Port())}, ""
	}
	b := f.At.Addr().As4()
	b[0] = 127
	return []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4(b), f.At.Port())}, ""
}

// Reached is true for all: one develops with the answers of all origins in sight.
func (Loopback) Reached(model.Origin) bool { return true }

func (Loopback) NeedsAddresses() bool { return false }

func (Loopback) Note() string {
	return "served on a loopback address, to processes of this node only"
}

// Kind is the kind of an object.
type Kind uint8

// The kinds of object, in the order of their creation.
const (
	kindHost     Kind = iota // the host, which classifies clients
	kindAddress              // an address assigned to an adapter
	kindListener             // a relay
)

// Key names an object.
type Key struct {
	Kind     Kind
	Proto    model.Proto    // of listeners
	At       netip.AddrPort // of listeners: where clients connect; of addresses, without a port
	Frontend netip.AddrPort // of listeners: the port; several may want one address
}

// Value is the content of an object.
type Value struct {
	Host   *model.Host   // of the host; only its IPs and Pods matter
	Policy *relay.Policy // of listeners
}

func (v Value) equal(o Value) bool {
	return sameOrigins(v.Host, o.Host) &&
		(v.Policy == o.Policy || v.Policy != nil && o.Policy != nil && v.Policy.Equal(o.Policy))
}

func sameOrigins(a, b *model.Host) bool {
	return a == b || a != nil && b != nil && slices.Equal(a.IPs, b.IPs) && slices.Equal(a.Pods.CIDRs, b.Pods.CIDRs)
}

// String names the object in errors.
func (k Key) String() string {
	switch k.Kind {
	case kindHost:
		return "host"
	case kindAddress:
		return "address " + k.At.Addr().String()
	}
	return fmt.Sprintf("listener %s %s", k.Proto, k.At)
}

// origin classifies a client. One with an address of this host, or one that was
// assigned to it, is a process of the host.
func origin(host *model.Host, assigned func(netip.Addr) bool, client netip.Addr) model.Origin {
	switch {
	case host == nil:
		return model.FromOutside
	case host.Pods.Match(client, ""):
		return model.FromPod
	case client.IsLoopback() || slices.Contains(host.IPs, client) || assigned(client):
		return model.FromHost
	}
	return model.FromOutside
}

// Evaluate: what listeners on an adapter do. The
// objects are all that they know; addresses that are on no adapter are not this
// machine's.
func (*Compiler) Evaluate(objects map[Key]Value, _ *model.Host) func(oracle.Packet) oracle.Outcome {
	host := objects[Key{Kind: kindHost}].Host
	own := func(a netip.Addr) bool {
		_, ok := objects[Key{Kind: kindAddress, At: netip.AddrPortFrom(a, 0)}]
		return ok
	}
	return func(p oracle.Packet) oracle.Outcome {
		for k, v := range objects {
			if k.Kind != kindListener || k.Proto != p.Proto || k.At != p.Dst {
				continue
			}
			a := v.Policy.Answer(origin(host, own, p.Src), p.Src)
			if a.Verdict != model.Balance {
				return oracle.Outcome{Fate: oracle.Reject}
			}
			out := oracle.Outcome{Fate: oracle.Forward}
			for _, e := range a.Endpoints {
				out.Endpoints = append(out.Endpoints, oracle.Target{Addr: e, SNAT: true})
			}
			return out
		}
		if own(p.Dst.Addr()) {
			return oracle.Outcome{Fate: oracle.Reject}
		}
		return oracle.Outcome{}
	}
}

func (*Compiler) Text(_ Key, v Value) string {
	if v.Policy != nil {
		return fmt.Sprintf("relay to %v", v.Policy.On[model.FromOutside].Endpoints)
	}
	return ""
}

func (*Compiler) Opaque(Key, Value) bool { return false }
