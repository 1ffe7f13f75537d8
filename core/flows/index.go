package flows

import (
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// Index is a set of matches, one for each front, in the order of their first
// appearance. It finds the match of a flow in constant time. The zero value is
// empty. It may be read from several goroutines but not changed meanwhile.
type Index struct {
	at      map[front]int
	matches []Match
}

type front struct {
	proto model.Proto
	at    netip.AddrPort
}

// IndexOf returns an index of the given matches; later ones about the same front
// correct earlier ones.
func IndexOf(matches []Match) *Index {
	x := &Index{at: make(map[front]int, len(matches))}
	for _, m := range matches {
		x.Add(m)
	}
	return x
}

// Add adds a match, or merges it with the one that is there for its front.
func (x *Index) Add(m Match) {
	key := front{m.Proto, m.Frontend}
	if i, ok := x.at[key]; ok {
		x.matches[i] = x.matches[i].then(m)
		return
	}
	if x.at == nil {
		x.at = map[front]int{}
	}
	x.at[key] = len(x.matches)
	x.matches = append(x.matches, m)
}

// Len is the number of matches.
func (x *Index) Len() int { return len(x.matches) }

// Matches returns the matches. They belong to the index.
func (x *Index) Matches() []Match { return x.matches }

// Stale reports whether any match says that f is stale. The match of an address
// goes before that of a node port with the same number, as in the data planes.
func (x *Index) Stale(f Flow) bool {
	m := x.find(f.Proto, f.Dst)
	if m == nil {
		m = x.find(f.Proto, netip.AddrPortFrom(model.FamilyOf(f.Dst.Addr()).Unspecified(), f.Dst.Port()))
	}
	return m != nil && m.Stale(f)
}

// has reports whether a match about the front of m is there.
func (x *Index) has(m Match) bool { return x.find(m.Proto, m.Frontend) != nil }

// revise tells matches about the fronts of p who serves them now.
func (x *Index) revise(p *model.Port) {
	var keep Set
	for _, f := range p.Frontends {
		if m := x.find(p.ID.Proto, f.At); m != nil {
			if keep == nil {
				keep = live(p)
			}
			m.Keep = keep
		}
	}
}

func (x *Index) find(proto model.Proto, at netip.AddrPort) *Match {
	i, ok := x.at[front{proto, at}]
	if !ok {
		return nil
	}
	return &x.matches[i]
}
