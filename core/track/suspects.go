// SPDX-License-Identifier: Apache-2.0

package track

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// SetSuspects replaces the addresses of endpoints that have stopped answering. The
// Services that have one of those that are new or gone are Due.
func (t *Tracker) SetSuspects(suspects model.Suspects) {
	for _, pair := range [][2]model.Suspects{{suspects, t.suspects}, {t.suspects, suspects}} {
		for a, back := range pair[0] {
			if was, both := pair[1][a]; !both || !was.Equal(back) {
				t.noteSuspect(a)
			}
		}
	}
	t.suspects = suspects
}

// noteSuspect has the Services of an address resolved.
func (t *Tracker) noteSuspect(a netip.Addr) {
	if t.resuspect == nil {
		t.resuspect = model.Suspects{}
	}
	t.resuspect[a] = time.Time{}
}

// touchSuspects entails the Services of the addresses that were noted since the last Flush.
func (t *Tracker) touchSuspects() {
	if len(t.resuspect) == 0 {
		return
	}
	for a := range t.resuspect {
		for slice := range t.slices.at(a) {
			t.stats.Suspected++
			s := t.services[ownerOf(slice)]
			t.entail(s)
			t.markBackend(s.name)
		}
	}
	t.resuspect = nil
}

// Suspects returns them, as last set.
func (t *Tracker) Suspects() model.Suspects { return t.suspects }

// ChangedSuspects returns the suspects that a source has changed since the last call. They
// stay suspects: whoever may write an EndpointSlice decides nothing about the addresses in it.
func (t *Tracker) ChangedSuspects() []netip.Addr {
	all := t.changed
	t.changed = nil
	return all
}

// noteChanged notes the suspects of a slice whose node or conditions have changed, and those that
// are not in it any more. Either slice may be nil.
func (t *Tracker) noteChanged(before, now *model.Slice) {
	if len(t.suspects) == 0 || before == nil {
		return
	}
	type said struct {
		node  string
		state model.EndpointState
	}
	is := map[netip.Addr]said{}
	if now != nil {
		for _, e := range now.Endpoints {
			is[e.Addr] = said{e.Node, e.State}
		}
	}
	for _, e := range before.Endpoints {
		_, suspect := t.suspects[e.Addr]
		if suspect && is[e.Addr] != (said{e.Node, e.State}) && !slices.Contains(t.changed, e.Addr) {
			t.changed = append(t.changed, e.Addr)
		}
	}
}

// Endpoint is an address and port on another node that takes connections.
type Endpoint struct {
	At      netip.AddrPort
	Node    string // empty where unknown
	Service model.ServiceName
}

// maxOf is how many endpoints of a Service RemoteOf returns: more than one node has of it.
const maxOf = 256

// RemoteOf returns ready endpoints, on other nodes, of the Service that has a
// TCP frontend, or of the named one where the frontend is the zero value. One that is no
// Service's own address may be a node port.
func (t *Tracker) RemoteOf(frontend netip.AddrPort, name model.ServiceName) (all []Endpoint) {
	s := t.services[name]
	if frontend.IsValid() {
		s = t.claims.holder(claim{frontend, model.TCP})
	}
	if s == nil && frontend.IsValid() {
		nodePort := netip.AddrPortFrom(model.FamilyOf(frontend.Addr()).Unspecified(), frontend.Port())
		s = t.claims.holder(claim{nodePort, model.TCP})
	}
	if s == nil || t.host == nil {
		return nil
	}
	for _, slice := range t.backing(s) {
		for e := range t.remote(slice) {
			if all = append(all, e); len(all) == maxOf {
				return all
			}
		}
	}
	return all
}

// Backing returns the slices whose endpoints a Service may use.
func (t *Tracker) Backing(name model.ServiceName) []*model.Slice {
	if s := t.services[name]; s != nil {
		return t.backing(s)
	}
	return nil
}

// backing returns the slices whose endpoints a Service may use: its own, and those of
// the backends of its routes.
func (t *Tracker) backing(s *service) []*model.Slice {
	all := s.Slices
	if len(t.routes.all) == 0 {
		return all
	}
	for _, route := range t.routes.of(s.name) {
		for _, b := range route.Backends {
			if of := t.services[b.Service]; of != nil {
				all = append(all[:len(all):len(all)], of.Slices...)
			}
		}
	}
	return all
}

// maxAt is how many endpoints of a namespace at one address RemoteAt returns: a pod has a few ports.
const maxAt = 16

// RemoteAt returns the ready endpoints on other nodes that have an address: all TCP ports, of all
// Services, sorted. It costs the EndpointSlices that have the address. Of a namespace that has more than
// maxAt there it returns as many.
func (t *Tracker) RemoteAt(a netip.Addr) (all []Endpoint) {
	found := map[string]int{} // by namespace
	for slice, e := range t.At(a) {
		for at := range t.remoteOf(slice, e) {
			if found[at.Service.Namespace]++; found[at.Service.Namespace] <= maxAt {
				all = append(all, at)
			}
		}
	}
	slices.SortFunc(all, func(a, b Endpoint) int { return cmp.Or(a.At.Compare(b.At), a.Service.Compare(b.Service)) })
	return all
}

func (t *Tracker) remote(slice *model.Slice) iter.Seq[Endpoint] {
	return func(yield func(Endpoint) bool) {
		for i := range slice.Endpoints {
			for at := range t.remoteOf(slice, &slice.Endpoints[i]) {
				if !yield(at) {
					return
				}
			}
		}
	}
}

// remoteOf ranges over the TCP ports of one endpoint, if it is ready and on another node.
func (t *Tracker) remoteOf(slice *model.Slice, e *model.SliceEndpoint) iter.Seq[Endpoint] {
	return func(yield func(Endpoint) bool) {
		if t.host == nil || !e.State.Has(model.Ready) || e.Node != "" && e.Node == t.host.Name {
			return
		}
		for _, p := range slice.Ports {
			if p.Proto == model.TCP && !yield(Endpoint{netip.AddrPortFrom(e.Addr, p.Port), e.Node, ownerOf(slice)}) {
				return
			}
		}
	}
}
