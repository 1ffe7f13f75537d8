// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// table is the known state of HNS: the last reading, and the changes
// since. Reading takes long and changes do not wait for it, so a reading is
// merged in at its end, except for objects changed meanwhile. It is safe for
// concurrent use; methods in lower case of other types that take a table hold
// its lock.
type table struct {
	mu        sync.Mutex
	endpoints map[string]Endpoint     // by id
	byAddr    map[netip.Addr][]string // ids; nearly always one
	balancers map[Key]installed       // by frontend, of any owner
	surplus   map[Key][]string        // ids of our own beside those, by KindSurplus
	facts     facts
	rootName  string // of the endpoint that represents this node; constant
	root      string // its id; empty where it is not there

	retries retries
	dsr     bool     // pods need loopback DSR; constant
	now     findings // kept up to date with each change
	found   findings // of the last reading

	reading bool            // a reading is on its way
	touched map[string]bool // ids that came and went meanwhile
	changed map[Key]bool    // frontends that were written meanwhile
}

// installed is the load balancer of a frontend.
type installed struct {
	lb LoadBalancer
	// single ones have this frontend only. Others belong to their
	// creator.
	single bool
}

func newTable(root string) *table {
	return &table{rootName: root, endpoints: map[string]Endpoint{}, byAddr: map[netip.Addr][]string{}, balancers: map[Key]installed{}, retries: retries{}}
}

// put adds or replaces an endpoint.
func (t *table) put(e Endpoint) {
	t.drop(e.ID)
	t.touch(e.ID)
	t.endpoints[e.ID] = e
	t.count(e, 1)
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

func (t *table) touch(id string) {
	if t.reading {
		t.touched[id] = true
	}
}

// set notes the load balancer of a frontend; the zero value for none.
func (t *table) set(k Key, lb LoadBalancer) {
	if t.reading {
		t.changed[k] = true
	}
	if t.balancers[k].lb.degraded() {
		t.now.balancers--
	}
	if lb.ID == "" {
		delete(t.balancers, k)
		return
	}
	if t.balancers[k] = (installed{lb, true}); lb.degraded() {
		t.now.balancers++
	}
}

// find returns the endpoint for a target: for a local one this node's, and for a
// remote one any that exists, this node's first. An owned endpoint that
// has the address of a pod that is now on this node must not be taken for the pod's.
func (t *table) find(target Target) (id string, ok bool) {
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
func (t *table) own(k Key) (Endpoint, bool) {
	for _, id := range t.byAddr[k.Addr] {
		if key, ok := ownedKey(t.endpoints[id]); ok && key == k {
			return t.endpoints[id], true
		}
	}
	return Endpoint{}, false
}

// foreign returns an endpoint that others have made for the address of a key: of a
// pod of this node, else a remote one.
func (t *table) foreign(k Key) (e Endpoint, ok bool) {
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

// adoptable reports whether an endpoint that others have made is as good as the one
// of a key.
func (t *table) adoptable(k Key, v Value) bool {
	e, ok := t.foreign(k)
	return ok && equivalent(t.facts, t.retries, k, v, e)
}

// duplicate returns the address of a remote endpoint that a pod of this node has,
// too.
func (t *table) duplicate(e Endpoint) (netip.Addr, bool) {
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

// targetAddr returns which of an endpoint's addresses a frontend's family needs.
func (t *table) targetAddr(e Endpoint, frontend netip.Addr) netip.Addr {
	for _, a := range addresses(e) {
		if a.Is4() == frontend.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// readBalancer returns the object of an installed load balancer. Anything that an
// object cannot express is its Drift.
func (t *table) readBalancer(f facts, k Key, lb LoadBalancer) Value {
	m := lb.PortMappings[0]
	b := &Balancer{
		Port:                m.InternalPort,
		DSR:                 lb.Flags&FlagDSR != 0,
		External:            m.Flags&FlagVIPExternalIP != 0,
		SessionAffinity:     m.DistributionType == DistributeBySource,
		PreserveDestination: m.Flags&FlagPreserveDIP != 0,
	}
	v := Value{Node: f.node[model.FamilyOf(k.Addr)], Balancer: b}
	var lost int
	for _, id := range lb.HostComputeEndpoints {
		e, ok := t.endpoints[id]
		if !ok {
			lost++
			continue
		}
		target := Target{t.targetAddr(e, k.Addr), !e.remote()}
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
	v.Drift = differs(lb, f.balancer(k, v, lb.HostComputeEndpoints))
	if v.Drift == "" && t.retries.repairable(k, lb.degraded()) {
		v.Drift = "degraded"
	}
	return v
}

// begin starts a reading.
func (t *table) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reading, t.touched, t.changed = true, map[string]bool{}, map[Key]bool{}
}

// known returns an endpoint that was read before. An endpoint's address and MAC
// never change, so only its state needs to be read again.
func (t *table) known(id string) (Endpoint, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.endpoints[id]
	return e, ok
}

// reading is the result of a read.
type reading struct {
	network   network
	sourceVIP netip.Addr
	endpoints []Endpoint
	balancers []LoadBalancer
}

// sort sorts load balancers by frontend. One of ours goes before those of others, and the
// one that was known before any that has turned up since; what remains of ours is surplus.
// Those that were deleted meanwhile are left out.
func (t *table) sort(all []LoadBalancer, own func(id string) bool) (by map[Key]installed, surplus map[Key][]string) {
	by, surplus = make(map[Key]installed, len(all)), map[Key][]string{}
	for _, lb := range all {
		keys, single := keysOf(lb)
		ours := own(lb.ID)
		switch {
		case t.touched[lb.ID]:
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

// end merges a reading in; nil when it failed. Own reports whether a load balancer is ours.
func (t *table) end(r *reading, own func(id string) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reading = false
	if r == nil {
		return
	}
	t.facts.network = r.network
	t.merge(r.endpoints, t.touched)
	// One that was made meanwhile was not read. A pod with its address is none.
	if _, made := t.source(); r.sourceVIP.IsValid() || !made {
		t.facts.sourceVIP = r.sourceVIP
	}
	before, surplus := t.balancers, t.surplus
	t.now.unmapped = 0
	for _, lb := range r.balancers {
		if len(lb.PortMappings) == 0 && !own(lb.ID) {
			t.now.unmapped++
		}
	}
	t.balancers, t.surplus = t.sort(r.balancers, own)
	for k := range t.changed {
		keep(t.balancers, before, k)
		keep(t.surplus, surplus, k.surplus())
	}
	t.countBalancers()
	t.now.crowded = t.withoutDSR() > manyWithoutDSR
	t.found = t.now
	t.forgetRetries()
}

// keep gives a key in a map what it has in another: maybe nothing.
func keep[V any](in, of map[Key]V, k Key) {
	delete(in, k)
	if v, ok := of[k]; ok {
		in[k] = v
	}
}

// refresh takes the endpoints that there are.
func (t *table) refresh(read []Endpoint) { t.merge(read, nil) }

// merge takes the endpoints that were read, except those created or deleted
// meanwhile.
func (t *table) merge(read []Endpoint, meanwhile map[string]bool) {
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

// forgetRetries forgets the attempts at objects that are in order.
func (t *table) forgetRetries() {
	maps.DeleteFunc(t.retries, func(k Key, r retry) bool { return time.Now().After(r.at) && !t.degraded(k) })
}

// degraded reports whether the object of a key is degraded.
func (t *table) degraded(k Key) bool {
	if k.Kind == KindBalancer {
		return t.balancers[k].lb.degraded()
	}
	if k.Kind == KindSource {
		e, _ := t.source()
		return e.degraded()
	}
	e, _ := t.own(k)
	return e.degraded()
}

// source returns the endpoint of the source VIP if it is owned.
func (t *table) source() (e Endpoint, ok bool) {
	id, _ := t.find(Target{t.facts.sourceVIP, true})
	e = t.endpoints[id]
	return e, isSource(e)
}

// readSource returns the object that the endpoint of the source VIP is. It is as it
// should be, no matter who made it; when degraded, it is re-created only if it is owned.
func (t *table) readSource() (v Value) {
	if e, ok := t.source(); ok && t.retries.repairable(sourceKey(), e.degraded()) {
		v.Drift = "degraded"
	}
	return v
}

// Windows has 16,384 dynamic ports for TCP, of which each load balancer without
// DSR reserves 64 (Azure/AKS#1375): beyond half of them pods are at risk.
const manyWithoutDSR = 16384 / 64 / 2

// withoutDSR counts the load balancers that answers go back through, regardless of their owner.
func (t *table) withoutDSR() (n int) {
	seen := map[string]bool{}
	for _, have := range t.balancers {
		if !seen[have.lb.ID] && have.lb.Flags&FlagDSR == 0 {
			n++
		}
		seen[have.lb.ID] = true
	}
	return n
}

// What of a table has no effect, or soon costs pods theirs.

// findingsOf returns what an endpoint adds to the findings.
func (t *table) findingsOf(e Endpoint) (n findings) {
	switch {
	case e.degraded() && e.remote():
		n.remote = 1
	case e.degraded():
		n.local = 1
	}
	if t.dsr && t.withoutLoopback(e) {
		n.loopback = 1
	}
	return n
}

// count adds the findings of an endpoint that comes, or takes away those of one that goes.
func (t *table) count(e Endpoint, by int) {
	n := t.findingsOf(e)
	t.now.remote += by * n.remote
	t.now.local += by * n.local
	t.now.loopback += by * n.loopback
}

// countBalancers counts those of load balancers, regardless of their owner.
func (t *table) countBalancers() {
	t.now.balancers = 0
	seen := map[string]bool{}
	for _, have := range t.balancers {
		if have.lb.degraded() && !seen[have.lb.ID] {
			t.now.balancers++
		}
		seen[have.lb.ID] = true
	}
}

// withoutLoopback reports whether an endpoint is a pod of this node that DSR keeps from
// reaching itself through a Service (Azure/AKS#2608, calico#5522). The CNI plug-ins
// win-bridge and win-overlay allow it, with loopbackDSR, by a policy OutBoundNAT
// whose destination is the pod itself.
func (t *table) withoutLoopback(e Endpoint) bool {
	return !e.remote() && e.Name != t.rootName && !slices.Contains(sourceNames[:], e.Name) && !hasLoopback(e)
}

func hasLoopback(e Endpoint) bool {
	own := addresses(e)
	return slices.ContainsFunc(e.Policies, func(p Policy) bool {
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

// retries are those of degraded objects that were re-created.
type retries map[Key]retry

// repairing notes that a degraded object is re-created.
func (r retries) repairing(k Key) {
	next := r[k]
	next.wait = min(max(2*next.wait, firstRetry), lastRetry)
	next.at = time.Now().Add(next.wait)
	r[k] = next
}

// repairable reports whether an object may be re-created now if it is degraded.
func (r retries) repairable(k Key, degraded bool) bool {
	return degraded && !time.Now().Before(r[k].at)
}

// findings count the objects of each kind without effect, regardless of their owner, and say
// whether load balancers take too many of the node's ports.
type findings struct {
	balancers, remote, local, unmapped, loopback int

	crowded bool
}

// problems describes findings with the numbers of the last reading, so that the texts
// stay the same while objects are repaired one by one.
func (n findings) problems(read findings) (all []model.Problem) {
	add := func(now, read int, format string) { // an object may have come since
		if now > 0 {
			all = append(all, model.Problem{Object: "HNS", Why: model.WhyDegraded, Detail: fmt.Sprintf(format, max(1, read))})
		}
	}
	add(n.balancers, read.balancers, "%d load balancers are degraded: their rules are not in the virtual switch; those of tandem are re-created, with back-off")
	add(n.remote, read.remote, "%d remote endpoints are degraded: connections to them fail; those that Services use are re-created, with back-off")
	add(n.local, read.local, "%d endpoints of pods are degraded: they have lost their port of the virtual switch and belong to the CNI plug-in; delete their pods, or run the CNI plug-in's repair")
	add(n.unmapped, read.unmapped, "%d load balancers without port mappings (kubernetes#141488) serve nothing: delete them with hnsdiag")
	add(n.loopback, read.loopback, "%d pods cannot reach themselves through a Service: DSR is on, and their CNI plug-in has not set up loopback DSR; set loopbackDSR in its configuration or turn enableDSR off")
	if n.crowded {
		all = append(all, model.Problem{
			Object: "HNS", Why: model.WhyDegraded,
			Detail: fmt.Sprintf("more than %d load balancers without DSR reserve 64 of the node's ports each: allow DSR (--enable-dsr) or widen the dynamic port range", manyWithoutDSR),
		})
	}
	return all
}

// pace keeps what takes long to a part of the time, over many Commits or audits: those
// of a cold start follow one another, each of two seconds.
type pace struct {
	ended time.Time
	took  time.Duration
}

// paceShare is which part of the time it may take.
const paceShare = 10

func (p pace) due() bool { return time.Since(p.ended) >= paceShare*p.took }

// done notes a run that began at a time.
func (p *pace) done(begun time.Time) { p.ended, p.took = time.Now(), time.Since(begun) }

// statesTime bounds how long an audit reads the states of remote endpoints. On a slow
// node each reads some, in turn.
const statesTime = time.Minute

// rotation states which endpoints that are known a reading reads again, for their states.
type rotation struct {
	pace  pace
	begun time.Time       // zero: this reading reads none of the remote ones
	read  map[string]bool // remote ones in this turn, by id
	cut   bool            // the time was up before all were read
}

// begin begins a reading. On suspicion, missing objects are looked for first.
func (r *rotation) begin(suspicion bool) {
	r.begun = time.Time{}
	if suspicion || !r.pace.due() {
		return
	}
	if !r.cut {
		r.read = map[string]bool{}
	}
	r.begun, r.cut = time.Now(), false
}

// again reports whether an endpoint is read again: those of this node always, and
// remote ones as long as there is time.
func (r *rotation) again(e Endpoint) bool {
	switch {
	case !e.remote():
		return true
	case r.begun.IsZero(), r.read[e.ID]:
		return false
	case time.Since(r.begun) > statesTime:
		r.cut = true
		return false
	}
	r.read[e.ID] = true
	return true
}

// end ends a reading that went well.
func (r *rotation) end() {
	if !r.begun.IsZero() {
		r.pace.done(r.begun)
	}
}
