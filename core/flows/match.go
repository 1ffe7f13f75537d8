// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// Match states which flows to one frontend are stale. A flow from an endpoint in Keep
// never is; one from an endpoint in Gone always is; Reach decides about the rest.
// A Match is immutable.
type Match struct {
	Namespace string // of the Service whose change makes them stale
	Proto     model.Proto

	// Frontend is the original destination. For a node port it has the unspecified
	// address of the family, which matches any.
	Frontend netip.AddrPort

	// Own are the addresses on which a node port is known to answer; nil for
	// other frontends. A flow to the same port of any other address may not be a Service's:
	// only Gone decides.
	Own []netip.Addr

	Reach Reach
	Gone  Set // endpoints that served the frontend and no longer do
	Keep  Set // endpoints that serve it now
}

// Reach is which flows a Match covers besides those to known endpoints.
type Reach uint8

// The reaches, each wider than the one before.
const (
	OnlyGone   Reach = iota // no others: the frontend has only lost the endpoints in Gone
	Translated              // all translated flows: the frontend was removed
	Everything              // untranslated ones too: the frontend is new, or has its first endpoints
)

// maxGone bounds the endpoints that a Match remembers through merges.
const maxGone = 1024

// Family returns the IP family of the match's flows.
func (m *Match) Family() model.Family { return model.FamilyOf(m.Frontend.Addr()) }

// AnyAddr reports whether the match is about a node port.
func (m *Match) AnyAddr() bool { return m.Frontend.Addr().IsUnspecified() }

// Stale reports whether f is a stale flow to the match's frontend.
func (m *Match) Stale(f Flow) bool {
	if !m.covers(f) || m.Keep.Has(f.From) || f.Answered && !connectionless(f.Proto) {
		return false
	}
	if m.Gone.Has(f.From) {
		return true
	}
	if m.AnyAddr() && !slices.Contains(m.Own, f.Dst.Addr()) {
		return false
	}
	return m.Reach == Everything || m.Reach == Translated && f.Translated()
}

func (m *Match) covers(f Flow) bool {
	if m.Proto != f.Proto || m.Frontend.Port() != f.Dst.Port() {
		return false
	}
	return m.Frontend == f.Dst || m.AnyAddr() && m.Family() == model.FamilyOf(f.Dst.Addr())
}

// merge returns the combination of m and a later n about the same frontend.
func (m *Match) merge(n Match) Match {
	if n.Reach == OnlyGone {
		n.Reach = m.Reach
	}
	latest := n.Gone
	n.Gone = m.Gone.union(n.Gone)
	if len(n.Gone) > maxGone && len(m.Gone) > 0 {
		// Current endpoints are in Keep, so all other translated flows of a frontend that
		// Tandem owns are stale: the list is not needed.
		n.Gone, n.Reach = latest, max(n.Reach, Translated)
	}
	if n.Reach >= Translated && !n.AnyAddr() {
		n.Gone = nil
	}
	return n
}

// Index is a set of matches, one for each frontend. It finds the match of a flow in constant time. The zero value is
// empty. It may be read from several goroutines but not changed meanwhile.
type Index struct {
	at      map[model.Destination]int
	matches []Match
	counts  map[string]int // of matches, by namespace
}

func (m *Match) to() model.Destination { return model.Destination{Proto: m.Proto, At: m.Frontend} }

// Add adds a match, or merges it with the one that is there for its frontend.
func (x *Index) Add(m Match) {
	to := m.to()
	if i, ok := x.at[to]; ok {
		x.count(x.matches[i].Namespace, -1)
		x.count(m.Namespace, 1)
		x.matches[i] = x.matches[i].merge(m)
		return
	}
	if x.at == nil {
		x.at, x.counts = map[model.Destination]int{}, map[string]int{}
	}
	x.count(m.Namespace, 1)
	x.at[to] = len(x.matches)
	x.matches = append(x.matches, m)
}

func (x *Index) count(namespace string, change int) {
	if x.counts[namespace] += change; x.counts[namespace] == 0 {
		delete(x.counts, namespace)
	}
}

// Len is the number of matches.
func (x *Index) Len() int { return len(x.matches) }

// Matches returns the matches. They belong to the index.
func (x *Index) Matches() []Match { return x.matches }

// Stale reports whether any match states that f is stale. The match of an address
// goes before that of a node port with the same number, as in the data planes.
func (x *Index) Stale(f Flow) bool {
	m := x.find(f.Proto, f.Dst)
	if m == nil {
		m = x.find(f.Proto, netip.AddrPortFrom(model.FamilyOf(f.Dst.Addr()).Unspecified(), f.Dst.Port()))
	}
	return m != nil && m.Stale(f)
}

// shrink removes matches until there are no more than some number, and returns how many of
// each namespace. Always the namespace with the most gives way, with its latest.
func (x *Index) shrink(most int) map[string]int {
	if x.Len() <= most {
		return nil
	}
	excess := map[string]int{}
	for namespace, keep := range model.Shares(x.counts, most) {
		if has := x.counts[namespace]; keep < has {
			excess[namespace] = has - keep
		}
	}
	gone := maps.Clone(excess)
	for i := x.Len() - 1; i >= 0 && x.Len() > most; i-- {
		if t := x.matches[i].Namespace; excess[t] > 0 {
			excess[t]--
			x.remove(i)
		}
	}
	return gone
}

// remove removes a match; the last one takes its place.
func (x *Index) remove(i int) {
	last := len(x.matches) - 1
	delete(x.at, x.matches[i].to())
	x.count(x.matches[i].Namespace, -1)
	if i != last {
		x.matches[i] = x.matches[last]
		x.at[x.matches[i].to()] = i
	}
	x.matches[last] = Match{}
	x.matches = x.matches[:last]
}

// keepOnly sets the current endpoints in matches about the frontends of p.
func (x *Index) keepOnly(p *model.Port) {
	x.keep(p, func(_, endpoints Set) Set { return endpoints })
}

// alsoKeep adds endpoints to matches about the frontends of p.
func (x *Index) alsoKeep(p *model.Port) { x.keep(p, Set.union) }

func (x *Index) keep(p *model.Port, combine func(old, endpoints Set) Set) {
	var endpoints Set
	for _, f := range p.Frontends {
		if m := x.find(p.ID.Proto, f.At); m != nil {
			if endpoints == nil {
				endpoints = liveEndpoints(p)
			}
			m.Keep = combine(m.Keep, endpoints)
		}
	}
}

func (x *Index) find(proto model.Proto, at netip.AddrPort) *Match {
	i, ok := x.at[model.Destination{Proto: proto, At: at}]
	if !ok {
		return nil
	}
	return &x.matches[i]
}
