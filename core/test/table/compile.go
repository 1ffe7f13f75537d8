// SPDX-License-Identifier: Apache-2.0

// Package table is a whole backend for a made-up kernel, which has a table of answers by address and kind of sender:
// the sample to begin a new one with. The suite's own tests use it as a data plane that is right, and
// TestBackendIsOneFolderAndOneLine of package platform adds it to the modes.
package table

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// Key is an address and a kind of sender. Port 0 rejects what no other entry has; without
// an address it holds ServiceCIDRs.
type Key struct {
	Proto  model.Proto
	At     netip.AddrPort
	Origin model.Origin
}

// Value is what happens to connections.
type Value struct {
	Verdict    model.Verdict
	SNAT       bool
	Endpoints  []model.Endpoint
	Restricted bool // to clients in Ranges
	Ranges     []netip.Prefix
}

// Compiler makes one object of each frontend and kind of sender.
type Compiler struct {
	dataplane.SimpleCompiler[Key, Value]
}

var _ dataplane.Compiler[Key, Value] = Compiler{}

func (Compiler) Base(host *model.Host, emit func(Key, Value)) {
	emit(Key{}, Value{Verdict: model.Drop, Ranges: host.ServiceCIDRs})
}

func (Compiler) Port(_ *model.Host, port *model.Port, emit func(Key, Value)) []model.Gap {
	for _, f := range port.Frontends {
		for from, act := range f.On {
			v := Value{Verdict: act.Verdict, SNAT: act.SNAT, Restricted: f.Restricted, Ranges: f.Allow}
			if act.Pool != nil {
				v.Endpoints = act.Pool.Endpoints
			}
			emit(Key{port.ID.Proto, f.At, model.Origin(from)}, v)
		}
		if f.Kind == model.KindClusterIP {
			emit(otherPorts(f.At.Addr()), Value{Verdict: model.Reject})
		}
	}
	return nil
}

func otherPorts(of netip.Addr) Key { return Key{At: netip.AddrPortFrom(of, 0)} }

func (Compiler) Rank(Key) int { return 0 }

func (Compiler) Equal(a, b Value) bool {
	return a.Verdict == b.Verdict && a.SNAT == b.SNAT && a.Restricted == b.Restricted &&
		slices.Equal(a.Endpoints, b.Endpoints) && slices.Equal(a.Ranges, b.Ranges)
}

func (Compiler) ServiceCIDRs(k Key, v Value) []netip.Prefix {
	if k != (Key{}) {
		return nil
	}
	return v.Ranges
}

func (Compiler) Slots(have func(Key) (Value, bool), proto model.Proto, at netip.AddrPort, from model.Origin) (order []netip.AddrPort) {
	v, _ := have(Key{proto, at, from})
	for _, e := range v.Endpoints {
		order = append(order, e.Addr)
	}
	return order
}

// Simulate does what the made-up kernel does with a packet.
func Simulate(objects map[Key]Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
	return func(p oracle.Packet) oracle.Outcome {
		to := p.Dst.Addr()
		k := Key{p.Proto, p.Dst, oracle.Origin(host, p)}
		v, ok := objects[k]
		if here := slices.Contains(host.IPs, to) || to.IsLoopback(); !ok && here && host.NodePorts.Contains(to) {
			k.At = netip.AddrPortFrom(model.FamilyOf(to).Unspecified(), p.Dst.Port())
			v, ok = objects[k]
		}
		if !ok {
			v, ok = objects[otherPorts(to)]
		}
		if base := objects[Key{}]; !ok && model.Contains(base.Ranges, to) {
			v, ok = Value{Verdict: base.Verdict}, true
		}
		switch {
		case !ok:
			return oracle.Outcome{Fate: oracle.Pass}
		case v.Restricted && !model.Contains(v.Ranges, p.Src), v.Verdict == model.Drop:
			return oracle.Outcome{Fate: oracle.Drop}
		case v.Verdict == model.Reject:
			return oracle.Outcome{Fate: oracle.Reject}
		}
		out := oracle.Outcome{Fate: oracle.Forward}
		for _, e := range v.Endpoints {
			leaves, hairpin := !slices.Contains(host.IPs, e.Addr.Addr()), host.NeedsHairpinSNAT(e) && e.Addr.Addr() == p.Src
			out.Endpoints = append(out.Endpoints, oracle.Target{Addr: e.Addr, SNAT: leaves && v.SNAT || hairpin})
		}
		return out
	}
}
