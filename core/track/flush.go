// SPDX-License-Identifier: Apache-2.0

package track

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// Flush resolves the dirty Services and returns what changed. Services whose
// result is the same as before give no Delta.
func (t *Tracker) Flush() []model.Delta {
	if t.host == nil {
		return nil
	}
	t.touchSuspects()
	t.wake(t.now())
	for i := 0; i < len(t.dirty); i++ { // others become dirty by it
		if s := t.dirty[i]; s.claimsStale {
			s.claimsStale = false
			t.updateClaims(s)
		}
	}
	var deltas []model.Delta
	for _, s := range t.dirty {
		s.queued = false
		deltas = t.resolve(deltas, s)
	}
	clear(t.flushed) // they may be gone
	t.flushed, t.dirty = t.dirty, t.flushed[:0]
	// A queue that once held everything must not stay that large forever.
	if cap(t.dirty) > 4096 {
		t.dirty = nil
	}
	t.stats.Deltas += uint64(len(deltas))
	return deltas
}

func (t *Tracker) resolve(deltas []model.Delta, s *service) []model.Delta {
	var r resolve.Result
	if s.object != nil {
		t.stats.Resolved++
		r = resolve.Service(t.host, s.object, t.warmed(s, resolve.MarkUnanswered(s.slices, t.suspects)), t.routesOf(s.name)...)
		t.removeLost(s, &r)
		r.Problems = append(slices.Clone(s.excess), model.More(r.Problems, r.More)...)
	}
	old := portIndex{ports: s.ports}
	for _, p := range r.Problems {
		if !slices.Contains(s.problems, p) {
			t.fresh = append(t.fresh, p)
		}
	}
	s.problems = r.Problems
	s.ports = r.Ports
	for i, port := range r.Ports {
		before := old.find(port.ID, i)
		resolve.Reslot(port, before, t.slots)
		if port.Equal(before) {
			s.ports[i] = before // keep the old value: pointers stay comparable, memory is shared
			continue
		}
		deltas = append(deltas, model.Delta{Old: before, New: port})
	}
	now := portIndex{ports: s.ports}
	for i, port := range old.ports {
		if now.find(port.ID, i) == nil {
			deltas = append(deltas, model.Delta{Old: port})
		}
	}
	if s.object == nil {
		t.stopWarming(s)
	}
	if s.object == nil && len(s.slices) == 0 {
		delete(t.services, s.name)
	}
	return deltas
}

// portIndex finds ports of a Service by their ids.
type portIndex struct {
	ports []*model.Port
	ids   map[model.PortID]*model.Port // once they are many and have moved
}

// find finds a port, most likely at its old place; nil when it is not there.
func (a *portIndex) find(id model.PortID, place int) *model.Port {
	const few = 16 // not worth a map
	switch {
	case place < len(a.ports) && a.ports[place].ID == id:
		return a.ports[place]
	case len(a.ports) <= few:
		if i := slices.IndexFunc(a.ports, func(p *model.Port) bool { return p.ID == id }); i >= 0 {
			return a.ports[i]
		}
		return nil
	case a.ids == nil:
		a.ids = make(map[model.PortID]*model.Port, len(a.ports))
		for _, p := range a.ports {
			a.ids[p.ID] = p
		}
	}
	return a.ids[id]
}

// removeLost takes the frontends from a result that another Service holds, or that give way
// to an address of another one.
func (t *Tracker) removeLost(s *service, r *resolve.Result) {
	for _, p := range r.Ports {
		p.Frontends = slices.DeleteFunc(p.Frontends, func(f model.Frontend) bool {
			loss := t.lostTo(s, resolve.Address{Kind: f.Kind, Proto: p.ID.Proto, At: f.At})
			if loss == "" {
				return false
			}
			r.Problem(s.object, model.WhyFrontendTaken, "%s", loss)
			return true
		})
	}
}

// lostTo names the holder that a Service has lost an address to; empty where it has it.
func (t *Tracker) lostTo(s *service, a resolve.Address) string {
	for _, above := range resolve.OutrankedBy(t.host, a) {
		if holder := t.claims.holder[claim{above.At, above.Proto}]; holder != nil && holder != s {
			what := above.Kind.String()
			if above.At.Port() != 0 {
				what += fmt.Sprintf(" %d", above.At.Port())
			}
			return fmt.Sprintf("%s %s (%s) is a %s of Service %s", a.Kind, a.At, a.Proto, what, holder.name)
		}
	}
	if holder := t.claims.holder[claim{a.At, a.Proto}]; holder != s {
		return fmt.Sprintf("%s %s (%s) belongs to Service %s", a.Kind, a.At, a.Proto, holder.name)
	}
	return ""
}

// Service is the state of one Service, for people.
type Service struct {
	Object   *model.Service
	Slices   []*model.Slice
	Ports    []*model.Port
	Problems []model.Problem
	// Ready is when each endpoint became ready, with slow start; the zero time for those
	// that always were. Nil without.
	Ready map[netip.Addr]time.Time
	// Queued means that the inputs have changed since: the next Flush resolves them.
	Queued bool
}

// Flushed ranges over what the last Flush looked at, by name. The Object of those
// that are gone is nil. It costs what that Flush did.
func (t *Tracker) Flushed() iter.Seq2[model.ServiceName, Service] {
	return func(yield func(model.ServiceName, Service) bool) {
		for _, s := range t.flushed {
			if !yield(s.name, s.view()) {
				return
			}
		}
	}
}

// Service returns one Service as last resolved; its Object is nil when there is
// none of that name.
func (t *Tracker) Service(name model.ServiceName) Service {
	if s := t.services[name]; s != nil {
		return s.view()
	}
	return Service{}
}

// Len returns how many Services there are.
func (t *Tracker) Len() int { return t.objects }

func (s *service) view() Service {
	return Service{s.object, s.slices, s.ports, s.problems, s.since, s.queued}
}

// kept is a view that stays unchanged: all but the list of slices is immutable, and
// that is copied before its next change.
func (s *service) kept() Service {
	s.shared = true
	return s.view()
}

// Named returns the Service of a name, if there is one, as a list.
func (t *Tracker) Named(n model.ServiceName) []Service {
	if s := t.services[n]; s != nil && s.object != nil {
		return []Service{s.kept()}
	}
	return nil
}

// Concerned returns the Services without which a packet to an address would fare
// otherwise: they hold the address, its cluster IP or a port of that, or the node port of
// its number.
func (t *Tracker) Concerned(p model.Proto, to netip.AddrPort) (all []Service) {
	any := model.FamilyOf(to.Addr()).Unspecified()
	whole := claim{at: netip.AddrPortFrom(to.Addr(), 0)}
	found := slices.Clone(t.claims.rivals[whole]) // they may hold other ports
	for _, c := range []claim{whole, {to, p}, {netip.AddrPortFrom(any, to.Port()), p}} {
		found = append(found, t.claims.holder[c])
	}
	for i, s := range found {
		if s != nil && s.object != nil && slices.Index(found, s) == i {
			all = append(all, s.kept())
		}
	}
	return all
}

// Services lists all Services by name. It walks everything: for requests of
// users, never for a change.
func (t *Tracker) Services() []Service {
	all := t.Unsorted()
	SortServices(all)
	return all
}

// SortServices sorts by name: most of what a list costs.
func SortServices(all []Service) {
	order := make([]*Service, len(all)) // which are cheaper to move
	for i := range all {
		order[i] = &all[i]
	}
	slices.SortFunc(order, func(a, b *Service) int { return a.Object.Name.Compare(b.Object.Name) })
	sorted := make([]Service, len(all))
	for i, s := range order {
		sorted[i] = *s
	}
	copy(all, sorted)
}

// Unsorted lists all Services.
func (t *Tracker) Unsorted() []Service {
	all := make([]Service, 0, len(t.services))
	for _, s := range t.services {
		if s.object != nil {
			all = append(all, s.kept())
		}
	}
	return all
}

// Set adds or replaces objects, all but Nodes and ServiceCIDRs.
func (t *Tracker) Set(in *model.Objects) {
	for _, s := range in.Services {
		t.SetService(s)
	}
	for _, s := range in.Slices {
		t.SetSlice(s)
	}
	for _, g := range in.Grants {
		t.SetGrant(g)
	}
	for _, r := range in.Routes {
		t.SetRoute(r)
	}
}

// Once resolves a whole set of inputs at once, for plans and tests. Services
// are in order of name, and so are their ports.
func Once(host *model.Host, in *model.Objects) ([]Service, []*model.Port) {
	t := New()
	t.SetHost(host)
	t.Set(in)
	t.Flush()
	all := t.Services()
	var ports []*model.Port
	for _, s := range all {
		ports = append(ports, s.Ports...)
	}
	return all, ports
}
