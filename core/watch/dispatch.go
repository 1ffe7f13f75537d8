// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/sleep"
)

// mostProblems bounds the problems that are kept and passed to a sink: a faulty controller
// may write thousands of invalid objects. Of those beyond it only their number is known, and
// which objects have them: these are named when the problems of others are gone.
const mostProblems = 1000

// dispatcher receives the objects that followers read. It serializes the calls of the
// sink, collects the problems of all objects, and decides when to call Synced. It is
// safe for concurrent use.
type dispatcher struct {
	sink     Sink
	nodeName string
	limits   limits

	services, slices, node *latch
	optional               map[string]*latch // by resource; not changed once it runs
	changed                chan struct{}     // problems or rejected objects changed

	mu         sync.Mutex // also held during calls of the sink
	problems   map[objectKey][]model.Problem
	kept       int                    // how many problems there are in it
	waiting    map[objectKey]omission // objects with problems none of which is kept: no more than followers know
	omitted    int                    // problems of these
	rejected   map[objectKey]bool     // objects without any usable version
	hasNode    bool
	nodeRead   bool                 // it is known whether there is one
	lastSynced *bool                // the last Synced; nil before the first
	unread     map[string]readiness // by resource: of all but Services and EndpointSlices
	lastUnread model.Unread         // as passed on
}

// readiness is what is known of a kind of objects that may come late.
type readiness uint8

const (
	expected  readiness = iota // nothing yet
	forbidden                  // the server refuses it, and not only while it starts
	read                       // complete, or the server has no such kind
)

// objectKey names an object with problems.
type objectKey struct {
	resource string
	name     name
}

// omission is what is kept of the problems of an object that waits for room.
type omission struct {
	count int
	first model.Problem // without what exactly is wrong
}

// problem names the object.
func (o omission) problem() model.Problem {
	p := o.first
	if p.Detail = "what exactly is listed when the object changes"; o.count > 1 {
		p.Detail = fmt.Sprintf("the first of %d problems, which are listed when the object changes", o.count)
	}
	return p
}

// latch is a channel that is closed once.
type latch struct {
	once sync.Once
	ch   chan struct{}
}

func newLatch() *latch { return &latch{ch: make(chan struct{})} }

func (g *latch) open() { g.once.Do(func() { close(g.ch) }) }

func (g *latch) isOpen() bool {
	select {
	case <-g.ch:
		return true
	default:
		return false
	}
}

func newDispatcher(sink Sink, nodeName string, l limits) *dispatcher {
	return &dispatcher{
		sink: sink, nodeName: nodeName, limits: l,
		services: newLatch(), slices: newLatch(), node: newLatch(), optional: map[string]*latch{}, changed: make(chan struct{}, 1),
		problems: map[objectKey][]model.Problem{}, waiting: map[objectKey]omission{}, rejected: map[objectKey]bool{}, unread: map[string]readiness{},
	}
}

// put passes an object to the sink, and returns whether the sink has it now and
// whether to remember its version. If nothing of an object is usable its last good
// version is kept.
func (d *dispatcher) put(k *kind, n name, o runtime.Object, before bool) (served, known bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := k.set(o)
	rejected := !out.served && len(out.problems) > 0
	if before && !out.served && !rejected { // no longer served, such as a Service that became headless
		k.remove(n)
	}
	served = out.served || before && rejected
	d.note(objectKey{k.key(), n}, out.problems, rejected && !served)
	if out.served && k.key() == "nodes" && !d.hasNode {
		d.hasNode, d.nodeRead = true, true
		d.node.open()
		d.signal()
	}
	return served, served || rejected
}

// drop removes an object from the sink.
func (d *dispatcher) drop(k *kind, n name, served bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if served {
		k.remove(n)
	}
	d.note(objectKey{k.key(), n}, nil, false)
	if k.key() == "nodes" {
		d.hasNode = false
		d.signal()
	}
}

// note replaces the problems of an object.
func (d *dispatcher) note(s objectKey, problems []model.Problem, rejected bool) {
	_, waits := d.waiting[s]
	if slices.Equal(d.problems[s], problems) && !waits && d.rejected[s] == rejected {
		return
	}
	d.kept -= len(d.problems[s])
	d.omitted -= d.waiting[s].count
	delete(d.problems, s)
	delete(d.waiting, s)
	delete(d.rejected, s)
	switch room := mostProblems - d.kept; {
	case len(problems) == 0:
	case room > 0:
		kept := slices.Clone(problems[:min(len(problems), room)])
		d.problems[s] = model.More(kept, len(problems)-len(kept))
		d.kept += len(kept)
	default:
		first := problems[0]
		first.Detail, first.Fix = "", ""
		d.waiting[s] = omission{len(problems), first}
		d.omitted += len(problems)
	}
	if rejected {
		d.rejected[s] = true
	}
	d.promote()
	d.signal()
}

// promote names objects that wait, as far as there is room: mostly for as many as one object had
// problems.
func (d *dispatcher) promote() {
	if d.kept == mostProblems {
		return
	}
	for s, o := range d.waiting {
		delete(d.waiting, s)
		d.omitted -= o.count
		d.problems[s] = []model.Problem{o.problem()}
		if d.kept++; d.kept == mostProblems {
			return
		}
	}
}

func (d *dispatcher) signal() {
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// listed records that a kind of objects is complete, or that the server has no such kind.
func (d *dispatcher) listed(k *kind) {
	switch k.key() {
	case "services":
		d.services.open()
	case "endpointslices":
		d.slices.open()
	default:
		d.ready(k, read)
		d.goOn(k)
	}
}

// goOn has a start no longer wait for a kind that can be done without.
func (d *dispatcher) goOn(k *kind) {
	if g := d.optional[k.key()]; g != nil {
		g.open()
	}
}

// ready records what is known of a kind of objects that may come late. What was read is kept
// by the sink, whatever the server answers later.
func (d *dispatcher) ready(k *kind, r readiness) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r <= d.unread[k.key()] {
		return
	}
	d.unread[k.key()] = r
	d.nodeRead = d.nodeRead || k.key() == "nodes" && r == read
	d.signal()
}

// unknown returns which kinds could not be read. A forbidden Node, and forbidden routes, are
// done without: that is an answer, and no later one is to be expected. ServiceCIDRs that are
// forbidden stay unknown: what they decide can stay as it is.
func (d *dispatcher) unknown() (u model.Unread) {
	for object := range d.rejected {
		u.Endpoints = u.Endpoints || object.resource == "endpointslices"
	}
	u.Node = !d.nodeRead && d.unread["nodes"] == expected
	for resource := range d.optional {
		switch resource {
		case "servicecidrs":
			u.ServiceCIDRs = d.unread[resource] != read
		case otherNodesKey: // what they decide is decided again
		default:
			u.Routes = u.Routes || d.unread[resource] == expected
		}
	}
	return u
}

// run calls Synced when everything was passed to the sink, and then Problems, until
// ctx ends. It waits for the Node and what is optional only for a limited time: most
// Services do not depend on them.
func (d *dispatcher) run(ctx context.Context) {
	for _, g := range []*latch{d.services, d.slices} {
		select {
		case <-g.ch:
		case <-ctx.Done():
			return
		}
	}
	patience, cancel := context.WithTimeout(ctx, d.limits.nodeWait)
	for _, g := range append(slices.Collect(maps.Values(d.optional)), d.node) {
		select {
		case <-g.ch:
		case <-patience.Done():
		}
	}
	cancel()
	if ctx.Err() != nil {
		return
	}
	for {
		d.flush()
		select {
		case <-d.changed:
			sleep.For(ctx, d.limits.flush)
		case <-ctx.Done():
			return
		}
	}
}

// expects reports whether a kind that can be done without may still come.
func (d *dispatcher) expects() bool {
	for resource := range d.optional {
		if d.unread[resource] == expected {
			return true
		}
	}
	return false
}

// flush passes the sink all problems, and what is in doubt.
func (d *dispatcher) flush() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if u := d.unknown(); d.lastSynced == nil || d.lastUnread != u {
		d.lastUnread = u
		d.sink.Unread(u)
	}
	if whole := len(d.rejected) == 0 && d.nodeRead && !d.expects(); d.lastSynced == nil || *d.lastSynced != whole {
		d.lastSynced = &whole
		d.sink.Synced(whole)
	}
	d.sink.Problems(d.list())
}

// list returns the problems that are kept, in the order of their objects.
func (d *dispatcher) list() []model.Problem {
	var all []model.Problem
	for _, ps := range d.problems {
		all = append(all, ps...)
	}
	slices.SortFunc(all, func(a, b model.Problem) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Detail, b.Detail))
	})
	if d.omitted > 0 {
		all = append(all, model.Problem{
			Object: "API server", Why: model.WhyInvalid, Detail: fmt.Sprintf("%d more problems with its objects", d.omitted),
		})
	}
	if !d.hasNode {
		all = append(all, model.Problem{
			Object: "Node " + printable(d.nodeName), Why: model.WhyNoNode,
			Detail: "not found on the API server; if the node has another name, set --hostname-override",
		})
	}
	return all
}
