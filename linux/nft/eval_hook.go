package nft

import (
	"cmp"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// attachment is a point in the path of packets of a family.
type attachment struct {
	model.Family
	Point
}

// hooks returns the chains of each point in the order in which packets meet them.
func hooks(objects map[Key]Value) map[attachment][]Key {
	all := map[attachment][]Key{}
	for k, v := range objects {
		if k.Kind == KindChain && v.Body.Chain.Hook.Type != "" {
			at := attachment{k.Family, v.Body.Chain.Hook.Point}
			all[at] = append(all[at], k)
		}
	}
	for _, chains := range all {
		slices.SortFunc(chains, func(a, b Key) int {
			return cmp.Compare(objects[a].Body.Chain.Hook.Priority, objects[b].Body.Chain.Hook.Priority)
		})
	}
	return all
}

// hook sends a packet through the chains attached to a point. Those of type nat
// that rewrite destinations do not see a packet whose destination was.
func (s *Sim) hook(at Point, start step) []step {
	ends := []step{start}
	for _, name := range s.hooks[attachment{start.family, at}] {
		nat := s.objects[name].Body.Chain.Hook.Type == "nat"
		var next []step
		for _, end := range ends {
			if end.to == rejected || end.to == dropped || nat && end.dnat && at != PostRouting {
				next = append(next, end)
			} else {
				next = append(next, s.chain(name.Name(), end.packet, 0)...)
			}
		}
		ends = next
	}
	return ends
}

// routed returns what becomes of a packet until it leaves or is delivered, but for
// its source address.
func (s *Sim) routed(p packet) (all []step) {
	if p.Iface == "" {
		return s.hook(LocalOut, step{packet: p, to: accepted})
	}
	for _, end := range s.hook(PreRouting, step{packet: p, to: accepted}) {
		if end.to == rejected || end.to == dropped || s.local(end.packet) {
			all = append(all, end)
		} else {
			all = append(all, s.hook(Forward, end)...)
		}
	}
	return all
}

// local reports whether a packet is for an address of the host.
func (s *Sim) local(p packet) bool {
	return p.Dst.Addr().IsLoopback() || slices.Contains(s.host.IPs, p.Dst.Addr())
}
