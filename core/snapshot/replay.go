// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/track"
	"github.com/tandem-proxy/tandem/core/wire"
)

// Result is what inputs and configuration of a snapshot mean to its node.
type Result struct {
	Host     *model.Host
	Services []*track.View // by name
	Ports    []*model.Port
	Plan     dataplane.Plan
	Problems []model.Problem
}

// Resolve decides again what a snapshot's inputs mean.
func (f *File) Resolve() *Result {
	r := &Result{Host: resolve.Host(&f.Config, f.Node, f.CIDRs, f.Machine)}
	r.Problems = resolve.HostProblems(&f.Config, f.Node, f.CIDRs, f.Machine, true)
	t := track.New()
	t.KeepSlots(f.slots())
	t.SetHost(r.Host)
	t.SetClock(func() time.Time { return f.At })
	t.SetSuspects(f.Suspects)
	t.SetAll(&model.Objects{Nodes: f.Others, Services: f.Services, Slices: f.Slices, Routes: f.Routes, Grants: f.Grants})
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

// Document is what a snapshot means, planned in its mode, with what it had recorded; and how that compares with what the
// node had when it was taken.
func (f *File) Document(m dataplane.Mode) (*question.Document, Likeness) {
	r := f.Resolve()
	d := question.Planned(m, &f.Config, &engine.Snapshot{
		At: f.At, Host: r.Host, Node: f.Node, CIDRs: f.CIDRs, Services: r.Services, Routes: f.Routes, Grants: f.Grants, Suspects: f.Suspects, Others: f.Others,
	})
	r.Plan = *d.Plan
	d.Rejected, d.ReadAt = r.Problems, f.ReadAt
	d.Facts.Version = f.Version
	d.Recorded = &question.Recorded{Status: f.Status, Drift: f.Drift, Top: f.Top}
	d.History = func(only history.Filter) (history.Document, int, iter.Seq[*history.Entry]) {
		found := f.History.Select(only)
		list := wire.ListOf(found.Entries)
		return found, list.Len, list.Each
	}
	if f.ReadAt.IsZero() {
		d.Plane.Unread = fmt.Errorf("the data plane is not in this snapshot: %s", cmp.Or(f.ReadErr, "the snapshot was taken without reading it"))
	}
	d.Plane.Trace = func(_ context.Context, ports []*model.Port, p oracle.Packet) (dataplane.Trace, error) {
		return d.Plan.Trace(ports, p, f.Observed)
	}
	return d, f.Compare(r)
}

// KeepReady adds since when endpoints are ready, of the Services where one is still slowly
// starting.
func (f *File) KeepReady(services []*track.View) {
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
// by themselves: by the first frontend and origin of each, which is where resolve.Reslot looks for them.
func (f *File) KeepSlots(desired []*model.Port) {
	for _, p := range desired {
		if p.Scheduler == model.Maglev { // its slots are the same everywhere
			continue
		}
		var known [2]*model.Pool // there are at most two of a port
		for i := range p.Frontends {
			for origin, act := range p.Frontends[i].On {
				if act.Pool == nil || act.Pool == known[0] || act.Pool == known[1] {
					continue
				}
				known[0], known[1] = act.Pool, known[0]
				if !act.Pool.Plain() {
					f.Slots = append(f.Slots, slotOf(p.ID.Proto, p.Frontends[i].At, model.Origin(origin), act.Pool))
				}
			}
		}
	}
}

func slotOf(proto model.Proto, at netip.AddrPort, from model.Origin, pool *model.Pool) Slot {
	s := Slot{Proto: proto, At: at, From: from, Endpoints: make([]netip.AddrPort, pool.Size())}
	for i := range s.Endpoints {
		s.Endpoints[i] = pool.Slot(i).Addr
	}
	return s
}

// Record records the ports of a result as those that the node had.
func (f *File) Record(r *Result) { f.Ports = question.PortsHash(r.Host, r.Ports) }

// Likeness is how a result compares with what the node had when the snapshot was taken.
type Likeness uint8

const (
	Differs    Likeness = iota
	Same                // as far as it is recorded
	Unrecorded          // nothing is recorded that this version can compare: another one may hash ports differently
)

// Compare compares a result with what the node had when the snapshot was taken.
func (f *File) Compare(r *Result) Likeness {
	likeness := Unrecorded
	if question.PortsHashComparable(f.Ports) {
		if f.Ports != question.PortsHash(r.Host, r.Ports) {
			return Differs
		}
		likeness = Same
	}
	if f.Plan != "" {
		if f.Plan != PlanHash(r.Plan) {
			return Differs
		}
		likeness = Same
	}
	return likeness
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
	slices.SortFunc(f.Slices, func(a, b *model.Slice) int { return a.Name.Compare(b.Name) })
	slices.SortFunc(f.CIDRs, func(a, b *model.ServiceCIDR) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(f.Routes, (*model.Route).Compare)
	slices.SortFunc(f.Grants, func(a, b *model.Grant) int { return a.Name.Compare(b.Name) })
}
