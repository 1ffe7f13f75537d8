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

// inventory is the record of HNS: the objects of the last reading and those written since,
// and which of them are degraded. Owned endpoints are recognised by name, owned load balancers by
// the journal.
//
// A reading is slow and does not delay changes: it is merged in at its end,
// except for objects changed meanwhile. Methods are safe for concurrent use where they say
// that they take the lock; callers of all others hold it.
type inventory struct {
	journal  *journal // has a lock of its own
	rootName string   // of the endpoint that represents this node; constant
	dsr      bool     // pods need loopback DSR; constant

	mu        sync.Mutex
	endpoints map[string]Endpoint     // by id
	byAddr    map[netip.Addr][]string // ids; nearly always one
	root      string                  // id of the endpoint that represents this node; empty if there is none
	adopted   map[Key]bool            // keys whose endpoint another program made
	balancers map[Key]installed       // by frontend, of any owner
	surplus   map[Key][]string        // ids of owned ones that are not in balancers, by KindSurplus
	facts     facts

	unrouted   map[string]bool // ids of owned remote endpoints whose node the overlay does not name
	unroutedAt time.Time       // when the last of them was created or first seen

	replaced map[Key]pace // load balancers that were replaced, and still exist

	retries map[Key]retry  // of degraded objects that were re-created
	tenants map[Key]string // Balancer.Namespace of balancers
	shares  map[string]int // load balancers without DSR, by namespace
	most    int            // load balancers without DSR that the node's ports allow; constant

	now     findings // current
	found   findings // of the last reading
	reading *reading // in progress; nil for none
}

// installed is the load balancer of a frontend.
type installed struct {
	lb     LoadBalancer
	single bool // it has no other frontend; others belong to their creator
}

// reading is a reading of HNS: what it has read, the journal's state when it began, and
// what has changed since.
type reading struct {
	network   network
	sourceVIP netip.Addr
	chosenVIP bool
	endpoints []Endpoint
	balancers []LoadBalancer

	owned   map[string]bool // ids in the journal
	doubts  map[Key]try     // frontends for which HNS may have created a load balancer
	touched map[string]bool // ids of endpoints created or deleted since, and of surplus ones deleted
	changed map[Key]bool    // frontends written since
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
	if t.checkRoute(e); t.unrouted[e.ID] {
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

// set takes the lock, and sets the load balancer of a frontend; the zero value for none.
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

// noteReplaced takes the lock, and notes that the replacement of a load balancer, begun
// at a time, has ended.
func (t *inventory) noteReplaced(k Key, begun time.Time) {
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

// typeOf takes the lock, and returns the type of a load balancer, in the words of kube-proxy's
// metrics. HNS does not tell load balancer IPs from external IPs.
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

// current takes the lock, and returns the facts.
func (t *inventory) current() facts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.facts
}

// endpoint takes the lock, and returns a known endpoint. An endpoint's addresses
// and MAC never change, so only its state needs to be read again.
func (t *inventory) endpoint(id string) (Endpoint, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.endpoints[id]
	return e, ok
}

// route replaces the network by a later reading, and reports whether a remote endpoint in use
// is now behind another node.
func (t *inventory) route(n network) (moved bool) {
	old := t.facts.network
	t.facts.network = n
	if n.id == old.id && slices.Equal(n.remote, old.remote) {
		return false
	}
	clear(t.unrouted)
	for _, e := range t.endpoints {
		moved = t.checkRoute(e) || moved
	}
	return moved
}

// checkRoute notes an owned endpoint whose node the overlay does not name, and reports whether a
// remote one in use leads to another node than the overlay says.
func (t *inventory) checkRoute(e Endpoint) (moved bool) {
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

// routeEvery is the least time between readings of the network for the nodes of unrouted
// endpoints: a CNI plug-in has the route of a joining node within seconds. Addresses outside
// the cluster never get one, so readings become rarer.
const routeEvery = 5 * time.Second

// routesDue takes the lock, and reports whether the network, last read at a time, is to be read
// again for unrouted endpoints: after a tenth of the time that they have been waiting.
func (t *inventory) routesDue(last time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.unrouted) > 0 && time.Since(last) >= max(routeEvery, time.Since(t.unroutedAt)/paceShare)
}

// find returns the endpoint for a target: for a local one a local endpoint, and for a
// remote one any, local ones first. A remote endpoint with the address of a pod of this
// node is never the pod's.
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

// foreign returns another program's endpoint with the address of a key: a local one,
// else a remote one.
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

// adoptable returns another program's endpoint with the address of a key, whether there is one,
// and whether it leads where the key's own would.
func (t *inventory) adoptable(k Key, v Value) (e Endpoint, there, ok bool) {
	if e, there = t.foreign(k); !there {
		return e, false, false
	}
	want := t.facts.endpoint(k, v)
	ok = k.Kind != KindVIP || sameMAC(e, want)
	return e, true, ok && (!e.remote() || sameProvider(e, want) && !t.repairable(k, e.degraded()))
}

// duplicate returns the address that a remote endpoint shares with a pod of this node.
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

// readEndpoint returns the value of an owned remote endpoint, with its drift.
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

// readBalancer returns the value of a load balancer with one frontend. Drift has the
// differences that other fields cannot express.
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

// objects takes the lock, and returns the owned objects, and those that are never wanted.
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

// absent returns the ids of the journal's load balancers that HNS does not have.
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

// byFrontend assigns load balancers to frontends. Of several with one frontend an owned one
// wins, and of these the one known before; the other owned ones are surplus.
// Surplus ones deleted during the current reading are left out.
func (t *inventory) byFrontend(all []LoadBalancer) (by map[Key]installed, surplus map[Key][]string) {
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

// end takes the lock, and merges the reading in, or discards it if it failed. An error
// is one of writing the journal.
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
	// The reading lacks a source VIP endpoint made meanwhile.
	if e, _ := t.source(); r.sourceVIP.IsValid() || !isSource(e) {
		t.facts.sourceVIP, t.facts.chosenVIP = r.sourceVIP, r.chosenVIP
	}
	t.countLoopback()
	before, surplus := t.balancers, t.surplus
	t.balancers, t.surplus = t.byFrontend(r.balancers)
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

// keep copies a key from one map to another, where it is deleted if the first lacks it.
func keep[V any](in, of map[Key]V, k Key) {
	delete(in, k)
	if v, ok := of[k]; ok {
		in[k] = v
	}
}

// merge takes over the endpoints that were read, except those created or deleted
// meanwhile. Known ones change only in State and Health.
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

// source returns the endpoint of the source VIP, of any creator: a local one, or Calico's,
// which is remote on overlays.
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

// readSource returns the value of the source VIP's endpoint. It has drift only if it is
// owned and degraded.
func (t *inventory) readSource() (v Value) {
	if e, _ := t.source(); isSource(e) && t.repairable(sourceKey(), e.degraded()) {
		v.Drift = "degraded"
	}
	return v
}

// Windows has 16,384 dynamic TCP ports by default, of which each load balancer without
// DSR reserves 64 (Azure/AKS#1375). Using more than half of them is reported: pods run short of ports. An
// eighth is left free by load balancers that any tenant can create in numbers (Balancer.Namespace).
const (
	defaultPorts    = 16384
	portsWithoutDSR = 64
	reserve         = 8 // 1/reserve
)

// room takes the lock, and reports why a frontend gets no load balancer: it would be without DSR,
// and its namespace has more of these than are still free. One namespace alone gets half of
// the room at most, two a third each. Existing load balancers stay.
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

// assign takes the lock, and counts an existing load balancer against a namespace.
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

// count adds an endpoint to the current findings (1), or removes it (-1).
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

// countBalancer is count for a load balancer, of any owner.
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

// countBalancers counts all load balancers anew, those with several frontends once.
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

// countLoopback counts the pods without loopback anew: the network's name and the source
// VIP, which withoutLoopback uses, may have changed.
func (t *inventory) countLoopback() {
	t.now.loopback = 0
	for _, e := range t.endpoints {
		if t.dsr && t.withoutLoopback(e) {
			t.now.loopback++
		}
	}
}

// hostSuffix follows the network's name in the name of the node's own endpoint in it, as flannel and
// Calico name it.
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

// Degraded objects exist without effect; State shows it. Owned ones are re-created. That may
// not help, so each attempt waits twice as long as the last. Endpoints of pods are only
// reported: their policies, namespaces and routes are the CNI plug-in's, and a deletion
// would leave the pod without network.

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

// repairing notes that a degraded object is re-created, and when it may be again.
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

// findings count objects without effect, of any owner, and the load balancers that reserve
// ports of the node.
type findings struct {
	balancers, remote, local, unmapped, loopback int

	withoutDSR int
}

// problems takes the lock, and describes what the last reading found and still exists,
// with the numbers of that reading: texts stay the same while objects are repaired one
// by one.
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
