package hns

import (
	"fmt"
	"slices"

	"github.com/tandem-proxy/tandem/core/ledger"
)

// makeEndpoint sees to it that there is an endpoint for a key. One that others
// have made is as good: a pod of this node, or a remote endpoint that an earlier
// proxy has left.
func (c *commit) makeEndpoint(k Key, v Value) error {
	if k.Kind == KindVIP && !c.sought {
		c.sought = true
		c.seekMAC()
	}
	t := c.table
	t.mu.Lock()
	old, have := t.own(k)
	if have && readEndpoint(t.facts, k, old).equal(v) {
		t.mu.Unlock()
		return nil
	}
	_, others := t.find(Target{Addr: k.Addr})
	if !have && others && k.Kind == KindRemote {
		c.borrowed[k] = true
		t.mu.Unlock()
		return nil
	}
	t.mu.Unlock()

	if err := c.route(k); err != nil {
		return err
	}
	id, err := c.createEndpoint(k, v)
	if err != nil || !have {
		return err
	}
	return c.replaceEndpoint(old.ID, id)
}

// route sees to it that an overlay's nodes are known before an endpoint is put
// behind one of them: a node may just have joined, with pods' addresses that
// another one had.
func (c *commit) route(k Key) error {
	c.table.mu.Lock()
	overlay := c.table.facts.network.overlay
	c.table.mu.Unlock()
	if !overlay || k.Kind != KindRemote {
		return nil
	}
	return c.reroute()
}

// reroute reads the network again. Where pods are behind another node than they
// were, endpoints that are there already may be wrong.
func (c *commit) reroute() error {
	if c.rerouted {
		return nil
	}
	n, err := c.network(c.ctx)
	if err != nil {
		return err
	}
	c.rerouted = true
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	old := c.table.facts.network
	if n.id != old.id {
		return fmt.Errorf("network %q was made anew: %w", n.name, ledger.ErrUnknown)
	}
	if old.moved(n) {
		c.Doubt()
	}
	c.table.facts.network = n
	return nil
}

func (c *commit) createEndpoint(k Key, v Value) (id string, err error) {
	c.table.mu.Lock()
	f := c.table.facts
	c.table.mu.Unlock()
	if k.Kind == KindVIP && (f.hostMAC == "" || !v.Node.IsValid()) {
		return "", fmt.Errorf("no interface of this node has its address %s, which leads to VIPs", v.Node)
	}
	e, err := c.calls.createEndpoint(c.ctx, f.endpoint(k, v))
	switch {
	case notFound(err): // nothing else can be
		return "", fmt.Errorf("network %q has gone: %w: %w", f.network.name, err, ledger.ErrUnknown)
	case err != nil:
		return "", err
	}
	c.table.mu.Lock()
	c.table.put(e)
	delete(c.borrowed, k)
	c.table.mu.Unlock()
	return e.ID, nil
}

// replaceEndpoint lets everything that uses one endpoint use another, and
// deletes it.
func (c *commit) replaceEndpoint(old, new string) error {
	for _, k := range c.users(old) {
		c.table.mu.Lock()
		lb := c.table.balancers[k].lb
		c.table.mu.Unlock()
		lb.HostComputeEndpoints = slices.Clone(lb.HostComputeEndpoints)
		for i, id := range lb.HostComputeEndpoints {
			if id == old {
				lb.HostComputeEndpoints[i] = new
			}
		}
		if err := c.install(k, lb); err != nil {
			return err
		}
	}
	return c.deleteEndpoint(old)
}

// users returns the load balancers of ours that use an endpoint. It looks at
// all of them: only for what is rare.
func (c *commit) users(id string) (keys []Key) {
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	for k, have := range c.table.balancers {
		if have.single && c.journal.owns(have.lb.ID) && slices.Contains(have.lb.HostComputeEndpoints, id) {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, Key.compare)
	return keys
}

// removeEndpoint deletes an endpoint of ours.
func (c *commit) removeEndpoint(k Key) error {
	c.table.mu.Lock()
	delete(c.borrowed, k)
	e, ok := c.table.own(k)
	c.table.mu.Unlock()
	if !ok {
		return nil
	}
	return c.deleteEndpoint(e.ID)
}

func (c *commit) deleteEndpoint(id string) error {
	if err := c.calls.deleteEndpoint(c.ctx, id); err != nil && !notFound(err) {
		return err
	}
	c.table.mu.Lock()
	c.table.drop(id)
	c.table.mu.Unlock()
	return nil
}

// refresh looks which endpoints have come and gone: one call, and three for each
// that is new.
func (c *commit) refresh() error {
	if c.refreshed {
		return nil
	}
	c.table.mu.Lock()
	network := c.table.facts.network.id
	c.table.mu.Unlock()
	all, err := c.endpoints(c.ctx, network)
	if notFound(err) {
		return fmt.Errorf("the network has gone: %w: %w", err, ledger.ErrUnknown)
	}
	if err == nil && len(all) == 0 { // HNS says the same of a network that has gone
		err = c.reroute()
	}
	if err != nil {
		return err
	}
	c.refreshed = true
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	c.table.refresh(all)
	return nil
}

// yield deletes the remote endpoint of ours that stands where a pod of this node
// is now, once nothing uses it: with two endpoints of one address HNS may pick
// the wrong one (kubernetes#130963).
func (c *commit) yield(k Key) error {
	c.table.mu.Lock()
	e, ok := c.table.own(k)
	c.table.mu.Unlock()
	if !ok || len(c.users(e.ID)) > 0 {
		return nil
	}
	if err := c.deleteEndpoint(e.ID); err != nil {
		return err
	}
	c.table.mu.Lock()
	c.borrowed[k] = true // who still asks for it has the pod's own
	c.table.mu.Unlock()
	return nil
}
