package conformance

import (
	"fmt"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// compiled is a world in the objects of one data plane.
type compiled[K comparable, V any] struct {
	objects map[K]V // everything
	ported  map[K]V // what ports emit and the base does not
	gaps    map[model.PortID][]model.Gap
}

// compile runs a compiler over a world. The error names a key that was emitted
// with two values, which the contract of Compiler forbids.
func compile[K comparable, V any](c dataplane.Compiler[K, V], host *model.Host, ports []*model.Port) (compiled[K, V], error) {
	out := compiled[K, V]{objects: map[K]V{}, ported: map[K]V{}, gaps: map[model.PortID][]model.Gap{}}
	var err error
	put := func(who string, k K, v V) (known bool) {
		old, known := out.objects[k]
		if known && !c.Equal(old, v) && err == nil {
			err = fmt.Errorf("%s emits %v as %v, which was emitted as %v before", who, k, v, old)
		}
		out.objects[k] = v
		return known
	}
	c.Base(host, func(k K, v V) { put("the base", k, v) })
	for _, port := range ports {
		gaps := c.Port(host, port, func(k K, v V) {
			known := put(port.ID.String(), k, v)
			if _, again := out.ported[k]; again || !known {
				out.ported[k] = v
			}
		})
		if len(gaps) > 0 {
			out.gaps[port.ID] = gaps
		}
	}
	return out, err
}

// excuse returns the gap that covers a packet, if any: one for the whole port,
// for the very front, or, with port 0, for the ports of an address that no
// Service has claimed. A gap never covers packets to other fronts.
func excuse(gaps map[model.PortID][]model.Gap, p oracle.Packet, want oracle.Outcome) (model.Gap, bool) {
	front := p.Dst
	switch {
	case want.Why == model.WhyNotOurs:
		return model.Gap{}, false
	case want.Why == model.WhyNoSuchPort:
		front = netip.AddrPortFrom(p.Dst.Addr(), 0)
	case want.Kind == model.KindNodePort:
		front = netip.AddrPortFrom(model.FamilyOf(p.Dst.Addr()).Unspecified(), p.Dst.Port())
	}
	for _, g := range gaps[want.Port] {
		whole := g.Frontend == netip.AddrPort{} && want.Why != model.WhyNoSuchPort
		if whole || g.Frontend == front {
			return g, true
		}
	}
	return model.Gap{}, false
}
