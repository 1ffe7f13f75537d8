// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"fmt"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// Objects can be there without effect: their State shows that they are degraded.
// Owned ones are re-created; that may help or not, so each waits twice as long for
// the next attempt. Endpoints of pods are not touched: only the CNI plug-in knows what
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

// retries are those of degraded objects that were re-created.
type retries map[Key]retry

// repairing notes that a degraded object is re-created.
func (r retries) repairing(k Key) {
	next := r[k]
	next.wait = min(max(2*next.wait, firstRetry), lastRetry)
	next.at = time.Now().Add(next.wait)
	r[k] = next
}

// repairable reports whether an object may be re-created now if it is degraded.
func (r retries) repairable(k Key, degraded bool) bool {
	return degraded && !time.Now().Before(r[k].at)
}

// findings count the objects of each kind without effect, regardless of their owner, and say
// whether load balancers take too many of the node's ports.
type findings struct {
	balancers, remote, local, unmapped, loopback int

	crowded bool
}

// problems describes findings with the numbers of the last reading, so that the texts
// stay the same while objects are repaired one by one.
func (n findings) problems(read findings) (all []model.Problem) {
	add := func(now, read int, format string) { // an object may have come since
		if now > 0 {
			all = append(all, model.Problem{Object: "HNS", Why: model.WhyDegraded, Detail: fmt.Sprintf(format, max(1, read))})
		}
	}
	add(n.balancers, read.balancers, "%d load balancers are degraded: their rules are not in the virtual switch; those of tandem are re-created, with back-off")
	add(n.remote, read.remote, "%d remote endpoints are degraded: connections to them fail; those that Services use are re-created, with back-off")
	add(n.local, read.local, "%d endpoints of pods are degraded: they have lost their port of the virtual switch and belong to the CNI plug-in; delete their pods, or run the CNI plug-in's repair")
	add(n.unmapped, read.unmapped, "%d load balancers without port mappings (kubernetes#141488) serve nothing: delete them with hnsdiag")
	add(n.loopback, read.loopback, "%d pods cannot reach themselves through a Service: DSR is on, and their CNI plug-in has not set up loopback DSR; set loopbackDSR in its configuration or turn enableDSR off")
	if n.crowded {
		all = append(all, model.Problem{
			Object: "HNS", Why: model.WhyDegraded,
			Detail: fmt.Sprintf("more than %d load balancers without DSR reserve 64 of the node's ports each: allow DSR (--enable-dsr) or widen the dynamic port range", manyWithoutDSR),
		})
	}
	return all
}

// pace keeps what takes long to a part of the time, over many Commits or audits: those
// of a cold start follow one another, each of two seconds.
type pace struct {
	ended time.Time
	took  time.Duration
}

// paceShare is which part of the time it may take.
const paceShare = 10

func (p pace) due() bool { return time.Since(p.ended) >= paceShare*p.took }

// done notes a run that began at a time.
func (p *pace) done(begun time.Time) { p.ended, p.took = time.Now(), time.Since(begun) }

// statesTime bounds how long an audit reads the states of remote endpoints. On a slow
// node each reads some, in turn.
const statesTime = time.Minute

// rotation states which endpoints that are known a reading reads again, for their states.
type rotation struct {
	pace  pace
	begun time.Time       // zero: this reading reads none of the remote ones
	read  map[string]bool // remote ones in this turn, by id
	cut   bool            // the time was up before all were read
}

// begin begins a reading. On suspicion, missing objects are looked for first.
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
