// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// commit is one run of Commit. What it finds out about HNS by reading it finds
// out once.
type commit struct {
	*Driver
	ctx       context.Context
	refreshed bool // endpoints were listed
	rerouted  bool // the network was read
	relisted  bool // load balancers were listed
	sought    bool // the node's hardware address was looked for
}

// listing paces what takes long over many Commits: those of a cold start follow one
// another, each of two seconds.
type listing struct {
	ended time.Time
	took  time.Duration
}

// listShare is which part of the time listings may take.
const listShare = 10

func (l listing) due() bool { return time.Since(l.ended) >= listShare*l.took }

// done notes a listing that began at a time.
func (l *listing) done(begun time.Time) { l.ended, l.took = time.Now(), time.Since(begun) }

// commitTime is how long a Commit may take until it leaves the rest for the next.
const commitTime = 2 * time.Second

// Commit implements dataplane.Driver. Each op stands for itself: one that fails
// holds up no other. When HNS itself is not there the rest is not tried, and
// when the time is up it is deferred.
func (d *Driver) Commit(ctx context.Context, ops []ledger.Op[Key, Value]) []error {
	c := &commit{Driver: d, ctx: ctx}
	c.claim(ops)
	begun := time.Now()
	errs := make([]error, len(ops))
	var stop error
	for n, i := range order(ops) {
		if stop == nil && n > 0 && time.Since(begun) >= commitTime {
			stop = ledger.ErrDeferred
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
	if len(d.Full()) > 0 { // something may have been mended
		d.inspect()
	}
	return errs
}

// claim takes over the load balancers that others have made for the very frontends
// of ours: endpoints that only they use can be replaced.
func (c *commit) claim(ops []ledger.Op[Key, Value]) {
	for _, op := range ops {
		if op.Key.Kind != KindBalancer || op.Verb == ledger.Delete {
			continue
		}
		c.table.mu.Lock()
		have, ok := c.table.balancers[op.Key]
		c.table.mu.Unlock()
		if ok && have.single {
			c.remember(have.lb.ID)
		}
	}
}

// order returns the order of ops in which Services become usable one by one: what
// all need comes first, then the load balancers with the endpoints that each needs
// before it, those of DNS in front, then other endpoints, and deletions last; but
// duplicates, beside which pods have no network, go at once.
func order(ops []ledger.Op[Key, Value]) []int {
	endpoints := map[netip.Addr][]int{}
	var first, dns, others, last, all []int
	for i, op := range ops {
		switch {
		case op.Key.Kind == KindNode, op.Key.Kind == KindSource && op.Verb != ledger.Delete, op.Key.Kind == KindDuplicate:
			first = append(first, i)
		case op.Verb == ledger.Delete:
			last = append(last, i)
		case op.Key.Kind != KindBalancer:
			endpoints[op.Key.Addr] = append(endpoints[op.Key.Addr], i)
		case op.Key.Port == portDNS:
			dns = append(dns, i)
		default:
			others = append(others, i)
		}
	}
	all = append(make([]int, 0, len(ops)), first...)
	take := func(a netip.Addr) {
		all = append(all, endpoints[a]...)
		delete(endpoints, a)
	}
	for _, i := range append(dns, others...) {
		take(ops[i].Key.Addr) // the VIP's own
		for _, t := range ops[i].New.Balancer.Endpoints {
			take(t.Addr)
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

func (c *commit) apply(op ledger.Op[Key, Value]) error {
	remove := op.Verb == ledger.Delete
	switch op.Key.Kind {
	case KindNode:
		family := model.FamilyOf(op.Key.Addr)
		c.setNode(family, op.New.Node)
		return c.journal.setNode(family, op.New.Node)
	case KindSource:
		if remove {
			return c.removeSource()
		}
		return c.makeSource()
	case KindDuplicate:
		return c.removeDuplicates(op.Key.Addr)
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

// remember notes that a load balancer is ours. When that fails it is still ours
// as long as this process lives.
func (c *commit) remember(id string) {
	if err := c.journal.add(id); err != nil {
		c.settings.Log.Error("writing the journal of load balancers failed", "err", err)
	}
}

func (c *commit) forget(id string) {
	if err := c.journal.gone(id); err != nil {
		c.settings.Log.Error("writing the journal of load balancers failed", "err", err)
	}
}
