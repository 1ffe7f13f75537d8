// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/test/conformance"
	"github.com/tandem-proxy/tandem/linux/nft"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// relayPorts gives relays ports, in the order of their names.
func relayPorts(objects map[Key]Value) map[RelayID]uint16 {
	ports := map[RelayID]uint16{}
	for _, k := range sorted(objects, kindRelay) {
		ports[k.Relay] = uint16(10000 + len(ports))
	}
	return ports
}

// inNFT returns what objects are in nftables.
func inNFT(objects map[Key]Value, ports map[RelayID]uint16) map[nft.Key]nft.Value {
	all := map[nft.Key]nft.Value{}
	for k, v := range objects {
		rules := slices.Collect(v.Rules.All())
		if k.Kind == kindEntry {
			rules = []xtables.Rule{entryRule(k, v.To, ports[v.To.Relay])}
		}
		nftObjects(k, rules, func(k nft.Key, v nft.Value) { all[k] = v })
	}
	return all
}

// nftSim runs packets through the rules as they are in nftables.
func nftSim(objects map[Key]Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
	ports := relayPorts(objects)
	relays := map[uint16]RelayID{}
	for id, port := range ports {
		relays[port] = id
	}
	behind := NewSim(objects, host)
	kernel := nft.NewSim(inNFT(objects, ports), host)
	return func(p oracle.Packet) oracle.Outcome {
		out := kernel.Decide(p)
		if out.Fate != oracle.Forward || len(out.Endpoints) != 1 {
			return out
		}
		to := out.Endpoints[0].Addr
		switch id, known := relays[to.Port()]; {
		case to.Addr() != relayAddr(model.FamilyOf(to.Addr())):
			return out
		case to.Port() == rejectPort || to.Port() == dropPort:
			return oracle.Outcome{Fate: endFate(to.Port(), p.Proto)}
		case known:
			return behind.relayed(id)
		}
		return out
	}
}

// Every object is read back from nftables as what it was.
func TestObjectsComeBackFromNFT(t *testing.T) {
	entries := 0
	conformance.EachStep(t, func(s *conformance.Scenario, _ conformance.Step, host *model.Host, ports []*model.Port) {
		objects, _ := dataplane.Compile(NewCompiler(someMark), host, ports)
		at := relayPorts(objects)
		again := nftFound(inNFT(objects, at))
		maps.DeleteFunc(objects, func(k Key, _ Value) bool { return !InTable(k) })
		for k, v := range objects {
			f, ok := again[k]
			if !ok || !f.equal(v) {
				t.Errorf("%s: %s came back as %+v (%t), want %+v", s.Name, k, f.Value, ok, v)
			}
			if f.relay != (RelayID{}) && f.port != at[f.relay] {
				t.Errorf("%s leads to port %d", k, f.port)
			}
			if k.Kind == kindEntry {
				entries++
			}
		}
		for k := range again {
			if _, ok := objects[k]; !ok {
				t.Errorf("%s: %s has no owner", s.Name, k)
			}
		}
	})
	t.Logf("%d entries", entries)
}

// Whatever an element holds, it is either not ours or written back the same.
func FuzzNFTEntry(f *testing.F) {
	f.Add(uint8(5), false, []byte{10, 96, 0, 10}, []byte{169, 254, 84, 1}, uint16(80), uint16(40000), uint8(model.TCP), uint8(0), "default/web:http, pool 2")
	f.Add(uint8(2), false, []byte{10, 96, 0, 10}, []byte{10, 0, 0, 0}, uint16(80), uint16(0), uint8(model.TCP), uint8(8), "default/web: allowed")
	f.Add(uint8(1), true, []byte{1}, []byte{2}, uint16(80), uint16(0), uint8(model.UDP), uint8(0), "default/web: dropped")
	f.Add(uint8(0), true, []byte{1}, []byte{2}, uint16(0), uint16(1), uint8(0), uint8(0), sayClosed)
	f.Add(uint8(6), false, []byte{}, []byte{169, 254, 84, 1}, uint16(30080), uint16(1), uint8(model.TCP), uint8(0), "a/b: refused")
	f.Fuzz(func(t *testing.T, set uint8, six bool, at, to []byte, front, back uint16, proto, bits uint8, comment string) {
		family, size := model.IPv4, 4
		if six {
			family, size = model.IPv6, 16
		}
		addr := func(b []byte) netip.Addr {
			a, _ := netip.AddrFromSlice(append(b, make([]byte, size)...)[:size])
			return a
		}
		in := nftTable.Sets()[int(set)%len(nftTable.Sets())]
		n, v := nft.PortKey(in, family, model.Proto(proto), front), nft.Value{}
		if in.Key[0] == nft.Daddr {
			n = nft.AddrPortKey(in, model.Proto(proto), netip.AddrPortFrom(addr(at), front))
		}
		if in == nftAllowed {
			n = n.Within(netip.PrefixFrom(addr(to), int(bits)%(8*size+1)))
		}
		if in.Data == nft.DataEndpoint {
			v = nft.EndpointValue(netip.AddrPortFrom(addr(to), back))
		}
		if comment != "" {
			v.Body = &nft.Body{Comment: comment}
		}
		k, target, port, ok := entryIn(n, v)
		if !ok {
			return
		}
		nftObjects(k, []xtables.Rule{entryRule(k, target, port)}, func(again nft.Key, same nft.Value) {
			if again != n || !same.Equal(v) {
				t.Errorf("%s came back as %s, %+v for %+v", n, again, same, v)
			}
		})
	})
}
