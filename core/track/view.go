// SPDX-License-Identifier: Apache-2.0

package track

import (
	"iter"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// View is the state of one Service. Those of a list do not change any more: a change of the Service makes
// another one. Those of Service and Flushed, which are made for every change, are valid until the next one: what
// is in their Slices may be replaced.
type View struct {
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

// Service returns one Service as last resolved, until the next change; its Object is nil when there
// is none of that name.
func (t *Tracker) Service(name model.ServiceName) View {
	if s := t.services[name]; s != nil {
		return *s.View
	}
	return View{}
}

// Flushed ranges over what the last Flush looked at, by name, as Service returns it. The Object of
// those that are gone is nil. It costs what that Flush did.
func (t *Tracker) Flushed() iter.Seq2[model.ServiceName, View] {
	return func(yield func(model.ServiceName, View) bool) {
		for _, s := range t.flushed {
			if !yield(s.name, *s.View) {
				return
			}
		}
	}
}

// Named returns the Service of a name, if there is one, as a list.
func (t *Tracker) Named(n model.ServiceName) []*View {
	if s := t.services[n]; s != nil && s.Object != nil {
		t.lists++
		return []*View{s.View}
	}
	return nil
}

// Concerned returns the Services without which a packet to an address would fare
// otherwise: they hold the address, its cluster IP or a port of that, or the node port of
// its number.
func (t *Tracker) Concerned(p model.Proto, to netip.AddrPort) (all []*View) {
	t.lists++
	any := model.FamilyOf(to.Addr()).Unspecified()
	found := slices.Clone(t.claims.line(whole(to.Addr()))) // they may hold other ports
	for _, c := range []claim{{to, p}, {netip.AddrPortFrom(any, to.Port()), p}} {
		found = append(found, t.claims.holder(c))
	}
	var once model.Unique[*service]
	for _, s := range found {
		if s != nil && s.Object != nil && once.Add(s) {
			all = append(all, s.View)
		}
	}
	return all
}

// Services lists all Services by name. It walks everything: for requests of
// users, never for a change.
func (t *Tracker) Services() []*View {
	all := t.Unsorted()
	SortServices(all)
	return all
}

// Where processors are few a change may wait for the one that walks all Services, until the runtime
// interrupts it, which is after 10 ms: so that gives way now and then.
const (
	stretch  = 16   // Services to be resumed: some tens of microseconds
	compared = 1024 // comparisons of a sort: some hundred
)

// SortServices sorts by name: most of what a list costs.
func SortServices(all []*View) {
	n := 0
	slices.SortFunc(all, func(a, b *View) int {
		if n++; n%compared == 0 {
			runtime.Gosched()
		}
		return a.Object.Name.Compare(b.Object.Name)
	})
}

// Unsorted lists all Services. It looks at none of them, and copies 8 bytes for each.
func (t *Tracker) Unsorted() []*View {
	t.lists++
	return slices.Clone(t.list)
}

// Settled reports whether all Services are resolved as of a time: the next Flush would
// resolve none.
func (t *Tracker) Settled(now time.Time) bool {
	next := t.Next()
	return t.host != nil && len(t.dirty)+len(t.entailed)+len(t.resuspect)+len(t.claims.changed) == 0 && (next.IsZero() || now.Before(next))
}

// Len returns how many Services there are.
func (t *Tracker) Len() int { return len(t.list) }

// Routes returns the routes there are, by precedence.
func (t *Tracker) Routes() []*model.Route {
	return sorted(t.routes.all, (*model.Route).Compare)
}

// Grants returns the grants there are, by name.
func (t *Tracker) Grants() []*model.Grant {
	return sorted(t.routes.grants, func(a, b *model.Grant) int {
		return model.ServiceName(a.Name).Compare(model.ServiceName(b.Name))
	})
}

// HasRoute reports whether there is a route.
func (t *Tracker) HasRoute(name model.RouteName) bool { return t.routes.all[name] != nil }

// HasGrant reports whether there is a grant.
func (t *Tracker) HasGrant(name model.GrantName) bool { return t.routes.grants[name] != nil }

func sorted[K comparable, V any](all map[K]V, compare func(a, b V) int) []V {
	list := make([]V, 0, len(all))
	for _, v := range all {
		list = append(list, v)
	}
	slices.SortFunc(list, compare)
	return list
}
