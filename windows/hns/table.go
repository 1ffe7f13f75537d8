package hns

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
)

// table is what HNS is known to hold: what was read last, and what was done
// since. Reading takes long and changes do not wait for it, so a reading is
// merged in at its end, but for what was changed meanwhile. It is safe for
// concurrent use; methods in lower case of other types that take a table hold
// its lock.
type table struct {
	mu        sync.Mutex
	endpoints map[string]Endpoint     // by id
	byAddr    map[netip.Addr][]string // ids; nearly always one
	balancers map[Key]installed       // by frontend, whoever's
	facts     facts
	rootName  string // of the endpoint that stands for this node; constant
	root      string // its id; empty where it is not there

	reading bool            // a reading is on its way
	touched map[string]bool // ids that came and went meanwhile
	changed map[Key]bool    // frontends that were written meanwhile
}

// installed is the load balancer of a frontend.
type installed struct {
	lb LoadBalancer
	// single ones have this frontend only. Others are nobody's but their
	// maker's.
	single bool
}

func newTable(root string) *table {
	return &table{rootName: root, endpoints: map[string]Endpoint{}, byAddr: map[netip.Addr][]string{}, balancers: map[Key]installed{}}
}

// put adds or replaces an endpoint.
func (t *table) put(e Endpoint) {
	t.drop(e.ID)
	t.touch(e.ID)
	t.endpoints[e.ID] = e
	if e.Name == t.rootName && e.Name != "" {
		t.root = e.ID
	}
	for _, a := range addresses(e) {
		t.byAddr[a] = append(t.byAddr[a], e.ID)
	}
}

// drop removes an endpoint.
func (t *table) drop(id string) {
	t.touch(id)
	e, ok := t.endpoints[id]
	if !ok {
		return
	}
	delete(t.endpoints, id)
	if t.root == id {
		t.root = ""
	}
	for _, a := range addresses(e) {
		rest := slices.DeleteFunc(t.byAddr[a], func(o string) bool { return o == id })
		if t.byAddr[a] = rest; len(rest) == 0 {
			delete(t.byAddr, a)
		}
	}
}

func (t *table) touch(id string) {
	if t.reading {
		t.touched[id] = true
	}
}

// set notes the load balancer of a frontend; the zero value says there is none.
func (t *table) set(k Key, lb LoadBalancer) {
	if t.reading {
		t.changed[k] = true
	}
	if lb.ID == "" {
		delete(t.balancers, k)
		return
	}
	t.balancers[k] = installed{lb, true}
}

// find returns the endpoint for a target: for a local one this node's, and for a
// remote one whichever there is, this node's first. An endpoint of ours that
// stands where a pod of this node now is must not be taken for the pod.
func (t *table) find(target Target) (id string, ok bool) {
	if target.Addr.IsUnspecified() {
		return t.root, t.root != ""
	}
	for _, o := range t.byAddr[target.Addr] {
		switch remote := t.endpoints[o].Flags&FlagRemote != 0; {
		case !remote:
			return o, true
		case !target.Local && !ok && !strings.HasPrefix(t.endpoints[o].Name, vipPrefix):
			id, ok = o, true
		}
	}
	return id, ok
}

// own returns the endpoint of ours that a key names.
func (t *table) own(k Key) (Endpoint, bool) {
	for _, id := range t.byAddr[k.Addr] {
		if key, ok := ours(t.endpoints[id]); ok && key == k {
			return t.endpoints[id], true
		}
	}
	return Endpoint{}, false
}

// targetAddr returns which of an endpoint's addresses a frontend's family needs.
func (t *table) targetAddr(e Endpoint, front netip.Addr) netip.Addr {
	for _, a := range addresses(e) {
		if a.Is4() == front.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// begin starts a reading.
func (t *table) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reading, t.touched, t.changed = true, map[string]bool{}, map[Key]bool{}
}

// known returns an endpoint that was read before. An endpoint's address and MAC
// never change, so it need not be read again.
func (t *table) known(id string) (Endpoint, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.endpoints[id]
	return e, ok
}

// reading is what was read.
type reading struct {
	network   network
	sourceVIP netip.Addr
	endpoints []Endpoint
	balancers []LoadBalancer
}

// end merges a reading in; nil when it failed.
func (t *table) end(r *reading) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reading = false
	if r == nil {
		return
	}
	t.facts.network, t.facts.sourceVIP = r.network, r.sourceVIP
	t.merge(r.endpoints, t.touched)
	before := t.balancers
	t.balancers = make(map[Key]installed, len(r.balancers))
	for _, lb := range r.balancers {
		keys, single := keysOf(lb)
		for _, k := range keys {
			if !t.changed[k] {
				t.balancers[k] = installed{lb, single}
			}
		}
	}
	for k := range t.changed {
		if have, ok := before[k]; ok {
			t.balancers[k] = have
		}
	}
}

// refresh takes the endpoints that there are.
func (t *table) refresh(read []Endpoint) { t.merge(read, nil) }

// merge takes the endpoints that were read, but for those that came or went
// meanwhile.
func (t *table) merge(read []Endpoint, meanwhile map[string]bool) {
	seen := make(map[string]bool, len(read))
	for _, e := range read {
		seen[e.ID] = true
		if _, known := t.endpoints[e.ID]; !known && !meanwhile[e.ID] {
			t.put(e)
		}
	}
	for id := range t.endpoints {
		if !seen[id] && !meanwhile[id] {
			t.drop(id)
		}
	}
}
