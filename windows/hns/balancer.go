// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// install makes want the load balancer of a frontend, with as little as
// possible: nothing, a change in place, or a deletion and a creation, since HNS
// has one load balancer for a frontend. An existing one that was made for this
// frontend alone is adopted: it serves our Service, no matter who made it.
func (c *commit) install(k Key, want LoadBalancer) error {
	c.table.mu.Lock()
	have, ok := c.table.balancers[k]
	c.table.mu.Unlock()
	switch {
	case !ok:
		return c.create(k, want)
	case !have.single:
		return fmt.Errorf("the frontend is taken by load balancer %s, which Tandem does not own", have.lb.ID)
	}
	c.adopt(k, have.lb.ID) // one that has turned up since
	c.table.mu.Lock()
	repair := c.table.retries.repairable(k, have.lb.degraded())
	if repair {
		c.table.retries.repairing(k)
	}
	c.table.mu.Unlock()
	same := differs(have.lb, want) == ""
	if same && !repair {
		return nil
	}
	if c.modify && !same && !beyondEndpoints(have.lb, want) {
		done, err := c.change(k, have.lb, want)
		if done || err != nil {
			return err
		}
	}
	if err := c.remove(k, have.lb.ID); err != nil {
		return err
	}
	if err := c.create(k, want); err != nil {
		return ledger.LeftError[Value]{Err: err}
	}
	return nil
}

// change modifies a load balancer in place, and reports whether it is now as
// wanted. HNS 15.4 reports success and changes nothing, others cannot: then it is
// not tried again.
func (c *commit) change(k Key, have, want LoadBalancer) (done bool, err error) {
	want.ID = have.ID
	got, err := c.calls.modifyBalancer(c.lasting, k, have.ID, want)
	c.failures.count("update", k, want, err)
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

// create makes a load balancer. When HNS has another one for the frontend that was not known,
// for instance because HNS was restarted, that one is read first.
func (c *commit) create(k Key, want LoadBalancer) error {
	c.written(c.journal.attempt(k))
	got, err := c.calls.createBalancer(c.lasting, k, want)
	c.failures.count("create", k, want, err)
	switch {
	case err == nil:
		c.written(c.journal.answered(k, got.ID))
	case exists(err): // which is refused for what is there
		c.written(c.journal.answered(k, ""))
	default: // it may be there: that it cannot be read after it was made is an error, too
		c.written(c.journal.doubt(k, !errors.Is(err, ledger.ErrUnknown)))
	}
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
	c.accept(k, want, got)
	return nil
}

// accept takes the returned object as the load balancer that was requested. HNS is
// known to return other flags than it was given (calico#7305): later reads
// are compared with this.
func (c *commit) accept(k Key, want, got LoadBalancer) {
	want.ID = got.ID
	c.written(c.journal.setEcho(want, got))
	if other := differs(got, want); other != "" && !c.echoed {
		c.echoed = true
		c.settings.Log.Info("HNS returns load balancers with other settings than requested; comparing with the returned ones", "object", k.String(), "settings", other)
	}
	c.note(k, want)
}

// remove deletes the load balancer of a frontend.
func (c *commit) remove(k Key, id string) error {
	err := c.delete(k, id)
	if err == nil {
		c.note(k, LoadBalancer{})
	}
	return err
}

// delete deletes a load balancer. HNS of Windows Server 2019 is known to refuse
// at first (kubernetes#113524), and of degraded ones not to find an endpoint
// (wcnscripts, scripts/findDegradedPolicies): then the load balancer is still there.
func (c *commit) delete(k Key, id string) error {
	err := c.calls.deleteBalancer(c.lasting, k, id)
	if err != nil && !is(err, codeNotFound) && !down(err) {
		err = c.calls.deleteBalancer(c.lasting, k, id)
	}
	if err != nil && !is(err, codeNotFound) {
		c.table.mu.Lock()
		lb := c.table.balancers[k].lb
		c.table.mu.Unlock()
		c.failures.count("delete", k, lb, err)
	}
	switch {
	case is(err, codeEndpointNotFound):
		return fmt.Errorf("load balancer %s is degraded, and HNS cannot delete it since one of its endpoints is gone; restart HNS (Restart-Service hns): %w", id, err)
	case is(err, codeOutsideSubnet): // which is no property of a deletion
		return fmt.Errorf("HNS cannot delete load balancer %s; of builds with the feature override 140377743 this is known: set it to 0 and restart the node (wcnscripts, stale-lb-dsr-rules): %w", id, err)
	case err != nil && !is(err, codeNotFound):
		return err
	}
	c.forget(id)
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

// removeSurplus deletes the load balancers of ours that a frontend has beside its own.
func (c *commit) removeSurplus(k Key) error {
	c.table.mu.Lock()
	ids := c.table.surplus[k]
	c.table.mu.Unlock()
	for len(ids) > 0 {
		if err := c.delete(k, ids[0]); err != nil {
			return err
		}
		c.table.mu.Lock()
		c.table.touch(ids[0])
		ids = ids[1:]
		c.table.surplus[k] = ids
		c.table.mu.Unlock()
	}
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	delete(c.table.surplus, k)
	return nil
}

// note keeps what the load balancer of a frontend is now.
func (c *commit) note(k Key, lb LoadBalancer) {
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	c.table.set(k, lb)
}

// relist reads all load balancers again.
func (c *commit) relist() error {
	c.relisted = true
	begun := time.Now()
	all, err := c.balancers(c.ctx)
	c.listed.done(begun)
	if err != nil {
		return errors.Join(errors.New("HNS has another object for the load balancer's frontend"), err)
	}
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	by, surplus := c.table.sort(all, c.journal.owns)
	for k, found := range by {
		if c.table.reading {
			c.table.changed[k] = true
		}
		c.table.balancers[k] = found
	}
	c.table.countBalancers()
	if len(surplus) > 0 {
		c.Doubt() // audits delete them
	}
	return nil
}

// failures counts calls about load balancers that failed, for metrics. It is safe for concurrent
// use.
type failures struct {
	mu  sync.Mutex
	all map[dataplane.BalancerFailure]uint64 // bounded by the few values of its fields
}

func (s *failures) count(verb string, k Key, lb LoadBalancer, err error) {
	if err == nil {
		return
	}
	f := dataplane.BalancerFailure{Verb: verb, Family: model.FamilyOf(k.Addr), Type: "clusterip", Error: "other"}
	switch {
	case k.Addr.IsUnspecified():
		f.Type = "nodeport"
	case slices.ContainsFunc(lb.PortMappings, func(m PortMapping) bool { return m.Flags&FlagVIPExternalIP != 0 }):
		f.Type = "externalip"
	}
	switch {
	case is(err, codePortExists):
		f.Error = "port_already_exists"
	case is(err, codeNetworkNotFound):
		f.Error = "network_not_found"
	case notImplemented(err):
		f.Error = "not_implemented"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[dataplane.BalancerFailure]uint64{}
	}
	s.all[f]++
}

// backend is the mode's, with what its driver counts.
type backend struct {
	dataplane.Backend
	driver *Driver
}

// Unwrap implements dataplane.Wrapper.
func (b *backend) Unwrap() dataplane.Backend { return b.Backend }

// Packets implements dataplane.PacketCounter.
func (b *backend) Packets() dataplane.Packets {
	return dataplane.Packets{Balancers: b.driver.BalancerFailures()}
}

// BalancerFailures returns how many calls about load balancers failed, by kind. It is safe for
// concurrent use.
func (d *Driver) BalancerFailures() map[dataplane.BalancerFailure]uint64 {
	d.failures.mu.Lock()
	defer d.failures.mu.Unlock()
	return maps.Clone(d.failures.all)
}
