// SPDX-License-Identifier: Apache-2.0

package hnsemu

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/windows/hns"
)

func (e *Emulator) vanished(lb hns.LoadBalancer) {
	for _, f := range frontends(lb) {
		e.absent[f] = e.now
	}
}

func (e *Emulator) appeared(lb hns.LoadBalancer) {
	for _, f := range frontends(lb) {
		if since, ok := e.absent[f]; ok {
			e.outages = append(e.outages, Outage{f, e.now - since})
			delete(e.absent, f)
		}
	}
}

// Outages returns the outages so far.
func (e *Emulator) Outages() []Outage {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.outages)
}

// Log returns the calls so far.
func (e *Emulator) Log() []Call {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.log)
}

// Forget empties the log and the outages.
func (e *Emulator) Forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.log, e.outages = nil, nil
}

// Calls returns how many calls there were, of these functions or of all.
func (e *Emulator) Calls(names ...string) (n int) {
	for _, c := range e.Log() {
		if len(names) == 0 || slices.Contains(names, c.Name) {
			n++
		}
	}
	return n
}

// Writes returns the number of Create, Modify and Delete calls.
func (e *Emulator) Writes() (n int) {
	for _, c := range e.Log() {
		if c.Verb == Create || c.Verb == Modify || c.Verb == Delete {
			n++
		}
	}
	return n
}

// Check reports open handles except those of networks, which a client keeps, load balancers
// without endpoints or with deleted ones, two load balancers for one frontend, and changed
// objects of other programs.
func (e *Emulator) Check() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	for h, o := range e.handles {
		if o.kind != Network {
			errs = append(errs, fmt.Errorf("handle %d of %s %s is open", h, o.kind, o.id))
		}
	}
	seen := map[string]string{}
	for _, lb := range sorted(e.balancers) {
		if len(lb.HostComputeEndpoints) == 0 {
			errs = append(errs, fmt.Errorf("load balancer %s has no endpoints", lb.ID))
		}
		for _, id := range lb.HostComputeEndpoints {
			if _, ok := e.endpoints[strings.ToLower(id)]; !ok {
				errs = append(errs, fmt.Errorf("load balancer %s %v sends to endpoint %s, which is gone", lb.ID, frontends(lb), id))
			}
		}
		for _, f := range frontends(lb) {
			if other := seen[f]; other != "" {
				errs = append(errs, fmt.Errorf("load balancers %s and %s are both for %s", other, lb.ID, f))
			}
			seen[f] = lb.ID
		}
	}
	for id, was := range e.foreign {
		if p, ok := e.endpoints[id]; ok && text(p) == was {
			continue
		}
		if lb, ok := e.balancers[id]; ok && text(lb) == was {
			continue
		}
		errs = append(errs, fmt.Errorf("%s is foreign and was changed: it was %s", id, was))
	}
	return errors.Join(errs...)
}

// Handles returns how many handles are open.
func (e *Emulator) Handles() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.handles)
}
