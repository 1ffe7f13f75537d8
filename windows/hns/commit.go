package hns

import (
	"context"
	"errors"
	"net/netip"
	"slices"

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

// Commit implements dataplane.Driver. Each op stands for itself: one that fails
// holds up no other. When HNS itself is not there the rest is not tried.
func (d *Driver) Commit(ctx context.Context, ops []ledger.Op[Key, Value]) []error {
	c := &commit{Driver: d, ctx: ctx}
	errs := make([]error, len(ops))
	var lost error
	for _, i := range urgent(ops) {
		if lost == nil {
			errs[i] = c.apply(ops[i])
		}
		if errors.Is(errs[i], ledger.ErrUnknown) {
			lost = errs[i]
		}
		if lost != nil {
			errs[i] = lost
		}
	}
	return errs
}

// urgent returns the order of ops: as they are given, but names come first. The
// load balancers of DNS do not wait for the endpoints of all others.
func urgent(ops []ledger.Op[Key, Value]) []int {
	order := make([]int, len(ops))
	needed := map[netip.Addr]bool{}
	for i, op := range ops {
		order[i] = i
		if op.Key.Kind == KindBalancer && op.Key.Port == dns && op.New.Balancer != nil {
			needed[op.Key.Addr] = true
			for _, t := range op.New.Balancer.Endpoints {
				needed[t.Addr] = true
			}
		}
	}
	if len(needed) == 0 {
		return order
	}
	class := func(op ledger.Op[Key, Value]) int {
		switch {
		case op.Verb == ledger.Delete:
			return 2
		case op.Key.Kind == KindNode, op.Key.Kind != KindBalancer && needed[op.Key.Addr], op.Key.Kind == KindBalancer && op.Key.Port == dns:
			return 0
		}
		return 1
	}
	slices.SortStableFunc(order, func(a, b int) int { return class(ops[a]) - class(ops[b]) })
	return order
}

func (c *commit) apply(op ledger.Op[Key, Value]) error {
	switch {
	case op.Key.Kind == KindNode:
		family := model.FamilyOf(op.Key.Addr)
		c.setNode(family, op.New.Node)
		return c.journal.setNode(family, op.New.Node)
	case op.Key.Kind == KindBalancer && op.Verb == ledger.Delete:
		return c.removeBalancer(op.Key)
	case op.Key.Kind == KindBalancer:
		return c.balance(op.Key, op.New)
	case op.Verb == ledger.Delete:
		return c.removeEndpoint(op.Key)
	}
	return c.makeEndpoint(op.Key, op.New)
}

// remember notes that a load balancer is ours. When that fails it is still ours
// as long as this process lives.
func (c *commit) remember(id string) {
	if err := c.journal.add(id); err != nil {
		c.settings.Log.Error("the journal of load balancers cannot be written", "error", err)
	}
}

func (c *commit) forget(id string) {
	if err := c.journal.gone(id); err != nil {
		c.settings.Log.Error("the journal of load balancers cannot be written", "error", err)
	}
}
