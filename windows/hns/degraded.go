// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"fmt"
	"maps"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// Objects can be there without effect: HNS says by their State that they are degraded.
// Those of ours are re-created; that may help or not, so each waits twice as long for
// the next attempt. Endpoints of pods are left alone: only the CNI plug-in knows what
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

// repairing notes that a degraded object is re-created.
func (t *table) repairing(k Key) {
	r := t.retries[k]
	r.wait = min(max(2*r.wait, firstRetry), lastRetry)
	r.at = time.Now().Add(r.wait)
	t.retries[k] = r
}

// repairable reports whether an object may be re-created now if it is degraded.
func (t *table) repairable(k Key, degraded bool) bool {
	return degraded && !time.Now().Before(t.retries[k].at)
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

// source returns the endpoint of the source VIP if it is ours.
func (t *table) source() (e Endpoint, ok bool) {
	id, _ := t.find(Target{t.facts.sourceVIP, true})
	e = t.endpoints[id]
	return e, isSource(e)
}

// readSource returns the object that the endpoint of the source VIP is. It is as it
// should be whoever made it; degraded, only ours is re-created.
func (t *table) readSource() (v Value) {
	if e, ok := t.source(); ok && t.repairable(sourceKey(), e.degraded()) {
		v.Stray = "degraded"
	}
	return v
}

// findings are how many objects of each kind have no effect, whoever's they are.
type findings struct{ balancers, remote, local, unmapped, loopback int }

// findings counts what has no effect. With dsr pods need loopback DSR.
func (t *table) findings(dsr bool) (n findings) {
	seen := map[string]bool{}
	for _, have := range t.balancers {
		if have.lb.degraded() && !seen[have.lb.ID] {
			n.balancers++
		}
		seen[have.lb.ID] = true
	}
	for _, e := range t.endpoints {
		switch {
		case e.degraded() && e.remote():
			n.remote++
		case e.degraded():
			n.local++
		}
	}
	n.unmapped = t.unmapped
	if dsr {
		n.loopback = t.withoutLoopback()
	}
	return n
}

// inspect looks for what Full tells. The numbers are those of the last reading, so that
// the texts stay the same while objects are repaired one by one.
func (d *Driver) inspect(reading bool) {
	d.table.mu.Lock()
	now := d.table.findings(d.settings.DSR)
	if reading {
		d.table.found = now
	}
	read := d.table.found
	d.table.mu.Unlock()
	var all []model.Problem
	add := func(now, read int, format string) { // an object may have come since
		if now > 0 {
			all = append(all, model.Problem{Object: "HNS", Why: model.WhyDegraded, Detail: fmt.Sprintf(format, max(1, read))})
		}
	}
	add(now.balancers, read.balancers, "%d load balancers are degraded: their rules are not in the virtual switch; those of tandem are re-created, with back-off")
	add(now.remote, read.remote, "%d remote endpoints are degraded: connections to them fail; those that Services use are re-created, with back-off")
	add(now.local, read.local, "%d endpoints of pods are degraded: they have lost their port of the virtual switch and belong to the CNI plug-in; delete their pods, or run the CNI plug-in's repair")
	add(now.unmapped, read.unmapped, "%d load balancers without port mappings (kubernetes#141488) serve nothing: delete them with hnsdiag")
	add(now.loopback, read.loopback, "%d pods cannot reach themselves through a Service: DSR is on, and their CNI plug-in has not set up loopback DSR; set loopbackDSR in its configuration or turn enableDSR off")
	d.problems.Store(&all)
}

// Full implements dataplane.Bounded: what HNS holds and what has no effect.
func (d *Driver) Full() []model.Problem {
	if all := d.problems.Load(); all != nil {
		return *all
	}
	return nil
}

// statesTime bounds how long an audit reads the states of remote endpoints. On a slow
// node each reads some, in turn.
const statesTime = time.Minute

// rotation says which endpoints that are known a reading reads again, for their states.
type rotation struct {
	pace  pace
	begun time.Time       // zero: this reading reads none of the remote ones
	read  map[string]bool // remote ones in this turn, by id
	cut   bool            // the time was up before all were read
}

// begin begins a reading. On suspicion what is missing is to be found first.
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
