// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/sleep"
)

// inventory is the one record of HNS: the objects that it had at the last reading and those
// written since, which of them are ours, and which have no effect. What is ours shows by the
// name of an endpoint, and by the journal of load balancers.
//
// Reading takes long and changes do not wait for it, so a reading is merged in at its end,
// except for objects changed meanwhile. It is safe for concurrent use: the methods that say
// so take its lock, and the callers of all others hold it.
type inventory struct {
	journal  *journal // has a lock of its own
	rootName string   // of the endpoint that represents this node; constant
	dsr      bool     // pods need loopback DSR; constant

	mu        sync.Mutex
	endpoints map[string]Endpoint     // by id
	byAddr    map[netip.Addr][]string // ids; nearly always one
	root      string                  // id of the endpoint that represents this node; empty where it is not there
	adopted   map[Key]bool            // endpoints of others used instead of our own, by the key of those
	balancers map[Key]installed       // by frontend, of any owner
	surplus   map[Key][]string        // ids of our own beside those, by KindSurplus
	facts     facts

	unrouted   map[string]bool // ids of our own remote endpoints whose node the overlay does not name
	unroutedAt time.Time       // when the last of them was made or first seen

	replaced map[Key]pace // load balancers that were deleted and created again, and are there

	retries map[Key]retry  // of degraded objects that were re-created
	tenants map[Key]string // Balancer.Namespace of those that are there
	shares  map[string]int // how many without DSR each of these has
	most    int            // as many as there are ports for; constant

	now     findings // kept up to date with each change
	found   findings // of the last reading
	reading *reading // that is on its way; nil for none
}

// installed is the load balancer of a frontend.
type installed struct {
	lb LoadBalancer
	// single ones have this frontend only. Others belong to their
	// creator.
	single bool
}

// reading is a reading of HNS: what it has read, and what must be known of before it began
// and of the time since.
type reading struct {
	network   network
	sourceVIP netip.Addr
	chosenVIP bool
	endpoints []Endpoint
	balancers []LoadBalancer

	owned   map[string]bool // ids in the journal
	doubts  map[Key]try     // frontends with a load balancer that may be ours
	touched map[string]bool // ids that came and went since
	changed map[Key]bool    // frontends that were written since
}

func newInventory(j *journal, s Settings) *inventory {
	return &inventory{
		journal: j, rootName: s.Root, dsr: s.DSR,
		endpoints: map[string]Endpoint{}, byAddr: map[netip.Addr][]string{}, adopted: map[Key]bool{},
		balancers: map[Key]installed{}, retries: map[Key]retry{}, unrouted: map[string]bool{},
		replaced: map[Key]pace{},
		tenants:  map[Key]string{}, shares: map[string]int{}, most: cmp.Or(s.Ports, defaultPorts) / portsWithoutDSR,
	}
}

// put adds or replaces an endpoint.
func (t *inventory) put(e Endpoint) {
	t.drop(e.ID)
	t.touch(e.ID)
	t.endpoints[e.ID] = e
	t.count(e, 1)
	if t.trace(e); t.unrouted[e.ID] {
		t.unroutedAt = time.Now()
	}
	if e.Name == t.rootName && e.Name != "" {
		t.root = e.ID
	}
	for _, a := range addresses(e) {
		t.byAddr[a] = append(t.byAddr[a], e.ID)
	}
}

// drop removes an endpoint.
func (t *inventory) drop(id string) {
	t.touch(id)
	e, ok := t.endpoints[id]
	if !ok {
		return
	}
	delete(t.endpoints, id)
	delete(t.unrouted, id)
	t.count(e, -1)
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

func (t *inventory) touch(id string) {
	if t.reading != nil {
		t.reading.touched[id] = true
	}
}

// set takes the lock, and notes the load balancer of a frontend; the zero value for none.
func (t *inventory) set(k Key, lb LoadBalancer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reading != nil {
		t.reading.changed[k] = true
	}
	t.countBalancer(k, t.balancers[k].lb, -1)
	t.countBalancer(k, lb, 1)
	if lb.ID == "" {
		delete(t.balancers, k)
		delete(t.replaced, k)
		return
	}
	t.balancers[k] = installed{lb, true}
}

// replacing takes the lock, and notes that a load balancer was replaced in the time since.
func (t *inventory) replacing(k Key, begun time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, there := t.balancers[k]; there {
		p := t.replaced[k]
		p.done(begun)
		t.replaced[k] = p
	}
}

// balancer takes the lock, and returns the load balancer of a frontend.
func (t *inventory) balancer(k Key) (have installed, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	have, ok = t.balancers[k]
	return have, ok
}

// typeOf takes the lock, and returns what a load balancer is for, in kube-proxy's words. HNS has none for
// the address of a cloud's load balancer: it is an external IP.
func (t *inventory) typeOf(k Key, lb LoadBalancer) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case k.Addr.IsUnspecified():
		return "nodeport"
	case slices.ContainsFunc(lb.PortMappings, func(m PortMapping) bool { return m.Flags&FlagVIPExternalIP != 0 }):
		return "externalip"
	case slices.Equal(lb.HostComputeEndpoints, []string{t.root}):
		return "healthcheck"
	}
	return "clusterip"
}

// current takes the lock, and returns the facts as they are now.
func (t *inventory) current() facts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.facts
}

// endpoint takes the lock, and returns an endpoint that was read before. An endpoint's address
// and MAC never change, so only its state needs to be read again.
func (t *inventory) endpoint(id string) (Endpoint, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.endpoints[id]
	return e, ok
}

// route takes a later reading of the network, and reports whether a remote endpoint that is in use
// is behind another node by that.
func (t *inventory) route(n network) (moved bool) {
	old := t.facts.network
	t.facts.network = n
	if n.id == old.id && slices.Equal(n.remote, old.remote) {
		return false
	}
	clear(t.unrouted)
	for _, e := range t.endpoints {
		moved = t.trace(e) || moved
	}
	return moved
}

// trace notes an endpoint of ours whose node the overlay does not name, and reports whether a
// remote one in use is behind another node than the overlay says.
func (t *inventory) trace(e Endpoint) (moved bool) {
	if !t.facts.network.overlay || !e.remote() {
		return false
	}
	for _, a := range addresses(e) {
		k := Key{Kind: KindRemote, Addr: a}
		named, ok := ownedKey(e)
		own := ok && named == k
		if !own && !t.adopted[k] {
			continue
		}
		switch _, known := t.facts.network.provider(a); {
		case known:
			moved = moved || !sameProvider(e, t.facts.endpoint(k, Value{}))
		case own:
			t.unrouted[e.ID] = true
		}
	}
	return moved
}

// routeEvery is how often the network is read again for the nodes of unrouted endpoints: a CNI
// plug-in has the route of a node that joins within seconds. Addresses outside of the
// cluster never get one, so that readings become rarer.
const routeEvery = 5 * time.Second

// waits takes the lock, and reports whether endpoints wait for a route that has not been looked for
// since a time for long enough: a tenth of the time that they have been waiting.
func (t *inventory) waits(since time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.unrouted) > 0 && time.Since(since) >= max(routeEvery, time.Since(t.unroutedAt)/paceShare)
}

// find returns the endpoint for a target: for a local one this node's, and for a
// remote one any that exists, this node's first. An owned endpoint that
// has the address of a pod that is now on this node must not be taken for the pod's.
func (t *inventory) find(target Target) (id string, ok bool) {
	if target.Addr.IsUnspecified() {
		return t.root, t.root != ""
	}
	for _, o := range t.byAddr[target.Addr] {
		switch remote := t.endpoints[o].remote(); {
		case !remote:
			return o, true
		case !target.Local && !ok && !strings.HasPrefix(t.endpoints[o].Name, vipPrefix):
			id, ok = o, true
		}
	}
	return id, ok
}

// own returns the owned endpoint that a key names.
func (t *inventory) own(k Key) (Endpoint, bool) {
	for _, id := range t.byAddr[k.Addr] {
		if key, ok := ownedKey(t.endpoints[id]); ok && key == k {
			return t.endpoints[id], true
		}
	}
	return Endpoint{}, false
}

// foreign returns an endpoint that others have made for the address of a key: of a
// pod of this node, else a remote one.
func (t *inventory) foreign(k Key) (e Endpoint, ok bool) {
	for _, id := range t.byAddr[k.Addr] {
		o := t.endpoints[id]
		if _, own := ownedKey(o); own {
			continue
		}
		if e, ok = o, true; !o.remote() {
			break
		}
	}
	return e, ok
}

// adoptable returns the endpoint that others have made for the address of a key, if any, and
// whether it leads where the one of the key would.
func (t *inventory) adoptable(k Key, v Value) (e Endpoint, there, ok bool) {
	if e, there = t.foreign(k); !there {
		return e, false, false
	}
	want := t.facts.endpoint(k, v)
	ok = k.Kind != KindVIP || sameMAC(e, want)
	return e, true, ok && (!e.remote() || sameProvider(e, want) && !t.repairable(k, e.degraded()))
}

// duplicate returns the address of a remote endpoint that a pod of this node has,
// too.
func (t *inventory) duplicate(e Endpoint) (netip.Addr, bool) {
	if !e.remote() {
		return netip.Addr{}, false
	}
	for _, a := range addresses(e) {
		if _, ok := t.find(Target{a, true}); ok {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// readEndpoint returns the object that an owned remote endpoint is.
func (t *inventory) readEndpoint(k Key, e Endpoint) Value {
	v := t.facts.endpointValue(k)
	switch want := t.facts.endpoint(k, v); {
	case !sameMAC(e, want):
		v.Drift = "MAC address " + e.MacAddress
	case !sameProvider(e, want):
		v.Drift = "behind " + providerOf(e).String()
	case t.repairable(k, e.degraded()):
		v.Drift = "degraded"
	}
	return v
}

// readBalancer returns the object of an installed load balancer. Anything that an
// object cannot express is its Drift.
func (t *inventory) readBalancer(k Key, lb LoadBalancer) Value {
	m := lb.PortMappings[0]
	b := &Balancer{
		Port:                m.InternalPort,
		DSR:                 lb.Flags&FlagDSR != 0,
		External:            m.Flags&FlagVIPExternalIP != 0,
		SessionAffinity:     m.DistributionType == DistributeBySource,
		PreserveDestination: m.Flags&FlagPreserveDIP != 0,
		Namespace:           t.tenants[k],
	}
	v := Value{Node: t.facts.node[model.FamilyOf(k.Addr)], Balancer: b}
	var lost int
	for _, id := range lb.HostComputeEndpoints {
		e, ok := t.endpoints[id]
		if !ok {
			lost++
			continue
		}
		target := Target{Local: !e.remote()}
		all := addresses(e)
		if i := slices.IndexFunc(all, func(a netip.Addr) bool { return a.Is4() == k.Addr.Is4() }); i >= 0 {
			target.Addr = all[i]
		}
		if id == t.root && !b.External {
			target = self(model.FamilyOf(k.Addr))
		}
		b.Endpoints = append(b.Endpoints, target)
		if best, _ := t.find(target); best != id {
			lost++
		}
	}
	slices.SortFunc(b.Endpoints, func(x, y Target) int { return x.Addr.Compare(y.Addr) })
	if lost > 0 {
		v.Drift = fmt.Sprintf("%d of its endpoints are gone or replaced", lost)
		return v
	}
	v.Drift = differs(lb, t.facts.balancer(k, v, lb.HostComputeEndpoints))
	if v.Drift == "" && t.repairable(k, lb.degraded()) {
		v.Drift = "degraded"
	}
	return v
}

// objects takes the lock, and returns our objects.
func (t *inventory) objects() map[Key]Value {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make(map[Key]Value, len(t.endpoints)+len(t.balancers))
	for f, a := range t.facts.node {
		all[nodeAddress(model.Family(f))] = Value{Node: a}
	}
	for _, e := range t.endpoints {
		if k, ok := ownedKey(e); ok {
			all[k] = t.readEndpoint(k, e)
		}
		if a, ok := t.duplicate(e); ok {
			all[Key{Kind: KindDuplicate, Addr: a}] = Value{}
		}
	}
	if _, ok := t.source(); ok && t.facts.network.overlay {
		all[sourceKey()] = t.readSource()
	}
	for k := range t.adopted {
		v := t.facts.endpointValue(k)
		if _, _, ok := t.adoptable(k, v); ok {
			all[k] = v
		}
	}
	for k, have := range t.balancers {
		if have.single && t.journal.owns(have.lb.ID) {
			all[k] = t.readBalancer(k, have.lb)
		}
	}
	for k, ids := range t.surplus {
		all[k] = Value{Drift: strings.Join(ids, " ")}
	}
	return all
}

// absent returns the load balancers that are ours by the journal and that HNS does not have.
func (t *inventory) absent() []string {
	ids := t.journal.all()
	for _, have := range t.balancers {
		delete(ids, have.lb.ID)
	}
	for _, surplus := range t.surplus {
		for _, id := range surplus {
			delete(ids, id)
		}
	}
	return slices.Sorted(maps.Keys(ids))
}

// begin takes the lock, and begins a reading.
func (t *inventory) begin() *reading {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reading = &reading{owned: t.journal.all(), doubts: t.journal.doubtful(), touched: map[string]bool{}, changed: map[Key]bool{}}
	return t.reading
}

// sort sorts load balancers by frontend. Of one frontend ours come before those of others, and a
// known one before any that has turned up since; the rest of ours is surplus.
// Those that were deleted meanwhile are left out.
func (t *inventory) sort(all []LoadBalancer) (by map[Key]installed, surplus map[Key][]string) {
	by, surplus = make(map[Key]installed, len(all)), map[Key][]string{}
	own := t.journal.owns
	for _, lb := range all {
		keys, single := keysOf(lb)
		ours := own(lb.ID)
		switch {
		case t.reading != nil && t.reading.touched[lb.ID]:
			continue
		case ours && !single:
			k := surplusKey(lb)
			surplus[k] = append(surplus[k], lb.ID)
			continue
		}
		for _, k := range keys {
			have, taken := by[k]
			switch {
			case !taken, ours && !own(have.lb.ID):
				by[k] = installed{lb, single}
			case ours && lb.ID == t.balancers[k].lb.ID:
				by[k] = installed{lb, single}
				surplus[k.surplus()] = append(surplus[k.surplus()], have.lb.ID)
			case ours:
				surplus[k.surplus()] = append(surplus[k.surplus()], lb.ID)
			}
		}
	}
	return by, surplus
}

// end takes the lock, and merges in the reading that has begun, or gives it up where it failed.
// An error is one of writing the journal.
func (t *inventory) end(failed bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.reading
	defer func() { t.reading = nil }()
	if failed {
		return nil
	}
	err := t.journal.own(r.doubts, r.balancers)
	t.route(r.network)
	t.merge(r.endpoints, r.touched)
	// One that was made meanwhile was not read. A pod with its address is none.
	if e, _ := t.source(); r.sourceVIP.IsValid() || !isSource(e) {
		t.facts.sourceVIP, t.facts.chosenVIP = r.sourceVIP, r.chosenVIP
	}
	t.countLoopback()
	before, surplus := t.balancers, t.surplus
	t.balancers, t.surplus = t.sort(r.balancers)
	for k := range r.changed {
		keep(t.balancers, before, k)
		keep(t.surplus, surplus, k.surplus())
	}
	t.countBalancers()
	maps.DeleteFunc(t.replaced, func(k Key, p pace) bool { return t.balancers[k].lb.ID == "" || time.Since(p.ended) > maxPause })
	t.now.unmapped = 0
	seen := make(map[string]bool, len(r.balancers))
	for _, lb := range r.balancers {
		seen[lb.ID] = true
		if len(lb.PortMappings) == 0 && !t.journal.owns(lb.ID) {
			t.now.unmapped++
		}
	}
	t.found = t.now
	maps.DeleteFunc(t.retries, func(k Key, r retry) bool { return time.Now().After(r.at) && !t.degraded(k) })
	return errors.Join(err, t.journal.prune(r.owned, seen))
}

// keep gives a key in a map what it has in another: maybe nothing.
func keep[V any](in, of map[Key]V, k Key) {
	delete(in, k)
	if v, ok := of[k]; ok {
		in[k] = v
	}
}

// merge takes the endpoints that were read, except those created or deleted
// meanwhile.
func (t *inventory) merge(read []Endpoint, meanwhile map[string]bool) {
	seen := make(map[string]bool, len(read))
	for _, e := range read {
		seen[e.ID] = true
		switch have, known := t.endpoints[e.ID]; {
		case meanwhile[e.ID]:
		case known && have.State == e.State:
			have.Health = e.Health
			t.endpoints[e.ID] = have
		case known:
			t.count(have, -1)
			have.State, have.Health = e.State, e.Health
			t.endpoints[e.ID] = have
			t.count(have, 1)
		default:
			t.put(e)
		}
	}
	for id := range t.endpoints {
		if !seen[id] && !meanwhile[id] {
			t.drop(id)
		}
	}
}

// degraded reports whether the object of a key is degraded.
func (t *inventory) degraded(k Key) bool {
	if k.Kind == KindBalancer {
		return t.balancers[k].lb.degraded()
	}
	if k.Kind == KindSource {
		e, _ := t.source()
		return isSource(e) && e.degraded()
	}
	e, _ := t.own(k)
	return e.degraded()
}

// source returns the endpoint of the source VIP, also if another program created it: one of this node, or Calico's,
// which is a remote one on overlays.
func (t *inventory) source() (e Endpoint, ok bool) {
	if id, ok := t.find(Target{t.facts.sourceVIP, true}); ok {
		return t.endpoints[id], true
	}
	for _, id := range t.byAddr[t.facts.sourceVIP] {
		if e := t.endpoints[id]; slices.Contains(sourceNames[:], e.Name) {
			return e, true
		}
	}
	return Endpoint{}, false
}

// readSource returns the object that the endpoint of the source VIP is. It is as it
// should be, no matter who made it; when degraded, it is re-created only if it is owned.
func (t *inventory) readSource() (v Value) {
	if e, _ := t.source(); isSource(e) && t.repairable(sourceKey(), e.degraded()) {
		v.Drift = "degraded"
	}
	return v
}

// Windows has 16,384 dynamic ports for TCP by default, of which each load balancer without
// DSR reserves 64 (Azure/AKS#1375): beyond half of them pods are at risk, and those of
// frontends that any tenant can create in numbers leave an eighth.
const (
	defaultPorts    = 16384
	portsWithoutDSR = 64
	reserve         = 8
)

// room takes the lock, and reports why a frontend gets no load balancer: one without DSR whose
// namespace has more of these than there is room for. One namespace alone has half of the room
// at most, two have a third each. What is there keeps its place.
func (t *inventory) room(k Key, b *Balancer) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	have, there := t.balancers[k]
	if b.Namespace == "" || there && have.lb.Flags&FlagDSR == 0 {
		return nil
	}
	room := t.most - t.most/reserve
	if free := room - t.now.withoutDSR; free <= 0 || t.shares[b.Namespace] > free {
		return fmt.Errorf("no ports of the node are left for it: all %d load balancers without DSR that fit are in use, or this namespace has more than its share; "+
			"have fewer external IPs and node ports, use externalTrafficPolicy Local, or widen the dynamic port range (--winkernel-dynamic-ports)", room)
	}
	t.tenants[k] = b.Namespace // it counts once it is there
	return nil
}

// assign takes the lock, and notes which namespace a load balancer that is there is counted by.
func (t *inventory) assign(k Key, namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.tenants[k] == namespace {
		return
	}
	lb := t.balancers[k].lb
	t.countBalancer(k, lb, -1)
	t.tenants[k] = namespace
	t.countBalancer(k, lb, 1)
}

// count adds what an endpoint is counted as to the findings, or takes it away (-1).
func (t *inventory) count(e Endpoint, by int) {
	switch {
	case e.degraded() && e.remote():
		t.now.remote += by
	case e.degraded():
		t.now.local += by
	}
	if t.dsr && t.withoutLoopback(e) {
		t.now.loopback += by
	}
}

// countBalancer does the same of a load balancer, regardless of its owner.
func (t *inventory) countBalancer(k Key, lb LoadBalancer, by int) {
	if lb.degraded() {
		t.now.balancers += by
	}
	if lb.ID != "" && lb.Flags&FlagDSR == 0 {
		t.now.withoutDSR += by
		if t.shares[t.tenants[k]] += by; t.shares[t.tenants[k]] == 0 {
			delete(t.shares, t.tenants[k])
		}
	}
}

// countBalancers counts all of them anew: some have several frontends.
func (t *inventory) countBalancers() {
	t.now.balancers, t.now.withoutDSR = 0, 0
	clear(t.shares)
	maps.DeleteFunc(t.tenants, func(k Key, _ string) bool { return t.balancers[k].lb.ID == "" })
	seen := map[string]bool{}
	for k, have := range t.balancers {
		if !seen[have.lb.ID] {
			t.countBalancer(k, have.lb, 1)
		}
		seen[have.lb.ID] = true
	}
}

// countLoopback counts the pods of withoutLoopback anew: which endpoints are none follows from what
// was read.
func (t *inventory) countLoopback() {
	t.now.loopback = 0
	for _, e := range t.endpoints {
		if t.dsr && t.withoutLoopback(e) {
			t.now.loopback++
		}
	}
}

// hostSuffix follows the network's name in the name of the node's own endpoint in it, by flannel and
// Calico.
const hostSuffix = "_ep"

// withoutLoopback reports whether an endpoint is a pod of this node that DSR keeps from
// reaching itself through a Service (Azure/AKS#2608, calico#5522). The CNI plug-ins
// win-bridge and win-overlay allow it, with loopbackDSR, by a policy OutBoundNAT
// whose destination is the pod itself.
func (t *inventory) withoutLoopback(e Endpoint) bool {
	if e.remote() || e.Name == t.rootName || e.Name == t.facts.network.name+hostSuffix || slices.Contains(sourceNames[:], e.Name) {
		return false
	}
	own := addresses(e)
	if slices.Contains(own, t.facts.sourceVIP) {
		return false
	}
	return !slices.ContainsFunc(e.Policies, func(p Policy) bool {
		var s struct{ Destinations []string }
		return p.Type == "OutBoundNAT" && json.Unmarshal(p.Settings, &s) == nil && slices.ContainsFunc(s.Destinations, func(to string) bool {
			a, err := netip.ParseAddr(to)
			return err == nil && slices.Contains(own, a)
		})
	})
}

// Objects can be there without effect: their State shows that they are degraded.
// Owned ones are re-created; that may help or not, so each waits twice as long for
// the next attempt. Endpoints of pods are not touched: only the CNI plug-in knows what
// else belongs to them (policies, namespaces, routes), and a deletion would take the
// pod its network. They are reported, with what helps.

// retry is when a degraded object may be re-created again.
type retry struct {
	at   time.Time
	wait time.Duration
}

// The waits between attempts at a degraded object.
const (
	firstRetry = time.Minute
	lastRetry  = time.Hour
)

// repairing notes that a degraded object is re-created.
func (t *inventory) repairing(k Key) {
	next := t.retries[k]
	next.wait = sleep.Longer(next.wait, firstRetry, lastRetry)
	next.at = time.Now().Add(next.wait)
	t.retries[k] = next
}

// repairable reports whether an object may be re-created now if it is degraded.
func (t *inventory) repairable(k Key, degraded bool) bool {
	return degraded && !time.Now().Before(t.retries[k].at)
}

// findings count the objects of each kind without effect, and the load balancers that take
// ports of the node, regardless of their owner.
type findings struct {
	balancers, remote, local, unmapped, loopback int

	withoutDSR int
}

// problems takes the lock, and describes what the last reading has found and is still there,
// with the numbers of that reading, so that the texts stay the same while objects are repaired
// one by one.
func (t *inventory) problems() (all []model.Problem) {
	t.mu.Lock()
	defer t.mu.Unlock()
	add := func(now, found int, format string) {
		if now > 0 && found > 0 {
			all = append(all, model.Problem{Object: "HNS", Why: model.WhyDegraded, Detail: fmt.Sprintf(format, found)})
		}
	}
	n, read := t.now, t.found
	add(n.balancers, read.balancers, "%d load balancers are degraded: their rules are not in the virtual switch; those of tandem are re-created, with back-off")
	add(n.remote, read.remote, "%d remote endpoints are degraded: connections to them fail; those that Services use are re-created, with back-off")
	add(n.local, read.local, "%d endpoints of pods are degraded: they have lost their port of the virtual switch and belong to the CNI plug-in; delete their pods, or run the CNI plug-in's repair")
	add(n.unmapped, read.unmapped, "%d load balancers without port mappings (kubernetes#141488) serve nothing: delete them with hnsdiag")
	add(n.loopback, read.loopback, "%d pods cannot reach themselves through a Service: DSR is on, and their CNI plug-in has not set up loopback DSR; set loopbackDSR in its configuration or turn enableDSR off")
	if many := t.most / 2; read.withoutDSR > many {
		all = append(all, model.Problem{
			Object: "HNS", Why: model.WhyDegraded,
			Detail: fmt.Sprintf("more than %d load balancers without DSR reserve 64 of the node's ports each: allow DSR (--enable-dsr) or widen the dynamic port range (--winkernel-dynamic-ports)", many),
		})
	}
	if _, there := t.source(); there && t.facts.chosenVIP && t.facts.network.overlay {
		all = append(all, model.Problem{
			Object: "HNS", Why: model.WhyNoSourceVIP,
			Detail: fmt.Sprintf("%s, chosen by HNS, may be given to a pod by the CNI plug-in: reserve an address of the node's pod range there and set --source-vip (winkernel.sourceVip)", t.facts.sourceVIP),
		})
	}
	return all
}
