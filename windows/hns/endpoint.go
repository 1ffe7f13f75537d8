// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// makeEndpoint ensures an endpoint for a key. Another program's serves as well if it leads
// to the same target: a pod's of this node, or a remote one that an earlier proxy has left.
func (c *commit) makeEndpoint(k Key, v Value) error {
	if k.Kind == KindVIP && !c.sought {
		c.sought = true
		c.seekMAC()
	}
	if k.Kind == KindRemote && c.known.current().network.overlay {
		// A node may just have joined, with pod addresses that another node had.
		if err := c.reroute(); err != nil {
			return err
		}
	}
	old, ok := c.inPlace(k, v)
	if ok {
		return nil
	}
	id, err := c.createEndpoint(k, v)
	if exists(err) || is(err, codeAddressReserved) { // by another endpoint
		if old == "" {
			if err := c.refresh(); err != nil {
				return err
			}
			if old, ok = c.inPlace(k, v); ok {
				return nil
			}
		}
		if old != "" {
			return c.displace(k, v, old)
		}
	}
	if err != nil || old == "" {
		return err
	}
	if err := c.repoint(c.users(old), old, id); err != nil {
		return err
	}
	return c.deleteEndpoint(old)
}

// inPlace reports whether the endpoint of a key exists without drift, owned or adoptable,
// else returns the id of the one to replace, if any.
func (c *commit) inPlace(k Key, v Value) (old string, ok bool) {
	t := c.known
	t.mu.Lock()
	defer t.mu.Unlock()
	e, have := t.own(k)
	if have {
		ok = t.readEndpoint(k, e).equal(v)
	} else if e, have, ok = t.adoptable(k, v); ok {
		t.adopted[k] = true
	}
	switch {
	case ok:
		return e.ID, true
	case !have, !e.remote(): // a local one is never replaced
		return "", false
	case e.degraded():
		t.repairing(k)
	}
	return e.ID, false
}

// displace deletes an endpoint before it creates the one of a key, where HNS does not allow
// both. HNS may reject the deletion while owned load balancers use it: then these are
// deleted and created again.
func (c *commit) displace(k Key, v Value, old string) error {
	users := c.users(old)
	err := c.deleteEndpoint(old)
	var gone []LoadBalancer
	if is(err, codeHasReferences) {
		for _, u := range users {
			used, _ := c.known.balancer(u)
			if err := c.remove(u, used.lb.ID); err != nil {
				break
			}
			gone = append(gone, used.lb)
		}
		err = c.deleteEndpoint(old)
	}
	id := old
	if err == nil {
		id, err = c.createEndpoint(k, v)
	}
	if err != nil && len(gone) == 0 {
		c.Doubt() // load balancers may use an endpoint that no longer exists
		return err
	}
	for i, lb := range gone {
		if lb.HostComputeEndpoints = exchanged(lb.HostComputeEndpoints, old, id); len(lb.HostComputeEndpoints) == 0 {
			c.Doubt()
			continue
		}
		if err2 := c.create(users[i], lb); err2 != nil {
			c.Doubt()
			err = errors.Join(err, err2)
		}
	}
	if err != nil {
		return err
	}
	return c.repoint(users[len(gone):], old, id)
}

// reroute reads the network again, once in a Commit. If existing endpoints now lead to the
// wrong node, it calls Doubt.
func (c *commit) reroute() error {
	if c.rerouted {
		return nil
	}
	n, err := c.network(c.ctx)
	if err != nil {
		return err
	}
	c.rerouted = true
	c.known.mu.Lock()
	defer c.known.mu.Unlock()
	if n.id != c.known.facts.network.id {
		return fmt.Errorf("network %q was re-created: %w", n.name, ledger.ErrUnknown)
	}
	if c.known.route(n) {
		c.Doubt()
	}
	return nil
}

func (c *commit) createEndpoint(k Key, v Value) (id string, err error) {
	f := c.known.current()
	if k.Kind == KindVIP && (f.hostMAC == "" || !v.Node.IsValid()) {
		return "", fmt.Errorf("no interface has the node's address %s, whose MAC address VIP endpoints need", v.Node)
	}
	e, err := c.calls.createEndpoint(c.lasting, f.endpoint(k, v))
	switch {
	case notFound(err) && !is(err, codePolicyNotFound): // the call refers to the network only
		return "", fmt.Errorf("network %q no longer exists: %w: %w", f.network.name, err, ledger.ErrUnknown)
	case err != nil:
		return "", err
	}
	c.known.mu.Lock()
	c.known.put(e)
	delete(c.known.adopted, k)
	c.known.mu.Unlock()
	return e.ID, nil
}

// repoint replaces the endpoint old of load balancers by new.
func (c *commit) repoint(users []Key, old, new string) error {
	for _, k := range users {
		have, _ := c.known.balancer(k)
		lb := have.lb
		lb.HostComputeEndpoints = exchanged(lb.HostComputeEndpoints, old, new)
		if err := c.install(k, lb); err != nil {
			return err
		}
	}
	return nil
}

// exchanged returns ids with old replaced by new, or without it if new is empty. The
// result has no duplicate of new.
func exchanged(ids []string, old, new string) []string {
	ids = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return id == old || id == new })
	if new == "" {
		return ids
	}
	return append(ids, new)
}

// users returns the owned load balancers that use an endpoint. It searches
// all of them: only for rare operations.
func (c *commit) users(id string) (keys []Key) {
	c.known.mu.Lock()
	defer c.known.mu.Unlock()
	for k, have := range c.known.balancers {
		if have.single && c.journal.owns(have.lb.ID) && slices.Contains(have.lb.HostComputeEndpoints, id) {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, Key.compare)
	return keys
}

// removeEndpoint deletes an owned endpoint.
func (c *commit) removeEndpoint(k Key) error {
	c.known.mu.Lock()
	delete(c.known.adopted, k)
	e, ok := c.known.own(k)
	c.known.mu.Unlock()
	if !ok {
		return nil
	}
	return c.deleteEndpoint(e.ID)
}

// deleteEndpoint deletes an endpoint. One that does not exist is no error.
func (c *commit) deleteEndpoint(id string) error {
	err := c.calls.deleteEndpoint(c.lasting, id)
	if err != nil && !notFound(err) {
		return err
	}
	c.known.mu.Lock()
	e, known := c.known.endpoints[id]
	c.known.drop(id)
	c.known.mu.Unlock()
	if _, own := ownedKey(e); err == nil && known && !own && !isSource(e) {
		c.settings.Log.Info("deleted conflicting endpoint of another program", "endpoint", e.Name, "id", id, "addresses", addresses(e))
	}
	return nil
}

// refresh lists the endpoints again, once in a Commit: one function call, and three for
// each new endpoint.
func (c *commit) refresh() error {
	if c.refreshed {
		return nil
	}
	all, err := c.endpoints(c.ctx, c.known.current().network.id, nil)
	if notFound(err) {
		return fmt.Errorf("the network no longer exists: %w: %w", err, ledger.ErrUnknown)
	}
	if err == nil && len(all) == 0 { // HNS lists none either of a network that does not exist
		err = c.reroute()
	}
	if err != nil {
		return err
	}
	c.refreshed = true
	c.known.mu.Lock()
	defer c.known.mu.Unlock()
	c.known.merge(all, nil)
	return nil
}

// removeDuplicates deletes the remote endpoints, of any creator, with the address of a pod of
// this node: with one the pod has no network
// (Windows-Containers#631), and HNS may pick the wrong one (kubernetes#130963).
// Load balancers that use one get the pod's own endpoint.
func (c *commit) removeDuplicates(a netip.Addr) error {
	t := c.known
	t.mu.Lock()
	pod, there := t.find(Target{a, true})
	var remote []string
	for _, id := range t.byAddr[a] {
		if t.endpoints[id].remote() {
			remote = append(remote, id)
		}
	}
	t.mu.Unlock()
	if !there {
		return nil
	}
	for _, id := range remote {
		if err := c.repoint(c.users(id), id, pod); err != nil {
			return err
		}
		if err := c.deleteEndpoint(id); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(remote) > 0 {
		t.adopted[Key{Kind: KindRemote, Addr: a}] = true // a Service that needs the key has the pod's own
	}
	return nil
}

// makeSource ensures that the source VIP has an endpoint: without one nothing
// answers for the address. kube-proxy creates it in the same way.
func (c *commit) makeSource() error {
	if err := c.refresh(); err != nil { // a CNI plug-in may have created one since
		return err
	}
	c.seekMAC()
	t := c.known
	t.mu.Lock()
	if !t.facts.sourceVIP.IsValid() {
		t.facts.sourceVIP, t.facts.chosenVIP = c.settings.sourceVIP(slices.Collect(maps.Values(t.endpoints)))
	}
	f := t.facts
	_, there := t.source()
	degraded := t.readSource().Drift != ""
	if degraded {
		t.repairing(sourceKey())
	}
	t.mu.Unlock()
	if degraded {
		if err := c.removeSource(); err != nil {
			return err
		}
	}
	switch {
	case there && !degraded:
		return nil
	case f.hostMAC == "":
		return fmt.Errorf("no interface has the node's address %s", f.node[model.IPv4])
	}
	e, err := c.calls.createEndpoint(c.lasting, f.sourceEndpoint())
	if err != nil {
		return err
	}
	as := addresses(e)
	if len(as) == 0 {
		return fmt.Errorf("HNS gave the source VIP endpoint %s no address; set --source-vip", e.ID)
	}
	t.mu.Lock()
	t.put(e)
	t.facts.sourceVIP, t.facts.chosenVIP = as[0], t.facts.chosenVIP || !f.sourceVIP.IsValid()
	t.mu.Unlock()
	return nil
}

// removeSource deletes owned endpoints of the source VIP.
func (c *commit) removeSource() error {
	c.known.mu.Lock()
	var own []string
	for id, e := range c.known.endpoints {
		if isSource(e) {
			own = append(own, id)
		}
	}
	c.known.mu.Unlock()
	for _, id := range own {
		if err := c.deleteEndpoint(id); err != nil {
			return err
		}
	}
	return nil
}
