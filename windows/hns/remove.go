// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
)

// patience is how long HNS, and at a start its network, is waited for. The service
// manager restarts the proxy after that.
const patience = time.Minute

// Remove deletes all our objects from an HNS, and closes it. The network of
// the pods may be gone, or indistinguishable from others: load balancers are owned by the
// journal, endpoints by their names, in any network.
func Remove(ctx context.Context, h HNS, s Settings) error {
	d, err := driverFor(ctx, h, s)
	if err != nil {
		return errors.Join(err, h.Close())
	}
	c, release := d.begin(ctx)
	defer release()
	if err = c.removeBalancers(); err == nil { // which endpoints are part of
		err = c.removeEndpoints()
	}
	return errors.Join(err, d.Close())
}

// driverFor returns a driver of an HNS once that answers.
func driverFor(ctx context.Context, h HNS, s Settings) (*Driver, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	v, err := newCalls(h, s.Log).version(ctx)
	if is(err, codeModuleNotFound) {
		return nil, fmt.Errorf("HNS %w: %w", dataplane.ErrAbsent, err)
	}
	if err != nil {
		return nil, fmt.Errorf("HNS: %w", err)
	}
	return NewDriver(h, v, s)
}

// removeBalancers deletes the load balancers that the journal knows. Those that
// HNS does not show are not forgotten: it may show them again.
func (c *commit) removeBalancers() error {
	doubts := c.journal.doubtful()
	all, err := c.balancers(c.ctx)
	if err != nil {
		return fmt.Errorf("HNS: %w", err)
	}
	c.own(doubts, all)
	var failed []error
	for _, lb := range all {
		if err := c.ctx.Err(); err != nil {
			return errors.Join(append(failed, err)...)
		}
		if !c.journal.owns(lb.ID) {
			continue
		}
		var k Key // without a frontend, the id names it
		if keys, _ := keysOf(lb); len(keys) > 0 {
			k = keys[0]
		}
		if err := c.remove(k, lb.ID); err != nil {
			failed = append(failed, fmt.Errorf("load balancer %s: %w", lb.ID, err))
		}
	}
	return errors.Join(failed...)
}

// removeEndpoints deletes the endpoints with our names.
func (c *commit) removeEndpoints() error {
	networks, err := c.calls.networks(c.ctx)
	if err != nil {
		return fmt.Errorf("HNS: %w", err)
	}
	var failed []error
	for _, n := range networks {
		all, err := c.endpoints(c.ctx, n.ID, nil)
		if err != nil && !notFound(err) {
			failed = append(failed, fmt.Errorf("network %s: %w", n.Name, err))
		}
		for _, e := range all {
			if _, own := ownedKey(e); !own && !isSource(e) {
				continue
			}
			if err := c.ctx.Err(); err != nil {
				return errors.Join(append(failed, err)...)
			}
			if err := c.deleteEndpoint(e.ID); err != nil {
				failed = append(failed, fmt.Errorf("endpoint %s: %w", e.Name, err))
			}
		}
	}
	return errors.Join(failed...)
}
