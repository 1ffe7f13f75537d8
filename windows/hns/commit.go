// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// commitTime is the time after which a Commit defers its remaining ops to the next.
const commitTime = 2 * time.Second

// Commit applies ops independently: a failed one delays no other. When HNS is unavailable
// the remaining ops get the same error, and after commitTime they are deferred. When ctx
// ends no further op begins, and the current one may still write for a while (finishing).
func (d *Driver) Commit(ctx context.Context, ops []ledger.Op[Key, Value]) []error {
	c, release := d.begin(ctx)
	defer release()
	c.claim(ops)
	begun := time.Now()
	errs := make([]error, len(ops))
	var stop error
	for n, i := range order(ops) {
		if stop == nil && n > 0 && time.Since(begun) >= commitTime {
			stop = ledger.ErrDeferred
		}
		if stop == nil {
			stop = ctx.Err()
		}
		if stop == nil {
			errs[i] = c.apply(ops[i])
		}
		if errors.Is(errs[i], ledger.ErrUnknown) {
			stop = errs[i]
		}
		if stop != nil {
			errs[i] = stop
		}
	}
	c.logAdopted()
	return errs
}

// claim adopts other programs' load balancers of the ops' frontends before any op is applied,
// so that endpoints that only they use can be replaced. It counts
// existing load balancers against their namespaces before new ones get a share.
func (c *commit) claim(ops []ledger.Op[Key, Value]) {
	for _, op := range ops {
		if op.Key.Kind != KindBalancer || op.Verb == ledger.Delete {
			continue
		}
		if have, ok := c.known.balancer(op.Key); ok && have.single {
			c.adopt(op.Key, have.lb.ID)
			c.known.assign(op.Key, op.New.Balancer.Namespace)
		}
	}
}

// order returns the order of ops in which Services become usable one by one: first node
// addresses and the source VIP, and deletions of duplicates and surplus load balancers, which
// disturb other objects; then the load balancers, namespaces in turn, each after the endpoints
// that it needs; then other endpoints, and other deletions last.
func order(ops []ledger.Op[Key, Value]) []int {
	endpoints := map[netip.Addr][]int{}
	var first, balancers, last, all []int
	for i, op := range ops {
		switch {
		case op.Key.Kind == KindNode, op.Key.Kind == KindSource && op.Verb != ledger.Delete, op.Key.Kind == KindDuplicate, op.Key.Kind == KindSurplus:
			first = append(first, i)
		case op.Verb == ledger.Delete:
			last = append(last, i)
		case op.Key.Kind != KindBalancer:
			endpoints[op.Key.Addr] = append(endpoints[op.Key.Addr], i)
		default:
			balancers = append(balancers, i)
		}
	}
	all = append(make([]int, 0, len(ops)), first...)
	take := func(a netip.Addr) {
		all = append(all, endpoints[a]...)
		delete(endpoints, a)
	}
	for _, i := range turns(ops, balancers, endpoints) {
		for a := range needs(ops[i]) {
			take(a)
		}
		all = append(all, i)
	}
	for i, op := range ops {
		if _, left := endpoints[op.Key.Addr]; left && slices.Contains(endpoints[op.Key.Addr], i) {
			all = append(all, i)
		}
	}
	return append(all, last...)
}

// needs are the addresses whose endpoints a load balancer needs: its VIP and its
// endpoints.
func needs(op ledger.Op[Key, Value]) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		if !yield(op.Key.Addr) {
			return
		}
		for _, t := range op.New.Balancer.Endpoints {
			if !yield(t.Addr) {
				return
			}
		}
	}
}

// turns orders load balancers by the number of ops that their namespace has had up to and
// with each, DNS first within a namespace and among equals: clients need names first. Ops
// are counted, not load balancers, since a Commit has time for some ops only and the next
// one counts anew.
func turns(ops []ledger.Op[Key, Value], balancers []int, endpoints map[netip.Addr][]int) []int {
	late := func(i int) int {
		if ops[i].Key.Port == portDNS {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(balancers, func(a, b int) int { return late(a) - late(b) })
	had, at := map[string]int{}, make(map[int]int, len(balancers))
	for _, i := range balancers {
		namespace := ops[i].Port().Service.Namespace
		had[namespace]++
		for a := range needs(ops[i]) {
			had[namespace] += len(endpoints[a])
		}
		at[i] = had[namespace]
	}
	slices.SortStableFunc(balancers, func(a, b int) int { return cmp.Or(at[a]-at[b], late(a)-late(b)) })
	return balancers
}

func (c *commit) apply(op ledger.Op[Key, Value]) error {
	remove := op.Verb == ledger.Delete
	switch op.Key.Kind {
	case KindNode:
		family := model.FamilyOf(op.Key.Addr)
		if op.Old.Node.IsValid() && op.Old.Node != op.New.Node {
			c.Doubt() // endpoints of an overlay may be behind the old address
		}
		c.setNode(family, op.New.Node)
		c.written(c.journal.setNode(family, op.New.Node))
		return nil
	case KindSource:
		if remove {
			return c.removeSource()
		}
		return c.makeSource()
	case KindDuplicate:
		return c.removeDuplicates(op.Key.Addr)
	case KindSurplus:
		return c.removeSurplus(op.Key)
	case KindBalancer:
		if remove {
			return c.removeBalancer(op.Key)
		}
		return c.balance(op.Key, op.New)
	}
	if remove {
		return c.removeEndpoint(op.Key)
	}
	return c.makeEndpoint(op.Key, op.New)
}

// balance brings the load balancer of a frontend to a value. Endpoints that HNS
// does not have yet, because a pod's CNI plug-in is still at work, are left out
// and retried. If HNS has none of them, nothing is changed: an old load balancer is better
// than none.
func (c *commit) balance(k Key, v Value) error {
	if err := c.known.room(k, v.Balancer); err != nil {
		return err
	}
	ids, missing, err := c.targets(v.Balancer.Endpoints)
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return fmt.Errorf("none of the endpoints is in HNS: %s", strings.Join(names(missing), ", "))
	}
	f := c.known.current()
	if f.network.overlay && !f.source(v).IsValid() {
		return errors.New("the overlay has no source VIP yet")
	}
	err = c.install(k, f.balancer(k, v, ids))
	if is(err, codeEndpointNotFound, codeNotFound) && !c.refreshed {
		// A known endpoint has gone.
		if err := c.refresh(); err != nil {
			return err
		}
		return c.balance(k, v)
	}
	if err != nil {
		return err
	}
	for _, t := range v.Balancer.Endpoints {
		if t.Local {
			switch err := c.removeDuplicates(t.Addr); {
			case down(err):
				return err
			case err != nil:
				c.settings.Log.Warn("deleting the remote endpoint with a local pod's address failed", "address", t.Addr, "err", err)
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return ledger.LeftError[Value]{
		Value: without(v, missing), There: true,
		Err: fmt.Errorf("not in HNS yet, and left out: %s", strings.Join(names(missing), ", ")),
	}
}

func without(v Value, missing []Target) Value {
	b := *v.Balancer
	b.Endpoints = slices.DeleteFunc(slices.Clone(b.Endpoints), func(t Target) bool { return slices.Contains(missing, t) })
	v.Balancer = &b
	return v
}

// targets returns the ids of endpoints, and those that HNS does not have. It lists the
// endpoints again and creates missing remote ones.
func (c *commit) targets(ts []Target) (ids []string, missing []Target, err error) {
	ids, missing = c.lookUp(ts)
	if len(missing) == 0 {
		return ids, nil, nil
	}
	if err := c.refresh(); err != nil {
		return nil, nil, err
	}
	for _, t := range missing {
		if t.Local {
			continue
		}
		// The endpoint's op has failed, or another program has deleted it since.
		if err := c.makeEndpoint(Key{Kind: KindRemote, Addr: t.Addr}, Value{}); down(err) {
			return nil, nil, err
		}
	}
	ids, missing = c.lookUp(ts)
	return ids, missing, nil
}

func (c *commit) lookUp(ts []Target) (ids []string, missing []Target) {
	c.known.mu.Lock()
	defer c.known.mu.Unlock()
	ids = make([]string, 0, len(ts))
	for _, t := range ts {
		if id, ok := c.known.find(t); ok {
			ids = append(ids, id)
		} else {
			missing = append(missing, t)
		}
	}
	return ids, missing
}

// maxPause bounds the pause before a replacement, in which removed endpoints still get connections. It is
// shorter than BusyLimit, after which the ledger reports a failure.
const maxPause = ledger.BusyLimit / 2

// pause is the time until a load balancer may be replaced again for a change of its endpoints. Between
// deletion and creation the frontend is not served, so changes within Settings.Pause become one
// replacement, as with kube-proxy's minSyncPeriod of a second; on a slow HNS, where replacements take longer,
// they may take a tenth of the time. If none of its endpoints is left, it is replaced at once.
func (c *commit) pause(k Key, have, want LoadBalancer) time.Duration {
	stays := func(id string) bool { return slices.Contains(want.HostComputeEndpoints, id) }
	if c.settings.Pause == 0 || !slices.ContainsFunc(have.HostComputeEndpoints, stays) {
		return 0
	}
	c.known.mu.Lock()
	defer c.known.mu.Unlock()
	last := c.known.replaced[k]
	return min(max(c.settings.Pause, paceShare*last.took), maxPause) - time.Since(last.ended)
}

// install makes want the load balancer of a frontend: by no call, a change in place, or a
// deletion and a creation, since HNS allows one load balancer for a frontend. An existing
// one that has this frontend only is adopted, whoever created it.
func (c *commit) install(k Key, want LoadBalancer) error {
	have, ok := c.known.balancer(k)
	switch {
	case !ok:
		return c.create(k, want)
	case !have.single:
		return fmt.Errorf("the frontend is taken by load balancer %s, which Tandem does not own", have.lb.ID)
	}
	same := differs(have.lb, want) == ""
	endpoints := !same && !beyondEndpoints(have.lb, want) // and nothing else
	if endpoints && !c.modify {
		if wait := c.pause(k, have.lb, want); wait > 0 {
			return ledger.BusyError{After: wait}
		}
	}
	c.adopt(k, have.lb.ID) // it may have appeared since claim
	c.known.mu.Lock()
	repair := c.known.repairable(k, have.lb.degraded())
	if repair {
		c.known.repairing(k)
	}
	c.known.mu.Unlock()
	if same && !repair {
		return nil
	}
	if c.modify && endpoints {
		done, err := c.change(k, have.lb, want)
		if done || err != nil {
			return err
		}
	}
	begun := time.Now()
	if err := c.remove(k, have.lb.ID); err != nil {
		return err
	}
	if err := c.create(k, want); err != nil {
		return ledger.LeftError[Value]{Err: err}
	}
	c.known.noteReplaced(k, begun)
	return nil
}

// change modifies a load balancer in place, and reports whether it is now as
// wanted. If HNS cannot, or reports success and changes nothing (15.4), load balancers are
// replaced from then on.
func (c *commit) change(k Key, have, want LoadBalancer) (done bool, err error) {
	want = want.request()
	got, err := c.calls.modifyBalancer(c.lasting, k, have.ID, want)
	if !notImplemented(err) { // no failure: the load balancer is replaced
		c.count("update", k, want, err)
	}
	switch {
	case notImplemented(err):
		c.modify = false
		c.settings.Log.Warn("HNS cannot modify load balancers; replacing them from now on", "err", err)
		return false, nil
	case noBalancer(err): // the load balancer itself has gone
		c.known.set(k, LoadBalancer{})
		return false, nil
	case err != nil:
		return false, err
	case !sameSet(got.HostComputeEndpoints, want.HostComputeEndpoints):
		c.modify = false
		c.settings.Log.Warn("HNS did not apply a modification that it reported as done; replacing load balancers from now on")
		return false, nil
	}
	c.accept(k, want, got)
	return true, nil
}

// create creates a load balancer. If HNS has an unknown one for the frontend, for instance
// since HNS was restarted, load balancers are listed and that one becomes want.
func (c *commit) create(k Key, want LoadBalancer) error {
	want = want.request()
	c.written(c.journal.attempt(k))
	got, err := c.calls.createBalancer(c.lasting, k, want)
	c.count("create", k, want, err)
	switch {
	case err == nil:
		c.written(c.journal.answered(k, got.ID))
	case exists(err): // another object has the frontend: none was created
		c.written(c.journal.answered(k, ""))
	default: // one may have been created: a failure to read it afterwards is an error, too
		c.written(c.journal.doubt(k, !errors.Is(err, ledger.ErrUnknown)))
	}
	if exists(err) && !c.relisted && c.listed.due() {
		if err := c.relist(); err != nil {
			return err
		}
		if _, known := c.known.balancer(k); known {
			return c.install(k, want)
		}
	}
	if err != nil {
		return err
	}
	c.accept(k, want, got)
	return nil
}

// accept takes the returned object for the one requested, and keeps both in the journal: HNS
// is known to return other flags than it was given (calico#7305), and later reads are
// compared with these.
func (c *commit) accept(k Key, want, got LoadBalancer) {
	want.ID = got.ID
	c.written(c.journal.setEcho(want, got))
	if other := differs(got, want); other != "" && !c.echoed {
		c.echoed = true
		c.settings.Log.Info("HNS changed the settings of load balancers; comparing with the returned settings", "object", k.String(), "settings", other)
	}
	c.known.set(k, want)
}

// remove deletes the load balancer of a frontend.
func (c *commit) remove(k Key, id string) error {
	err := c.delete(k, id)
	if err == nil {
		c.known.set(k, LoadBalancer{})
	}
	return err
}

// delete deletes a load balancer, in two attempts: HNS of Windows Server 2019 is known to
// reject the first (kubernetes#113524). Of degraded load balancers HNS may not find an endpoint
// (wcnscripts, scripts/findDegradedPolicies): then the load balancer still exists.
func (c *commit) delete(k Key, id string) error {
	err := c.calls.deleteBalancer(c.lasting, k, id)
	if err != nil && !noBalancer(err) && !down(err) {
		err = c.calls.deleteBalancer(c.lasting, k, id)
	}
	if err != nil && !noBalancer(err) {
		have, _ := c.known.balancer(k)
		c.count("delete", k, have.lb, err)
	}
	switch {
	case is(err, codeEndpointNotFound):
		return fmt.Errorf("load balancer %s is degraded, and HNS cannot delete it since one of its endpoints is gone; restart HNS (Restart-Service hns): %w", id, err)
	case is(err, codeOutsideSubnet): // which makes no sense for a deletion
		return fmt.Errorf("HNS cannot delete load balancer %s, as known of builds with feature override 140377743; set it to 0 and restart the node (wcnscripts, stale-lb-dsr-rules): %w", id, err)
	case err != nil && !noBalancer(err):
		return err
	}
	c.written(c.journal.gone(id))
	return nil
}

func (c *commit) removeBalancer(k Key) error {
	have, ok := c.known.balancer(k)
	if !ok || !have.single || !c.journal.owns(have.lb.ID) {
		return nil
	}
	return c.remove(k, have.lb.ID)
}

// removeSurplus deletes the surplus load balancers of a frontend.
func (c *commit) removeSurplus(k Key) error {
	t := c.known
	t.mu.Lock()
	defer t.mu.Unlock()
	for ids := t.surplus[k]; len(ids) > 0; t.surplus[k] = ids {
		t.mu.Unlock()
		err := c.delete(k, ids[0])
		t.mu.Lock()
		if err != nil {
			return err
		}
		t.touch(ids[0])
		ids = ids[1:]
	}
	delete(t.surplus, k)
	return nil
}

// relist reads all load balancers again, at most once in a Commit.
func (c *commit) relist() error {
	c.relisted = true
	begun := time.Now()
	all, err := c.balancers(c.ctx)
	c.listed.done(begun)
	if err != nil {
		return errors.Join(errors.New("HNS has another object for the load balancer's frontend"), err)
	}
	c.known.mu.Lock()
	defer c.known.mu.Unlock()
	by, surplus := c.known.byFrontend(all)
	for k, found := range by {
		if c.known.reading != nil {
			c.known.reading.changed[k] = true
		}
		c.known.balancers[k] = found
	}
	c.known.countBalancers()
	if len(surplus) > 0 {
		c.Doubt() // an audit deletes them
	}
	return nil
}

// failures counts failed calls that create, modify or delete load balancers, for metrics.
type failures struct {
	mu  sync.Mutex
	all map[dataplane.BalancerFailure]uint64 // bounded by the few values of its fields
}

// count counts a call for the load balancer of a frontend, if it failed. It is safe for
// concurrent use.
func (d *Driver) count(verb string, k Key, lb LoadBalancer, err error) {
	if err == nil {
		return
	}
	f := dataplane.BalancerFailure{Verb: verb, Family: model.FamilyOf(k.Addr), Type: d.known.typeOf(k, lb), Error: "other"}
	switch {
	case is(err, codePortExists):
		f.Error = "port_already_exists"
	case is(err, codeNetworkNotFound):
		f.Error = "network_not_found"
	case is(err, codeOutsideSubnet):
		f.Error = "invalid_ip"
	case notImplemented(err):
		f.Error = "not_implemented"
	}
	d.failures.mu.Lock()
	defer d.failures.mu.Unlock()
	if d.failures.all == nil {
		d.failures.all = map[dataplane.BalancerFailure]uint64{}
	}
	d.failures.all[f]++
}

// backend is the mode's backend, with the counters of its driver.
type backend struct {
	dataplane.Backend
	driver *Driver
}

func (b *backend) Packets() dataplane.Packets {
	return dataplane.Packets{Balancers: b.driver.BalancerFailures()}
}

// BalancerFailures returns the number of failed calls that create, modify or delete load
// balancers, by kind. It is safe for concurrent use.
func (d *Driver) BalancerFailures() map[dataplane.BalancerFailure]uint64 {
	d.failures.mu.Lock()
	defer d.failures.mu.Unlock()
	return maps.Clone(d.failures.all)
}
