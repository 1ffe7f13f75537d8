// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/track"
)

// Result is what inputs and configuration of a snapshot mean to its node.
type Result struct {
	Host     *model.Host
	Services []track.View // by name
	Ports    []*model.Port
	Plan     dataplane.Plan
	Problems []model.Problem
}

// Resolve decides again what a snapshot's inputs mean.
func (f *File) Resolve() *Result {
	r := &Result{Host: resolve.Host(&f.Config, f.Node, f.CIDRs, f.Machine)}
	r.Problems = resolve.HostProblems(&f.Config, f.Node, f.CIDRs, f.Machine)
	t := track.New()
	t.KeepSlots(f.slots())
	t.SetHost(r.Host)
	t.SetClock(func() time.Time { return f.At })
	t.SetSuspects(f.Suspects)
	t.Set(&model.Objects{Services: f.Services, Slices: f.Slices, Routes: f.Routes, Grants: f.Grants})
	for _, s := range f.Ready {
		t.SetReady(s.Service, s.Endpoints)
	}
	t.Flush()
	r.Services = t.Services()
	for _, s := range r.Services {
		r.Ports = append(r.Ports, s.Ports...)
		r.Problems = append(r.Problems, s.Problems...)
	}
	return r
}

// Replay resolves a snapshot and plans it in a mode.
func (f *File) Replay(m dataplane.Mode) *Result {
	r := f.Resolve()
	r.Plan = m.Plan(&f.Config, r.Host, r.Ports)
	return r
}

// KeepReady adds since when endpoints are ready, of the Services where one is still slowly
// starting.
func (f *File) KeepReady(services []track.View) {
	for _, s := range services {
		for _, at := range s.Ready {
			if f.At.Sub(at) < s.Object.Choice.SlowStart {
				f.Ready = append(f.Ready, Ready{s.Object.Name, s.Ready})
				break
			}
		}
	}
}

type frontend struct {
	proto model.Proto
	at    netip.AddrPort
	from  model.Origin
}

// slots are the orders of pools that the snapshot has.
func (f *File) slots() resolve.Slots {
	orders := make(map[frontend][]netip.AddrPort, len(f.Slots))
	for _, s := range f.Slots {
		orders[frontend{s.Proto, s.At, s.From}] = s.Endpoints
	}
	return func(p model.Proto, at netip.AddrPort, from model.Origin) []netip.AddrPort {
		return orders[frontend{p, at, from}]
	}
}

// KeepSlots adds the orders of the pools of desired ports that the inputs do not give
// by themselves. Even pools have the order of addresses then; what weighted ones have shows only when the
// inputs are resolved again.
func (f *File) KeepSlots(desired []*model.Port) {
	plain := sync.OnceValue(func() map[model.PortID]*model.Port {
		all := map[model.PortID]*model.Port{}
		for _, p := range f.Resolve().Ports {
			all[p.ID] = p
		}
		return all
	})
	for _, p := range desired {
		even, ordered := shapeOf(p)
		if even && ordered || !even && p.Equal(plain()[p.ID]) {
			continue
		}
		for i := range p.Frontends {
			f.keepSlots(p.ID.Proto, &p.Frontends[i])
		}
	}
}

// shapeOf reports whether all pools of a port are even, and in the order of addresses.
func shapeOf(p *model.Port) (even, ordered bool) {
	even, ordered = true, true
	for _, pool := range p.Pools() {
		even = even && pool.Table == nil
		ordered = ordered && slices.IsSortedFunc(pool.Endpoints, func(a, b model.Endpoint) int { return a.Addr.Compare(b.Addr) })
	}
	return even, ordered
}

// keepSlots adds the order of a frontend's pools.
func (f *File) keepSlots(proto model.Proto, front *model.Frontend) {
	for origin, act := range front.On {
		if act.Pool == nil || act.Pool.Size() < 2 {
			continue
		}
		s := Slot{Proto: proto, At: front.At, From: model.Origin(origin)}
		for i := range act.Pool.Size() {
			s.Endpoints = append(s.Endpoints, act.Pool.Slot(i).Addr)
		}
		f.Slots = append(f.Slots, s)
	}
}

// PlanHash is a hash of everything in a plan.
func PlanHash(p dataplane.Plan) string {
	h := sha256.New()
	fmt.Fprintf(h, "%d objects\n%s\n", p.Objects, p.Native)
	ids := make([]model.PortID, 0, len(p.Gaps))
	for id := range p.Gaps {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, model.PortID.Compare)
	for _, id := range ids {
		for _, g := range p.Gaps[id] {
			fmt.Fprintf(h, "%s %s %s\n", id, g.Frontend, g.Detail)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Sort brings the inputs into an order of their own, so that equal ones have equal
// text.
func (f *File) Sort() {
	slices.SortFunc(f.Services, func(a, b *model.Service) int { return a.Name.Compare(b.Name) })
	slices.SortFunc(f.Slices, func(a, b *model.Slice) int { return model.ServiceName(a.Name).Compare(model.ServiceName(b.Name)) })
	slices.SortFunc(f.CIDRs, func(a, b *model.ServiceCIDR) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(f.Routes, (*model.Route).Compare)
	slices.SortFunc(f.Grants, func(a, b *model.Grant) int { return model.ServiceName(a.Name).Compare(model.ServiceName(b.Name)) })
}
