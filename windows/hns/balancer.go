// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/ledger"
)

// balance brings the load balancer of a frontend to a value. Endpoints that HNS
// does not have yet, because a pod's CNI plug-in is still at work, are left out
// and tried again: the others need not wait. A load balancer without any is
// never made, and the old one is better than none.
func (c *commit) balance(k Key, v Value) error {
	ids, missing, err := c.targets(v.Balancer.Endpoints)
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return fmt.Errorf("none of the endpoints is in HNS: %s", list(missing))
	}
	c.table.mu.Lock()
	f := c.table.facts
	c.table.mu.Unlock()
	if f.network.overlay && !f.source(v).IsValid() {
		return errors.New("the overlay has no source VIP yet")
	}
	err = c.install(k, f.balancer(k, v, ids))
	if is(err, codeEndpointNotFound, codeNotFound) && !c.refreshed {
		// One that was known has gone.
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
			if err := c.removeDuplicates(t.Addr); err != nil {
				c.settings.Log.Warn("deleting the remote endpoint with a local pod's address failed", "address", t.Addr, "err", err)
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return ledger.ErrLeft[Value]{
		Value: without(v, missing), There: true,
		Err: fmt.Errorf("not in HNS yet, and left out: %s", list(missing)),
	}
}

func without(v Value, missing []Target) Value {
	b := *v.Balancer
	b.Endpoints = slices.DeleteFunc(slices.Clone(b.Endpoints), func(t Target) bool { return slices.Contains(missing, t) })
	v.Balancer = &b
	return v
}

func list(ts []Target) string {
	var names []string
	for _, t := range ts {
		names = append(names, t.String())
	}
	return strings.Join(names, ", ")
}

// targets returns the ids of endpoints, and which have none.
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
		// Its own op has failed, or somebody has deleted it since.
		if err := c.makeEndpoint(Key{Kind: KindRemote, Addr: t.Addr}, Value{}); down(err) {
			return nil, nil, err
		}
	}
	ids, missing = c.lookUp(ts)
	return ids, missing, nil
}

func (c *commit) lookUp(ts []Target) (ids []string, missing []Target) {
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	ids = make([]string, 0, len(ts))
	for _, t := range ts {
		if id, ok := c.table.find(t); ok {
			ids = append(ids, id)
		} else {
			missing = append(missing, t)
		}
	}
	return ids, missing
}

// install makes want the load balancer of a frontend, with as little as
// possible: nothing, a change in place, or a deletion and a creation, since HNS
// has one load balancer for a frontend. What stands there and was made for this
// frontend alone is taken over: it serves our Service, whoever made it.
func (c *commit) install(k Key, want LoadBalancer) error {
	c.table.mu.Lock()
	have, ok := c.table.balancers[k]
	c.table.mu.Unlock()
	switch {
	case !ok:
		return c.create(k, want)
	case !have.single:
		return fmt.Errorf("the frontend is taken by load balancer %s, which is not ours", have.lb.ID)
	}
	c.remember(have.lb.ID) // one that has turned up since
	c.table.mu.Lock()
	mend := c.table.mendable(k, have.lb)
	if mend {
		c.table.mended(k)
	}
	c.table.mu.Unlock()
	if differs(have.lb, want) == "" && !mend {
		return nil
	}
	if c.modify && !mend && !beyondEndpoints(have.lb, want) {
		done, err := c.change(k, have.lb, want)
		if done || err != nil {
			return err
		}
	}
	if err := c.remove(k, have.lb.ID); err != nil {
		return err
	}
	if err := c.create(k, want); err != nil {
		return ledger.ErrLeft[Value]{Err: err}
	}
	return nil
}

// change modifies a load balancer in place, and reports whether it is now as
// wanted. HNS 15.4 says so and has changed nothing, others cannot: then it is
// not tried again.
func (c *commit) change(k Key, have, want LoadBalancer) (done bool, err error) {
	want.ID = have.ID
	got, err := c.calls.modifyBalancer(c.ctx, k, have.ID, want)
	switch {
	case notImplemented(err):
		c.modify = false
		c.settings.Log.Warn("HNS cannot modify load balancers; replacing them from now on", "err", err)
		return false, nil
	case is(err, codeNotFound): // the load balancer itself has gone
		c.note(k, LoadBalancer{})
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

// create makes a load balancer. When HNS has one in its place that was not known,
// for instance because HNS was restarted, that one is looked at first.
func (c *commit) create(k Key, want LoadBalancer) error {
	got, err := c.calls.createBalancer(c.ctx, k, want)
	if exists(err) && !c.relisted && c.listed.due() {
		if err := c.relist(); err != nil {
			return err
		}
		c.table.mu.Lock()
		_, known := c.table.balancers[k]
		c.table.mu.Unlock()
		if known {
			return c.install(k, want)
		}
	}
	if err != nil {
		return err
	}
	c.remember(got.ID)
	c.accept(k, want, got)
	return nil
}

// accept takes what HNS returned as the load balancer that was asked for. HNS is
// known to return other flags than it was given (calico#7305): what it returns
// later is compared with this.
func (c *commit) accept(k Key, want, got LoadBalancer) {
	want.ID = got.ID
	if err := c.journal.setEcho(want, got); err != nil {
		c.settings.Log.Error("writing the journal of load balancers failed", "err", err)
	}
	if other := differs(got, want); other != "" && !c.echoed {
		c.echoed = true
		c.settings.Log.Info("HNS returns load balancers with other settings than asked for; comparing with what it returned", "object", k.String(), "settings", other)
	}
	c.note(k, want)
}

// remove deletes a load balancer. HNS of Windows Server 2019 is known to refuse
// at first (kubernetes#113524).
func (c *commit) remove(k Key, id string) error {
	err := c.calls.deleteBalancer(c.ctx, k, id)
	if err != nil && !notFound(err) && !down(err) {
		err = c.calls.deleteBalancer(c.ctx, k, id)
	}
	if err != nil && !notFound(err) {
		return err
	}
	c.forget(id)
	c.note(k, LoadBalancer{})
	return nil
}

func (c *commit) removeBalancer(k Key) error {
	c.table.mu.Lock()
	have, ok := c.table.balancers[k]
	c.table.mu.Unlock()
	if !ok || !have.single || !c.journal.owns(have.lb.ID) {
		return nil
	}
	return c.remove(k, have.lb.ID)
}

// note keeps what the load balancer of a frontend is now.
func (c *commit) note(k Key, lb LoadBalancer) {
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	c.table.set(k, lb)
}

// relist reads all load balancers anew.
func (c *commit) relist() error {
	c.relisted = true
	begun := time.Now()
	all, err := c.balancers(c.ctx)
	c.listed.done(begun)
	if err != nil {
		return errors.Join(errors.New("HNS has something in the load balancer's place"), err)
	}
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	for _, lb := range all {
		keys, single := keysOf(lb)
		for _, k := range keys {
			if c.table.reading {
				c.table.changed[k] = true
			}
			c.table.balancers[k] = installed{lb, single}
		}
	}
	return nil
}
