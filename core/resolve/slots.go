// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// Slots returns the endpoints of a frontend's installed slots for an origin, in order;
// nil when it has none. It is how a data plane's numbering survives a restart.
type Slots func(proto model.Proto, at netip.AddrPort, from model.Origin) []netip.AddrPort

// Reslot gives the pools of a freshly resolved port the slot order of the port
// it replaces or, when there is none, the installed one. It must be called
// before the port is handed on.
func Reslot(port, old *model.Port, installed Slots) {
	if port.Scheduler == model.Maglev { // its slots are the same everywhere
		return
	}
	before := model.IndexFrontends(old)
	for _, pool := range port.Pools() {
		if order := predecessor(port, pool, old, &before, installed); len(order) > 0 {
			pool.Reslot(order)
		}
	}
}

// predecessor finds the order of the pool that served the same frontend and origin
// before.
func predecessor(port *model.Port, pool *model.Pool, old *model.Port, before *model.FrontendIndex, installed Slots) []netip.AddrPort {
	for i := range port.Frontends {
		f := &port.Frontends[i]
		for origin, act := range slices.Backward(f.On[:]) { // FromOutside first, whose answer is most often that of all
			if act.Pool != pool {
				continue
			}
			if old == nil {
				if order := installed(port.ID.Proto, f.At, model.Origin(origin)); len(order) > 0 {
					return order
				}
				continue
			}
			if was := before.Find(i, f.At); was != nil && was.On[origin].Pool != nil {
				return addresses(was.On[origin].Pool)
			}
		}
	}
	return nil
}

func addresses(p *model.Pool) []netip.AddrPort {
	addrs := make([]netip.AddrPort, p.Size())
	for i := range addrs {
		addrs[i] = p.Slot(i).Addr
	}
	return addrs
}
