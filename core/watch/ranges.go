package watch

import (
	"net/netip"
	"slices"
	"sync"
)

// ranges are the prefixes of all ServiceCIDRs. It is safe for concurrent use.
type ranges struct {
	mu     sync.Mutex
	held   map[string][]netip.Prefix
	all    []netip.Prefix // sorted, each once; replaced and never changed
	change func([]netip.Prefix)
}

// set replaces the prefixes of one ServiceCIDR; none removes it.
func (r *ranges) set(name string, ps []netip.Prefix) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held == nil {
		r.held = map[string][]netip.Prefix{}
	}
	r.held[name] = ps
	if len(ps) == 0 {
		delete(r.held, name)
	}
	var all []netip.Prefix
	for _, ps := range r.held {
		all = append(all, ps...)
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	all = slices.Compact(all)
	if slices.Equal(all, r.all) {
		return
	}
	r.all = all
	if r.change != nil {
		r.change(all)
	}
}

func (r *ranges) get() []netip.Prefix {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all
}
