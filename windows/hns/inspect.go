// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

var _ dataplane.Evaluator[Key, Value] = (*Compiler)(nil)

// Evaluate implements dataplane.Evaluator. What the virtual switch does with load
// balancers is assumed as in windows/hnsemu: what none is for goes its way;
// those without External answer this node's pods and processes only; node ports do
// not answer the node itself; with DSR endpoints see the client.
func (*Compiler) Evaluate(objects map[Key]Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
	return func(p oracle.Packet) oracle.Outcome {
		b := balancerFor(objects, host, p)
		if b == nil {
			return oracle.Outcome{Fate: oracle.Pass}
		}
		out := oracle.Outcome{Fate: oracle.Forward}
		for _, t := range b.Endpoints {
			a := t.Addr
			if a.IsUnspecified() {
				a, _ = host.Primary(model.FamilyOf(a))
			}
			k := Key{Kind: KindRemote, Addr: a}
			if _, there := objects[k]; !t.Local && !there && !slices.Contains(host.IPs, a) {
				continue // HNS cannot reach an endpoint that it does not have
			}
			hidden := !b.DSR || slices.Contains(host.IPs, p.Src)
			out.Endpoints = append(out.Endpoints, oracle.Target{
				Addr: netip.AddrPortFrom(a, b.Port), SNAT: hidden && !slices.Contains(host.IPs, a),
			})
		}
		slices.SortFunc(out.Endpoints, func(a, b oracle.Target) int { return a.Addr.Compare(b.Addr) })
		return out
	}
}

// balancerFor finds the load balancer of a packet: by its address, else as a node
// port.
func balancerFor(objects map[Key]Value, host *model.Host, p oracle.Packet) *Balancer {
	k := Key{Kind: KindBalancer, Proto: p.Proto, Port: p.Dst.Port(), Addr: p.Dst.Addr()}
	outside := p.Iface == oracle.Uplink
	if b := objects[k].Balancer; b != nil && (b.External || !outside) {
		return b
	}
	k.Addr = model.FamilyOf(p.Dst.Addr()).Unspecified()
	b := objects[k].Balancer
	if b == nil || p.Iface == "" || !slices.Contains(host.IPs, p.Dst.Addr()) || outside && !b.External {
		return nil
	}
	return b
}

// Text implements dataplane.Evaluator.
func (*Compiler) Text(_ Key, v Value) string { return v.String() }

// Opaque implements dataplane.Evaluator.
func (*Compiler) Opaque(Key, Value) bool { return false }
